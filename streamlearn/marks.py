"""Marks: what a model has learned of which (identity, label), so that a sample that comes again is learned once.

They know no trainer and no store: steps are numbers, saves are named bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """N rows of U requests. A row's identity is the topic, its request's partition and offset, and its item index.

    Attributes:
        topic_id: The id of the impressions topic.
        partition: int32[U]. Identity.
        offset: int64[U]. Identity.
        event_time_ms: int64[U]. When it was shown.
        request_index: int32[N]. The request of each row.
        item_index: int32[N]. Identity.
        settles: uint32[N]. A bit for every label the row settles.
        labels: uint32[N]. A bit for those of them that are positive.
    """

    topic_id: str
    partition: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    event_time_ms: npt.NDArray[np.int64]
    request_index: npt.NDArray[np.int32]
    item_index: npt.NDArray[np.int32]
    settles: Uint32s
    labels: Uint32s

    def __len__(self) -> int:
        return len(self.request_index)


@dataclass(frozen=True, eq=False)
class Settled:
    """What to do with rows. A label in neither mask was known, or refused: it is dropped.

    Attributes:
        learn: uint32[N]. Labels to learn.
        correct: uint32[N]. Labels that were learned as negative and are positive.
        old: uint8[N]. 1: the row is from before the horizon, and refused.
    """

    learn: Uint32s
    correct: Uint32s
    old: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class MarksSave:
    """Learned marks that changed since a save.

    Attributes:
        number: To be named as `since` by the next save, once this one is committed.
        entries: Named bytes, for a version's marks file.
    """

    number: int
    entries: Mapping[str, bytes]


class Marks:
    """Two bits for every (identity, label): none < negative < positive, or refused.

    Onto none a label is learned, and positive onto negative it is learned as a correction. A step's marks are in
    flight from `settle` until `acknowledge`, and known to every later step; a save has those alone that were
    acknowledged. Rows of pages that were forgotten would be learned again, so they are refused instead.

    Not for two threads at once.

    Args:
        labels: How many labels there are.
        settings: Bounds.

    Examples:
        >>> import numpy as np
        >>> from streamlearn.marks import MarkedRows, Marks
        >>> marks = Marks(labels=2)
        >>> def row(settles, labels):
        ...     one = np.zeros(1, np.int32)
        ...     masks = np.array([settles], np.uint32), np.array([labels], np.uint32)
        ...     return MarkedRows("topic", one, np.array([5120]), np.array([0]), one, one + 9, *masks)
        >>> marks.settle(1, row(0b11, 0b01)).learn.tolist()
        [3]
        >>> settled = marks.settle(2, row(0b11, 0b11))
        >>> settled.learn.tolist(), settled.correct.tolist()
        ([0], [2])
        >>> marks.acknowledge(2)
        >>> sorted(marks.save().entries)
        ['0-0', 'head']
    """

    def __init__(self, labels: int, settings: MarksSettings | None = None) -> None:
        settings = settings or MarksSettings()
        self._marks: Any = native.Marks(labels, settings.record_items_max, settings.bytes_max)

    def settle(self, step: int, rows: MarkedRows) -> Settled:
        """Decide what of some rows a step is to learn, and mark it in flight.

        Args:
            step: The step that will learn them; steps never go back.
            rows: The rows. One identity may come several times.

        Raises:
            MarksFull: More would be held than `marks.bytes_max`; nothing is marked.
            ValueError: The columns contradict each other.
        """
        return Settled(*self._marks.settle(step, rows.topic_id, *_columns(rows)))

    def refuse(self, step: int, rows: MarkedRows) -> None:
        """Mark what rows settle as refused: those that are skipped, or made what is no number.

        Raises:
            MarksFull: More would be held than `marks.bytes_max`; nothing is marked.
            ValueError: The columns contradict each other.
        """
        self._marks.refuse(step, rows.topic_id, *_columns(rows))

    def acknowledge(self, step: int) -> None:
        """All steps up to this one are learned."""
        self._marks.acknowledge(step)

    def forget(self, horizon_ms: int) -> None:
        """Let go of pages all of whose rows are older; older rows are refused from now on. It never goes back."""
        self._marks.forget(horizon_ms)

    def save(self, since: int = 0) -> MarksSave:
        """What was acknowledged and changed since a save; everything since 0. What is in flight is not in it."""
        number, entries = self._marks.save(since)
        return MarksSave(number, dict(entries))

    def load(self, entries: Mapping[str, bytes | memoryview]) -> int:
        """Put a save on top of what was loaded before: the whole one first, then those since, in order.

        Returns:
            The number that a save names as `since` for what changed after this.

        Raises:
            BadRecord: It is no save, was damaged, is of another number of labels, or something is in flight. The
                marks are of no use then.
            MarksFull: More would be held than `marks.bytes_max`. The marks are of no use then either.
        """
        number: int = self._marks.load(list(entries.items()))
        return number

    @property
    def horizon_ms(self) -> int | None:
        """Rows older than this are refused; None: none are."""
        found: int | None = self._marks.horizon_ms
        return found

    @property
    def bytes(self) -> int:
        """Bytes that are held."""
        return int(self._marks.bytes)

    @property
    def pages(self) -> int:
        """Pages that are held, each of 1,024 records."""
        return int(self._marks.pages)

    @property
    def inflight(self) -> int:
        """Marks of items that are not acknowledged yet."""
        return int(self._marks.inflight)

    @property
    def counters(self) -> Mapping[str, int]:
        """What was counted since they were made."""
        return dict(self._marks.counters())


def _columns(rows: MarkedRows) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    requests = (rows.partition, rows.offset, rows.event_time_ms)
    return requests, (rows.request_index, rows.item_index, rows.settles, rows.labels)
