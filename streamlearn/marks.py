"""Marks: the labels that a model has learned for each identity, so that a repeated sample is learned once.

They do not know the trainer or the store: steps are numbers, saves are named bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.native import native
from streamlearn.settings.join import MarksSettings

__all__ = ["MarkedRows", "Marks", "MarksSave", "Settled"]

Uint32s = npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class MarkedRows:
    """N rows of U requests.

    A row's identity is the id of the impressions topic, its request's partition and offset, and its item index.
    """

    topic_id: str
    partition: npt.NDArray[np.int32]  # [U]
    offset: npt.NDArray[np.int64]  # [U]
    event_time_ms: npt.NDArray[np.int64]  # [U], of the impression
    request_index: npt.NDArray[np.int32]  # [N], the request of each row
    item_index: npt.NDArray[np.int32]  # [N]
    settles: Uint32s  # [N], a bit for each label that the row settles
    labels: Uint32s  # [N], a bit for each of those labels that is positive
    # Only needed for labels that are numbers and have corrections:
    settle_time_ms: npt.NDArray[np.int64] | None = None  # [N]
    numbers: npt.NDArray[np.float32] | None = None  # [N, labels]; those of other labels do not matter

    def __len__(self) -> int:
        return len(self.request_index)


@dataclass(frozen=True, eq=False)
class Settled:
    """The decision for each row. A label in neither mask is dropped: it was learned before, or refused."""

    learn: Uint32s  # [N], labels to learn
    correct: Uint32s  # [N], labels that were learned as negative and are positive, or as another number
    old: npt.NDArray[np.uint8]  # [N], 1 if the row is older than the horizon and refused
    positive: Uint32s  # [N], labels that are known to be positive, by this row or earlier ones
    before: npt.NDArray[np.float32]  # [N, labels], of corrected numbers what was learned; no columns without any


@dataclass(frozen=True)
class MarksSave:
    """Learned marks that changed since an earlier save."""

    number: int  # the next save's `since`, once this save is committed
    entries: Mapping[str, bytes]  # named bytes for a version's marks file


class Marks:
    """Two bits for each (identity, label): none < negative < positive, or refused.

    A label without a mark is learned; a positive label on a negative mark is learned as a correction. Of the labels in
    `numbers`, one bit each, the number that was learned is kept, and another one that was settled no earlier is a
    correction.

    A step's marks are in flight from `settle` until `acknowledge`, and every later step sees them; a save contains only
    acknowledged marks. Rows of forgotten pages are refused, because they would be learned twice.

    `labels` is the number of labels. Not for concurrent use.

    Examples:
        >>> import numpy as np
        >>> from streamlearn.marks import MarkedRows, Marks
        >>> marks = Marks(labels=2)
        >>> def row(settles, labels):
        ...     zero = np.zeros(1, np.int32)
        ...     masks = np.array([settles], np.uint32), np.array([labels], np.uint32)
        ...     return MarkedRows("topic", zero, np.array([5120]), np.array([0]), zero, zero + 9, *masks)
        >>> marks.settle(1, row(0b11, 0b01)).learn.tolist()
        [3]
        >>> settled = marks.settle(2, row(0b11, 0b11))
        >>> settled.learn.tolist(), settled.correct.tolist()
        ([0], [2])
        >>> marks.acknowledge(2)
        >>> sorted(marks.save().entries)
        ['0-0', 'head']
    """

    def __init__(self, labels: int, settings: MarksSettings | None = None, *, numbers: int = 0) -> None:
        settings = settings or MarksSettings()
        self._labels, self._numbers = labels, numbers
        self._marks: Any = native.Marks(labels, numbers, settings.record_items_max, settings.bytes_max)

    def settle(self, step: int, rows: MarkedRows) -> Settled:
        """Decide which labels of some rows a step learns, and mark them in flight.

        Step numbers never decrease. An identity may occur several times.

        Raises:
            MarksFull: The marks would need more than `marks.bytes_max`; nothing is marked.
            ValueError: The columns contradict each other.
        """
        learn, correct, old, positive, before = self._marks.settle(step, rows.topic_id, *self._columns(rows))
        before = before.reshape(len(rows), self._labels if self._numbers else 0)
        return Settled(learn, correct, old, positive, before)

    def refuse(self, step: int, rows: MarkedRows) -> None:
        """Mark the labels that rows settle as refused, because the step of the rows was not finite.

        Raises:
            MarksFull: The marks would need more than `marks.bytes_max`; nothing is marked.
            ValueError: The columns contradict each other.
        """
        self._marks.refuse(step, rows.topic_id, *self._columns(rows))

    def acknowledge(self, step: int) -> None:
        """Record that all steps up to this one are learned."""
        self._marks.acknowledge(step)

    def forget(self, horizon_ms: int) -> None:
        """Drop pages with only older rows, and refuse older rows from now on. The horizon never decreases."""
        self._marks.forget(horizon_ms)

    def save(self, since: int = 0) -> MarksSave:
        """Return acknowledged marks that changed since the save `since`; 0 returns all of them."""
        number, entries = self._marks.save(since)
        return MarksSave(number, dict(entries))

    def load(self, entries: Mapping[str, bytes | memoryview]) -> int:
        """Apply a save to the marks loaded before, first the full save and then the later ones in order.

        Returns the `since` of the next save. After an error, discard the marks.

        Raises:
            BadRecord: The save is damaged, has another number of labels, or marks are in flight.
            MarksFull: The marks would need more than `marks.bytes_max`.
        """
        number: int = self._marks.load(list(entries.items()))
        return number

    def relabelled(self, sources: Sequence[int | None], *, numbers: int = 0) -> Marks:
        """Return the same marks for other labels: label n has the marks of label `sources[n]`; None has none.

        `numbers` are the labels that are numbers and have corrections, one bit each.

        Raises:
            MarksFull: The marks would need more than `marks.bytes_max`.
            ValueError: Marks are in flight, or a source is not a label.
        """
        moved = object.__new__(Marks)
        moved._labels, moved._numbers = len(sources), numbers
        moved._marks = self._marks.relabelled(list(sources), numbers)
        return moved

    @property
    def horizon_ms(self) -> int | None:
        """Rows older than this are refused; None if no rows are."""
        horizon_ms: int | None = self._marks.horizon_ms
        return horizon_ms

    @property
    def bytes(self) -> int:
        """Bytes of memory in use."""
        return int(self._marks.bytes)

    @property
    def pages(self) -> int:
        """Number of pages, of 1,024 records each."""
        return int(self._marks.pages)

    @property
    def inflight(self) -> int:
        """Number of items with marks that are not acknowledged yet."""
        return int(self._marks.inflight)

    @property
    def counters(self) -> Mapping[str, int]:
        """Counts since construction."""
        return dict(self._marks.counters())

    def _columns(self, rows: MarkedRows) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
        numbers: tuple[Any, ...] = (np.zeros(0, np.int64), np.zeros(0, np.float32))
        if self._numbers:
            assert rows.settle_time_ms is not None
            assert rows.numbers is not None
            numbers = rows.settle_time_ms, rows.numbers.reshape(-1)
        requests = (rows.partition, rows.offset, rows.event_time_ms)
        return requests, (rows.request_index, rows.item_index, rows.settles, rows.labels), numbers
