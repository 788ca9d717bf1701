"""Extract: some rows of a message as a message of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from streamlearn.samples import LabelColumns, RequestColumns, SampleBatch
from streamlearn.trainer.columns import take_features

__all__ = ["rows_of"]


def rows_of(batch: SampleBatch, rows: npt.NDArray[np.int64]) -> SampleBatch:
    """Samples of some rows of others, with the requests that these are of.

    Args:
        batch: All of them.
        rows: int64[n], growing.
    """
    found, index = np.unique(batch.request_index[rows], return_inverse=True)
    requests = found.astype(np.int64)
    columns = {name: getattr(batch.requests, name)[requests] for name in RequestColumns.__dataclass_fields__}
    return replace(
        batch,
        requests=RequestColumns(**columns),
        user=take_features(batch.user, requests),
        request_index=index.astype(np.int32),
        item_index=batch.item_index[rows],
        settle_time_ms=batch.settle_time_ms[rows],
        item=take_features(batch.item, rows),
        labels=tuple(_label(one, rows) for one in batch.labels),
        segments=tuple(replace(one, codes=one.codes[rows]) for one in batch.segments),
    )


def _label(label: LabelColumns, rows: npt.NDArray[np.int64]) -> LabelColumns:
    columns = {name: getattr(label, name)[rows] for name in LabelColumns.__dataclass_fields__ if name != "name"}
    return LabelColumns(name=label.name, **columns)
