"""A `SampleBatch`: the columns of many samples of one lot. It does not know schemas or bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from streamlearn.samples.item_ids import ItemIds

__all__ = [
    "FeatureColumns",
    "LabelColumns",
    "RequestColumns",
    "SampleBatch",
    "SampleHeader",
    "SegmentColumns",
    "SlotColumns",
    "renumbered",
]

_SORTING_PAYS = 64  # with that many times more numbers than indexes
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
Rows: TypeAlias = "Int64s | slice"
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

    def take(self, requests: Rows) -> RequestColumns:
        """Return some requests, in the given order."""
        return RequestColumns(**{name: column[requests] for name, column in vars(self).items()})


@dataclass(frozen=True, eq=False)
class SlotColumns:
    """The values of one slot."""

    keys: Uint64s  # one key for each row, or all rows' keys one after another
    offsets: Int32s | None = None  # [rows+1], where each row's keys begin; None for a single-valued slot
    weights: Float32s | None = None  # one for each key; None unless the pooling is "weighted"

    def take(self, rows: Rows) -> SlotColumns:
        """Return the values of some rows; see `FeatureColumns.take`."""
        if self.offsets is None:
            return SlotColumns(self.keys[rows])
        if isinstance(rows, slice):
            ends = self.offsets[rows.start : rows.stop + 1]
            taken = slice(int(ends[0]), int(ends[-1]))
            return SlotColumns(self.keys[taken], ends - ends[0], None if self.weights is None else self.weights[taken])
        begins = self.offsets[rows]
        lengths = self.offsets[rows + 1] - begins
        offsets = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        at = np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])
        return SlotColumns(self.keys[at], offsets, None if self.weights is None else self.weights[at])


@dataclass(frozen=True, eq=False)
class FeatureColumns:
    """The features of one side, in declared order."""

    slots: Mapping[str, SlotColumns]
    dense: Mapping[str, Float32s]  # float32[rows, width]

    def take(self, rows: Rows) -> FeatureColumns:
        """Return the features of some rows, in the given order; rows may repeat. For a slice they are views."""
        slots = {name: slot.take(rows) for name, slot in self.slots.items()}
        return FeatureColumns(slots, {name: numbers[rows] for name, numbers in self.dense.items()})


@dataclass(frozen=True, eq=False)
class LabelColumns:
    """One label of every row; each array has N values."""

    name: str
    value: Uint8s  # 1 positive, 0 negative; 0 if not settled
    settles: Uint8s  # 1 if this row settles the label
    sample_rate: Float32s  # the share of negatives kept; also set for positives
    weight: Float32s  # the weight of the row in training
    served_score: Float32s  # the score that serving answered; NaN if a streamlearn node did not score it
    number: Float32s | None = None  # the number, of a label that is one; None for any other

    @property
    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Its arrays by name."""
        return {name: column for name, column in vars(self).items() if isinstance(column, np.ndarray)}

    def take(self, rows: Rows) -> LabelColumns:
        """Return the label of some rows, in the given order."""
        return LabelColumns(self.name, **{name: column[rows] for name, column in self.columns.items()})


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
    item_ids: ItemIds | None = None  # the ids of which the item's keys are hashes; None without retrieval

    def __len__(self) -> int:
        return len(self.request_index)

    def shown_ms(self, rows: Int64s) -> Int64s:
        """Return the impression times of some rows."""
        return self.requests.event_time_ms[self.request_index[rows]]


def renumbered(indexes: Int32s, count: int) -> tuple[Int32s, Int64s]:
    """Return indexes below `count` as indexes into those that occur, and which those are.

    Examples:
        >>> [numbers.tolist() for numbers in renumbered(np.array([7, 2, 7], np.int32), 9)]
        [[1, 0, 1], [2, 7]]
        >>> [numbers.tolist() for numbers in renumbered(np.array([7, 2, 7], np.int32), 999)]
        [[1, 0, 1], [2, 7]]
    """
    if (indexes[1:] >= indexes[:-1]).all():  # as samples have them
        is_first = np.append(True, indexes[1:] != indexes[:-1])[: len(indexes)]
        return np.cumsum(is_first, dtype=np.int32) - np.int32(1), indexes[is_first].astype(np.int64)
    if len(indexes) < count // _SORTING_PAYS:  # a small step of a large message
        rare, numbers = np.unique(indexes, return_inverse=True)
        return numbers.astype(np.int32), rare.astype(np.int64)
    used = np.flatnonzero(np.bincount(indexes, minlength=count))
    number = np.zeros(count, np.int32)
    number[used] = np.arange(len(used), dtype=np.int32)
    return number[indexes], used
