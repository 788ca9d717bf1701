"""JoinCore: the join of one lot's impressions and actions. It knows no runner, topic or clock: time is a watermark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamlearn.ingest.join.columns import (
    ActionColumns,
    ImpressionColumns,
    Joined,
    JoinedInteractions,
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

    Guaranteed: the same calls give the same rows in the same order; events in any order give the same rows, as long as
    none is older than a watermark that was reached before it came; a repeated event changes nothing; a row that makes a
    label positive never comes before the row that made it negative. Not guaranteed: that a row comes once: a new core
    repeats rows, and `streamlearn.marks` drops them.

    Not for two threads at once. Arrays must be C-contiguous and have the types of `ImpressionColumns` and
    `ActionColumns`; they are not converted.

    Examples:
        >>> import numpy as np
        >>> from streamlearn.features import Label, LabelGroup
        >>> from streamlearn.ingest import JoinCore, JoinPlan
        >>> from streamlearn.ingest.join.columns import ActionColumns, ImpressionColumns
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
        ...     codes=np.array([plan.codes["click"]], np.uint8), weights=np.array([2.5], np.float32),
        ...     values=np.array([np.nan], np.float32)))
        >>> core.advance(60_001)
        >>> rows = core.take(100).rows
        >>> rows.item_index.tolist(), rows.labels.tolist(), rows.weights.tolist()
        ([8, 9], [0, 1], [[1.0], [2.5]])
    """

    def __init__(self, plan: JoinPlan) -> None:
        self.plan = plan
        self._core: Any = native.JoinCore(plan.rules())

    def add_impressions(self, columns: ImpressionColumns) -> None:
        """Add impressions, all or none.

        Raises:
            JoinFull: The core would hold more than `join.pending_bytes_max`. The caller stops reading, takes rows and
                advances the watermark before it tries again, and gives up if that changes nothing.
            TypeError: A column has another type.
            ValueError: The columns contradict each other.
        """
        self._core.add_impressions(
            (columns.request_ids, columns.request_at),
            columns.event_time_ms,
            (columns.partition, columns.offset, columns.first_item),
            (columns.items, columns.items_at),
            (columns.payload, columns.payload_at),
        )

    def add_actions(self, columns: ActionColumns) -> None:
        """Add actions, all or none; raises as for impressions."""
        self._core.add_actions(
            (columns.request_ids, columns.request_at),
            columns.event_time_ms,
            (columns.partition, columns.offset, columns.event_index),
            columns.items,
            (columns.codes, columns.weights, columns.values),
        )

    def advance(self, watermark_ms: int) -> None:
        """Make the rows that are due: no event before this time will come. A lower watermark does nothing."""
        self._core.advance(watermark_ms)

    def take(self, rows_max: int) -> Joined:
        """Take out at most `rows_max` rows, and as many interactions and letters."""
        requests, rows, interactions, letters = self._core.take(rows_max)
        # Rows come in the order in which they fell due, not in the order of their times.
        times_ms = [time_ms for time_ms in (self._core.ready_from_ms, self.watermark_ms) if time_ms is not None]
        complete_ms = min(times_ms, default=_BEFORE_ALL)
        made = JoinedInteractions(**interactions)
        return Joined(JoinedRequests(**requests), JoinedRows(**rows), made, Letters(**letters), complete_ms)

    def next_deadline_ms(self) -> int | None:
        """Return a watermark no later than the lowest at which `advance` does anything; None while the core is empty.

        It is above the watermark, so that a timer which follows it comes to an end.
        """
        deadline_ms: int | None = self._core.next_deadline_ms()
        return deadline_ms

    @property
    def watermark_ms(self) -> int | None:
        """The watermark; None before the first."""
        watermark_ms: int | None = self._core.watermark_ms
        return watermark_ms

    @property
    def bytes(self) -> int:
        """Bytes held, including reserved space."""
        return int(self._core.bytes)

    @property
    def pending(self) -> int:
        """Impressions held."""
        return int(self._core.pending)

    @property
    def waiting(self) -> int:
        """Actions that wait for their impression."""
        return int(self._core.waiting)

    @property
    def ready(self) -> int:
        """Rows and interactions that wait to be taken."""
        return int(self._core.ready)

    @property
    def letters(self) -> int:
        """Letters that wait to be taken."""
        return int(self._core.letters)

    @property
    def counters(self) -> Mapping[str, int]:
        """Counts since the core was made."""
        return dict(self._core.counters())
