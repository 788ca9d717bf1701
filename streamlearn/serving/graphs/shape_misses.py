"""Missed: shapes that come again and again and have no executable."""

from __future__ import annotations

import threading
from collections import OrderedDict

from streamlearn.serving.graphs.ladder import Bucket

__all__ = ["Missed"]


class Missed:
    """Counts shapes; the one that was not seen for longest is forgotten when there are too many.

    Args:
        calls_min: How often a shape has to come.
        shapes_max: The most shapes that are counted.
    """

    def __init__(self, calls_min: int, shapes_max: int = 1_024) -> None:
        self._calls_min, self._shapes_max = calls_min, shapes_max
        self._counts: OrderedDict[Bucket, int] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, bucket: Bucket) -> bool:
        """Count one; gives whether it came often enough, and then begins anew."""
        with self._lock:
            count = self._counts.pop(bucket, 0) + 1
            if count >= self._calls_min:
                return True
            self._counts[bucket] = count
            if len(self._counts) > self._shapes_max:
                self._counts.popitem(last=False)
            return False
