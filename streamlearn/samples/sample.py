"""A `SampleBatch`: the columns of many samples of one lot. It knows no schema and no bytes."""

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
    """What holds for every row.

    Attributes:
        feature_fingerprint: `App.samples_fingerprint`; before, the fingerprint of the features alone.
        window_settings: The id of the label windows the rows were joined with.
        events_topic_id: Identity: the id of the impressions topic.
        lot: The lot it was joined in.
        lots_count: How many lots there are.
        ingest_run: The ingest run that joined it.
        watermark_ms: Event time before which every sample of the lot that was due is written, with this message.
    """

    feature_fingerprint: str
    window_settings: str
    events_topic_id: str
    lot: int
    lots_count: int
    ingest_run: int
    watermark_ms: int


@dataclass(frozen=True, eq=False)
class RequestColumns:
    """What holds for all rows of a request; each array has U values.

    Attributes:
        partition: Identity: the impression's partition.
        offset: Identity: the offset of the impression's record.
        event_time_ms: When it was shown, event time.
        shown_wall_ms: When it was shown, wall time.
        served_version: The version that scored it; -1: not scored by us.
    """

    partition: Int32s
    offset: Int64s
    event_time_ms: Int64s
    shown_wall_ms: Int64s
    served_version: Int64s

    def __len__(self) -> int:
        return len(self.partition)


@dataclass(frozen=True, eq=False)
class SlotColumns:
    """One slot's values.

    Attributes:
        keys: uint64. One key a row, or all rows' keys one after another.
        offsets: int32[rows+1]. Where each row's keys begin; None for a single-valued slot.
        weights: float32. A weight per key; None unless the pooling is "weighted".
    """

    keys: Uint64s
    offsets: Int32s | None = None
    weights: Float32s | None = None


@dataclass(frozen=True, eq=False)
class FeatureColumns:
    """One side's features.

    Attributes:
        slots: By slot name, in declared order.
        dense: float32[rows, width] by name, in declared order.
    """

    slots: Mapping[str, SlotColumns]
    dense: Mapping[str, Float32s]


@dataclass(frozen=True, eq=False)
class LabelColumns:
    """One label of every row; each array has N values.

    Attributes:
        name: The label.
        value: uint8. 1 positive, 0 negative; 0 where not settled.
        settles: uint8. 1 where this row settles the label.
        sample_rate: The share of negatives kept; on positives too.
        weight: How much the row weighs.
        served_score: What serving answered; NaN: not scored by us.
    """

    name: str
    value: Uint8s
    settles: Uint8s
    sample_rate: Float32s
    weight: Float32s
    served_score: Float32s


@dataclass(frozen=True, eq=False)
class SegmentColumns:
    """One segment of every row.

    Attributes:
        name: The segment.
        texts: Its distinct texts.
        codes: int32[N]. Which text each row has.
    """

    name: str
    texts: tuple[str, ...]
    codes: Int32s


@dataclass(frozen=True, eq=False)
class SampleBatch:
    """Many samples. U requests, N rows; user columns have U rows, item columns N.

    Attributes:
        header: What holds for every row.
        requests: What holds for all rows of a request.
        user: The user side's features, by request.
        request_index: int32[N]. The request of each row.
        item_index: int32[N]. Identity: the item's index within the impression's record.
        settle_time_ms: int64[N]. Event time at which the row was settled.
        item: The item side's features, by row.
        labels: In declared order.
        segments: In declared order.
    """

    header: SampleHeader
    requests: RequestColumns
    user: FeatureColumns
    request_index: Int32s
    item_index: Int32s
    settle_time_ms: Int64s
    item: FeatureColumns
    labels: tuple[LabelColumns, ...]
    segments: tuple[SegmentColumns, ...]

    def __len__(self) -> int:
        return len(self.request_index)
