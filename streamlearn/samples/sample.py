"""A `SampleBatch`: the columns of many samples of one lot. It does not know schemas or bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "FeatureColumns",
    "LabelColumns",
    "RequestColumns",
    "SampleBatch",
    "SampleHeader",
    "SegmentColumns",
    "SlotColumns",
]

Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
Float32s: TypeAlias = npt.NDArray[np.float32]
Uint8s: TypeAlias = npt.NDArray[np.uint8]
Uint64s: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class SampleHeader:
    """The values that all rows of a batch share."""

    feature_fingerprint: str  # `App.samples_fingerprint`; in older messages that of the features alone
    window_settings: str  # the id of the join's label windows
    events_topic_id: str  # identity: the id of the impressions topic
    lot: int  # the lot of the join
    lots_count: int
    ingest_run: int  # the ingest run that joined the rows
    watermark_ms: int  # event time; with this message, every sample of the lot that was due before it is written


@dataclass(frozen=True, eq=False)
class RequestColumns:
    """The values that all rows of a request share; each array has U values, one for each request."""

    partition: Int32s  # identity: the impression's partition
    offset: Int64s  # identity: the offset of the impression's record
    event_time_ms: Int64s  # event time of the impression
    shown_wall_ms: Int64s  # wall time of the impression
    served_version: Int64s  # the version that scored it; -1 if a streamlearn node did not score it

    def __len__(self) -> int:
        return len(self.partition)


@dataclass(frozen=True, eq=False)
class SlotColumns:
    """The values of one slot."""

    keys: Uint64s  # one key for each row, or all rows' keys one after another
    offsets: Int32s | None = None  # [rows+1], where each row's keys begin; None for a single-valued slot
    weights: Float32s | None = None  # one for each key; None unless the pooling is "weighted"


@dataclass(frozen=True, eq=False)
class FeatureColumns:
    """The features of one side, in declared order."""

    slots: Mapping[str, SlotColumns]
    dense: Mapping[str, Float32s]  # float32[rows, width]


@dataclass(frozen=True, eq=False)
class LabelColumns:
    """One label of every row; each array has N values."""

    name: str
    value: Uint8s  # 1 positive, 0 negative; 0 if not settled
    settles: Uint8s  # 1 if this row settles the label
    sample_rate: Float32s  # the share of negatives kept; also set for positives
    weight: Float32s  # the weight of the row in training
    served_score: Float32s  # the score that serving answered; NaN if a streamlearn node did not score it


@dataclass(frozen=True, eq=False)
class SegmentColumns:
    """One segment of every row."""

    name: str
    texts: tuple[str, ...]  # the distinct texts
    codes: Int32s  # [N], the index of each row's text


@dataclass(frozen=True, eq=False)
class SampleBatch:
    """N samples of U requests; user columns have U rows, item columns N. Labels and segments are in declared order."""

    header: SampleHeader
    requests: RequestColumns
    user: FeatureColumns
    request_index: Int32s  # [N], the request of each row
    item_index: Int32s  # [N], identity: the item's index within the impression's record
    settle_time_ms: Int64s  # [N], event time at which the row was settled
    item: FeatureColumns
    labels: tuple[LabelColumns, ...]
    segments: tuple[SegmentColumns, ...]

    def __len__(self) -> int:
        return len(self.request_index)
