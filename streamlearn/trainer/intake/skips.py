"""Skips: finds the rows that a version's manifest excludes from learning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from streamlearn.samples import SampleBatch
from streamlearn.versions.format.manifest import OriginSkip, Skip

__all__ = ["are_skipped"]


def are_skipped(batch: SampleBatch, rows: npt.NDArray[np.int64], skips: Sequence[Skip]) -> npt.NDArray[np.bool_]:
    """Return for each of some rows whether it is skipped, by the origin or the time of its impression."""
    requests = batch.requests
    is_skipped = np.zeros(len(requests), np.bool_)
    for skip in skips:
        if isinstance(skip, OriginSkip):
            if skip.topic_id == batch.header.events_topic_id:
                is_within = (requests.offset >= skip.begin) & (requests.offset < skip.end)
                is_skipped |= is_within & (requests.partition == skip.partition)
        else:
            is_skipped |= (requests.event_time_ms >= skip.begin_ms) & (requests.event_time_ms < skip.end_ms)
    return is_skipped[batch.request_index[rows]]
