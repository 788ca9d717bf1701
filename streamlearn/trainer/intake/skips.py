"""Skips: finds the rows that a version's manifest excludes from learning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from streamlearn.samples import SampleBatch
from streamlearn.versions.format.manifest import OriginSkip, Skip

__all__ = ["SkippedRows"]


class SkippedRows:
    """Finds rows that must not be learned, by ranges of their impressions' origin or time.

    Examples:
        >>> len(SkippedRows([]))
        0
    """

    def __init__(self, skips: Sequence[Skip]) -> None:
        self._skips = tuple(skips)

    def __len__(self) -> int:
        return len(self._skips)

    def match(self, batch: SampleBatch, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return for each of some rows whether it is skipped."""
        if not self._skips:
            return np.zeros(len(rows), np.bool_)
        requests = batch.requests
        is_skipped = np.zeros(len(requests), np.bool_)
        for skip in self._skips:
            if isinstance(skip, OriginSkip):
                if skip.topic_id == batch.header.events_topic_id:
                    is_within = (requests.offset >= skip.begin) & (requests.offset < skip.end)
                    is_skipped |= is_within & (requests.partition == skip.partition)
            else:
                is_skipped |= (requests.event_time_ms >= skip.begin_ms) & (requests.event_time_ms < skip.end_ms)
        return is_skipped[batch.request_index[rows]]
