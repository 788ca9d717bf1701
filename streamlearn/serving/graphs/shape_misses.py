"""Missed: frequent shapes that have no executable."""

from __future__ import annotations

import threading
from collections import OrderedDict

from streamlearn.serving.graphs.ladder import Bucket

__all__ = ["Missed"]


class Missed:
    """Counts at most `shapes_max` shapes; the least recently seen one is forgotten first."""

    def __init__(self, calls_min: int, shapes_max: int = 1_024) -> None:
        self._calls_min, self._shapes_max = calls_min, shapes_max
        self._counts: OrderedDict[Bucket, int] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, bucket: Bucket) -> bool:
        """Count a shape. At its `calls_min`-th time, return true and count from 0 again."""
        with self._lock:
            count = self._counts.pop(bucket, 0) + 1
            if count >= self._calls_min:
                return True
            self._counts[bucket] = count
            if len(self._counts) > self._shapes_max:
                self._counts.popitem(last=False)
            return False
