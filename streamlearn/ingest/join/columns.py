"""What goes into a join and what comes out, as columns. It knows no schema and no topic."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ActionColumns", "ImpressionColumns", "Joined", "JoinedRequests", "JoinedRows", "LetterKind", "Letters"]

Float32s: TypeAlias = npt.NDArray[np.float32]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
Uint8s: TypeAlias = npt.NDArray[np.uint8]
Uint32s: TypeAlias = npt.NDArray[np.uint32]
Uint64s: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class ImpressionColumns:
    """n impressions that show m items.

    Attributes:
        request_ids: The bytes of their request ids, end to end.
        request_at: int64[n+1]. Where each begins.
        event_time_ms: When each was shown, event time.
        partition: Origin: the partition.
        offset: Origin: the offset of the record.
        first_item: Origin: the index, within the record, of the first item.
        items: uint64[m]. The items, as keys that actions name them by.
        items_at: int64[n+1]. Where each impression's items begin.
        payload: The bytes of each event, end to end, given back with its rows. An event without bytes is read back
            by its origin.
        payload_at: int64[n+1]. Where each begins.
    """

    request_ids: Uint8s
    request_at: Int64s
    event_time_ms: Int64s
    partition: Int32s
    offset: Int64s
    first_item: Int32s
    items: Uint64s
    items_at: Int64s
    payload: Uint8s
    payload_at: Int64s

    def __len__(self) -> int:
        return len(self.event_time_ms)


@dataclass(frozen=True, eq=False)
class ActionColumns:
    """n actions.

    Attributes:
        request_ids: The bytes of their request ids, end to end.
        request_at: int64[n+1]. Where each begins.
        event_time_ms: When each was done, event time.
        partition: Origin: the partition.
        offset: Origin: the offset of the record.
        event_index: Origin: which event of the record.
        items: uint64[n]. The item of each.
        codes: uint8[n]. What was done, as `JoinPlan.codes` numbers it.
        weights: float32[n]. How much the positives it makes weigh: finite, and not below 0.
    """

    request_ids: Uint8s
    request_at: Int64s
    event_time_ms: Int64s
    partition: Int32s
    offset: Int64s
    event_index: Int32s
    items: Uint64s
    codes: Uint8s
    weights: Float32s

    def __len__(self) -> int:
        return len(self.event_time_ms)


@dataclass(frozen=True, eq=False)
class JoinedRequests:
    """The U impressions that rows are of. One impression may be here several times.

    Attributes:
        partition: Identity: the partition.
        offset: Identity: the offset of the record.
        first_item: The index, within the record, of the first item.
        event_time_ms: When it was shown.
        reads_back: uint8[U]. 1: its bytes were let go of, and are to be read back by origin.
        payload: The bytes of each event, end to end.
        payload_at: int64[U+1]. Where each begins.
    """

    partition: Int32s
    offset: Int64s
    first_item: Int32s
    event_time_ms: Int64s
    reads_back: Uint8s
    payload: Uint8s
    payload_at: Int64s

    def __len__(self) -> int:
        return len(self.partition)


@dataclass(frozen=True, eq=False)
class JoinedRows:
    """N rows: an item of an impression, and labels of one group that it settles. A bit for every label.

    Attributes:
        request_index: The impression.
        position: Which of the impression's items.
        item_index: Identity: the item's index within the record.
        item: The item as it was handed in.
        group: The label group.
        settles: uint32[N]. Labels the row settles.
        labels: uint32[N]. Those of them that are positive.
        settle_time_ms: Event time at which they were settled.
        weights: float32[N, labels]. Of each label the row makes positive, the weight of the action that did; else 1.
    """

    request_index: Int32s
    position: Int32s
    item_index: Int32s
    item: Uint64s
    group: Uint8s
    settles: Uint32s
    labels: Uint32s
    settle_time_ms: Int64s
    weights: Float32s

    def __len__(self) -> int:
        return len(self.request_index)


class LetterKind(IntEnum):
    """Why an event could not be joined."""

    IMPRESSION_LATE = 0
    IMPRESSION_EXCESS = 1
    ACTION_LATE = 2
    ACTION_ORPHAN = 3


@dataclass(frozen=True, eq=False)
class Letters:
    """Events that could not be joined, for the dead-letter topic.

    Attributes:
        kind: uint8[n]. Why, as `LetterKind` numbers it.
        groups: uint32[n]. Of an impression: the groups it was too late for. For the others it was joined.
        code: Of an action: what was done.
        partition: Origin: the partition.
        offset: Origin: the offset of the record.
        index: Origin: the index of the first item, or of the action, in the record.
        event_time_ms: When it happened.
        item: Of an action: the item.
        weight: Of an action: how much it weighs.
        request_ids: The bytes of their request ids, end to end.
        request_at: int64[n+1]. Where each begins.
        payload: The bytes of impressions, end to end; of actions none.
        payload_at: int64[n+1]. Where each begins.
    """

    kind: Uint8s
    groups: Uint32s
    code: Uint8s
    partition: Int32s
    offset: Int64s
    index: Int32s
    event_time_ms: Int64s
    item: Uint64s
    weight: Float32s
    request_ids: Uint8s
    request_at: Int64s
    payload: Uint8s
    payload_at: Int64s

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, eq=False)
class Joined:
    """What was taken out of a join.

    Attributes:
        requests: The impressions that rows are of.
        rows: Rows.
        letters: Events that could not be joined.
        complete_ms: Event time before which every row that is due was taken, with these rows.
    """

    requests: JoinedRequests
    rows: JoinedRows
    letters: Letters
    complete_ms: int
