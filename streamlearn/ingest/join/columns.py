"""Columns: the input and output of a join. They know no schema and no topic."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "IMPRESSION_KIND",
    "ActionColumns",
    "ImpressionColumns",
    "Joined",
    "JoinedInteractions",
    "JoinedRequests",
    "JoinedRows",
    "LetterKind",
    "Letters",
]

Float32s: TypeAlias = npt.NDArray[np.float32]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
Uint8s: TypeAlias = npt.NDArray[np.uint8]
Uint32s: TypeAlias = npt.NDArray[np.uint32]
Uint64s: TypeAlias = npt.NDArray[np.uint64]
IMPRESSION_KIND = 255


@dataclass(frozen=True, eq=False)
class ImpressionColumns:
    """n impressions that show m items.

    Values of varying length are concatenated; int64[n+1] offsets (`..._at`) say where each begins. The origin is the
    partition, the offset of the record, and the index of the first item within the record. `items` are the keys that
    actions name them by. `payload` has the bytes of the events, which are returned with their rows; an event without
    bytes is read back by its origin.
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
    """n actions, with the index of the event within the record as `event_index`.

    `codes` are the actions, as `JoinPlan.codes` numbers them. `weights` are those of the positives that an action
    makes: finite, and not below 0. `values` are their numbers, NaN for an action without one.
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
    values: Float32s

    def __len__(self) -> int:
        return len(self.event_time_ms)


@dataclass(frozen=True, eq=False)
class JoinedRequests:
    """The U impressions of rows and interactions, with their identity and bytes. An impression may occur several times.

    `reads_back` is 1 where the join has dropped the bytes: they are read back by the origin.
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
    """N rows: an item of an impression, and labels of one group that it settles, as bit masks.

    Attributes:
        request_index: The impression.
        position: The index of the item in the impression; `item_index` is that in the record.
        settles: uint32[N]. Labels the row settles.
        labels: uint32[N]. Those of them that are positive.
        settle_time_ms: Event time at which they were settled.
        weights: float32[N, labels]. For each label the row makes positive, the weight of its action; else 1.
        numbers: float32[N, labels]. For each label the row makes positive and that is a number, that number; else 0.
            Without columns if no label is a number.
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
    numbers: Float32s

    def __len__(self) -> int:
        return len(self.request_index)

    def take(self, rows: Int64s | slice) -> JoinedRows:
        """Return some rows, in the given order."""
        return JoinedRows(**{name: column[rows] for name, column in vars(self).items()})


@dataclass(frozen=True, eq=False)
class JoinedInteractions:
    """M interactions: actions on items, and items shown.

    Attributes:
        request_index: The impression.
        position: The index of the item in the impression.
        identity: The same for the same interaction in every run; it may come more than once.
        kind: The code of the action, as `JoinPlan.codes` numbers it; `IMPRESSION_KIND` for an item shown.
        weight: That of the action; 1 for an item shown.
        number: The action's number; NaN for none.
    """

    request_index: Int32s
    position: Int32s
    item: Uint64s
    identity: Uint64s
    kind: Uint8s
    event_time_ms: Int64s
    weight: Float32s
    number: Float32s

    def __len__(self) -> int:
        return len(self.request_index)

    def take(self, rows: Int64s | slice) -> JoinedInteractions:
        """Return some interactions, in the given order."""
        return JoinedInteractions(**{name: column[rows] for name, column in vars(self).items()})


class LetterKind(IntEnum):
    """Why an event could not be joined."""

    IMPRESSION_LATE = 0
    IMPRESSION_EXCESS = 1
    ACTION_LATE = 2
    ACTION_ORPHAN = 3
    ACTION_EXCESS = 4


@dataclass(frozen=True, eq=False)
class Letters:
    """n events that could not be joined, for the dead-letter topic; `kind` is a `LetterKind`.

    `groups` are, for an impression, the groups it was too late for; it was joined for the others. `code`, `item`,
    `weight` and `number`, NaN for none, are those of an action. `index` is that of the first item, or of the action,
    in the record. `payload` has the bytes of impressions, and none of actions.
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
    number: Float32s
    request_ids: Uint8s
    request_at: Int64s
    payload: Uint8s
    payload_at: Int64s

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, eq=False)
class Joined:
    """The output of a join.

    Attributes:
        complete_ms: Event time before which every due row was taken, including these.
    """

    requests: JoinedRequests
    rows: JoinedRows
    interactions: JoinedInteractions
    letters: Letters
    complete_ms: int
