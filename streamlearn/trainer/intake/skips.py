"""Skips: which rows are not learned from, by what a version's manifest says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from streamlearn.samples import SampleBatch
from streamlearn.versions.format.manifest import OriginSkip, Skip

__all__ = ["SkippedRows"]


class SkippedRows:
    """Tells rows that are not to be learned from.

    Args:
        skips: Ranges of impressions, by origin or by time.

    Examples:
        >>> len(SkippedRows([]))
        0
    """

    def __init__(self, skips: Sequence[Skip]) -> None:
        self._skips = tuple(skips)

    def __len__(self) -> int:
        return len(self._skips)

    def match(self, batch: SampleBatch, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether each of some rows is among them."""
        if not self._skips:
            return np.zeros(len(rows), np.bool_)
        requests = batch.requests
        found = np.zeros(len(requests), np.bool_)
        for skip in self._skips:
            if isinstance(skip, OriginSkip):
                if skip.topic_id == batch.header.events_topic_id:
                    is_within = (requests.offset >= skip.begin) & (requests.offset < skip.end)
                    found |= is_within & (requests.partition == skip.partition)
            else:
                found |= (requests.event_time_ms >= skip.begin_ms) & (requests.event_time_ms < skip.end_ms)
        return found[batch.request_index[rows]]
