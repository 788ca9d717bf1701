"""The join of one lot's impressions and actions. It knows no runner, no topic and no clock: time is a watermark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from streamlearn.ingest.join.columns import (
    ActionColumns,
    ImpressionColumns,
    Joined,
    JoinedRequests,
    JoinedRows,
    Letters,
)
from streamlearn.ingest.join.plan import JoinPlan
from streamlearn.native import native

__all__ = ["JoinCore"]

_BEFORE_ALL = -(1 << 55)


class JoinCore:
    """Impressions and actions in, rows that settle labels out.

    What is guaranteed: the same calls give the same rows in the same order; and events in any order give the same
    rows, as long as none is older than a watermark that was reached before it came. An event that comes twice
    changes nothing. A row that makes a label positive never comes before the row that made it negative.

    What is not: rows of a core that starts anew come again. `streamlearn.marks` drops those.

    Not for two threads at once. Arrays must be C-contiguous, of the types `ImpressionColumns` and `ActionColumns`
    state; nothing is converted in silence.

    Args:
        plan: Windows, labels and bounds.

    Examples:
        >>> import numpy as np
        >>> from streamlearn.features import Label, LabelGroup
        >>> from streamlearn.ingest import JoinCore, JoinPlan
        >>> from streamlearn.ingest.join.columns import ActionColumns
        >>> from streamlearn.ingest.join.columns import ImpressionColumns
        >>> plan = JoinPlan((LabelGroup("fast", 60, 600),), (Label("click", "click", "fast"),), "topic")
        >>> core = JoinCore(plan)
        >>> text = np.frombuffer(b"q7", np.uint8)
        >>> at, payload = np.array([0, 2]), np.frombuffer(b"the event", np.uint8)
        >>> core.add_impressions(ImpressionColumns(
        ...     request_ids=text, request_at=at, event_time_ms=np.array([0]), partition=np.array([3], np.int32),
        ...     offset=np.array([5120]), first_item=np.array([8], np.int32), items=np.array([901, 902], np.uint64),
        ...     items_at=np.array([0, 2]), payload=payload, payload_at=np.array([0, 9])))
        >>> core.add_actions(ActionColumns(
        ...     request_ids=text, request_at=at, event_time_ms=np.array([12_000]), partition=np.array([3], np.int32),
        ...     offset=np.array([77]), event_index=np.array([0], np.int32), items=np.array([902], np.uint64),
        ...     codes=plan.codes_of(["click"]), weights=np.array([2.5], np.float32)))
        >>> core.advance(60_001)
        >>> rows = core.take(100).rows
        >>> rows.item_index.tolist(), rows.labels.tolist(), rows.weights.tolist()
        ([8, 9], [0, 1], [[1.0], [2.5]])
    """

    def __init__(self, plan: JoinPlan) -> None:
        self.plan = plan
        self._core: Any = native.JoinCore(*plan.native_arguments())

    @classmethod
    def restore(cls, plan: JoinPlan, snapshot: bytes | memoryview) -> Self:
        """The core a snapshot was made of; from when on it makes rows is the snapshot's.

        Raises:
            BadRecord: It is no snapshot, was damaged, or is of other windows, labels or rates.
        """
        made = cls.__new__(cls)
        made.plan = plan
        made._core = native.JoinCore(*plan.native_arguments(), snapshot=snapshot)
        return made

    def add_impressions(self, given: ImpressionColumns) -> None:
        """Add impressions, all or none.

        Raises:
            JoinFull: More would be held than `join.pending_bytes_max`. The caller stops reading: it takes rows and
                advances the watermark before it tries again, and gives up if that changes nothing.
            TypeError: A column is of another type.
            ValueError: The columns contradict each other.
        """
        self._core.add_impressions(
            (given.request_ids, given.request_at),
            given.event_time_ms,
            (given.partition, given.offset, given.first_item),
            (given.items, given.items_at),
            (given.payload, given.payload_at),
        )

    def add_actions(self, given: ActionColumns) -> None:
        """Add actions, all or none.

        Raises:
            JoinFull: As for impressions.
            TypeError: A column is of another type.
            ValueError: The columns contradict each other.
        """
        self._core.add_actions(
            (given.request_ids, given.request_at),
            given.event_time_ms,
            (given.partition, given.offset, given.event_index),
            given.items,
            (given.codes, given.weights),
        )

    def advance(self, watermark_ms: int) -> None:
        """No event before this time is to come: make the rows that are due. A lower watermark does nothing."""
        self._core.advance(watermark_ms)

    def take(self, rows_max: int) -> Joined:
        """Take at most so many rows, and as many letters, out."""
        requests, rows, letters = self._core.take(rows_max)
        # Rows are taken in the order in which they fell due, which is not that of their times.
        times_ms = [one for one in (self._core.ready_from_ms, self.watermark_ms) if one is not None]
        complete_ms = min(times_ms, default=_BEFORE_ALL)
        return Joined(JoinedRequests(**requests), JoinedRows(**rows), Letters(**letters), complete_ms)

    def next_deadline_ms(self) -> int | None:
        """A watermark no later than the lowest at which `advance` does anything; None while nothing is held.

        It lies ahead of the watermark, so that a timer that is set to it again and again comes to an end.
        """
        found: int | None = self._core.next_deadline_ms()
        return found

    def snapshot(self) -> bytes:
        """Everything that is held, rows that wait to be taken included."""
        made: bytes = self._core.snapshot()
        return made

    @property
    def watermark_ms(self) -> int | None:
        """The watermark; None before the first."""
        found: int | None = self._core.watermark_ms
        return found

    @property
    def bytes(self) -> int:
        """Bytes that are held, room that is kept included."""
        return int(self._core.bytes)

    @property
    def pending(self) -> int:
        """Impressions that are held."""
        return int(self._core.pending)

    @property
    def waiting(self) -> int:
        """Actions that wait for their impression."""
        return int(self._core.waiting)

    @property
    def ready(self) -> int:
        """Rows that wait to be taken."""
        return int(self._core.ready)

    @property
    def letters(self) -> int:
        """Letters that wait to be taken."""
        return int(self._core.letters)

    @property
    def counters(self) -> Mapping[str, int]:
        """What was counted since the core was made, its snapshots included."""
        return dict(self._core.counters())
