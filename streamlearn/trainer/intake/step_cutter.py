"""Stepping: messages cut into steps of the rows that are still to be learned. It reads no topic and learns nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from streamlearn.marks import MarkedRows, Settled
from streamlearn.samples import SampleBatch
from streamlearn.trainer.intake.message import Message, Reached
from streamlearn.trainer.intake.skips import SkippedRows
from streamlearn.trainer.step import Piece, Step

__all__ = ["Counts", "Refused", "Remembers", "Stepping", "bits_of", "marked_rows"]

Int64s = npt.NDArray[np.int64]
Refused: TypeAlias = Callable[[Int64s, npt.NDArray[np.uint32]], None]
"""Called for rows that are never learned: the times they were shown, and their labels, one bit each."""


class Remembers(Protocol):
    """What is known of rows, as `Marks` keep it."""

    def settle(self, step: int, rows: MarkedRows) -> Settled:
        """What of some rows is to be learned."""
        ...

    def refuse(self, step: int, rows: MarkedRows) -> None:
        """Rows that are never learned."""
        ...


@dataclass
class Counts:
    """What became of rows since the beginning.

    Attributes:
        read: Rows that were read.
        dropped: Rows all of whose labels were known.
        old: Rows from before the horizon, which were refused.
        skipped: Rows that are not to be learned from.
    """

    read: int = 0
    dropped: int = 0
    old: int = 0
    skipped: int = 0


class Stepping:
    """Fills steps with rows, in the order they come.

    A step has `rows_max` rows that are learned, whatever was left out between them: so the same rows make the same
    steps, whether or not some were learned before a restart.

    Args:
        marks: What was learned.
        rows_max: Rows of a step.
        skipped: Which rows are not learned from.
        horizon_ms: How long before the watermark a row may have been shown.
        refused: Told of rows that came too late to be learned.
    """

    def __init__(
        self,
        marks: Remembers,
        rows_max: int,
        skipped: SkippedRows,
        horizon_ms: int,
        *,
        refused: Refused = lambda event_time_ms, labels: None,
    ) -> None:
        self._refused = refused
        self._marks, self._rows_max, self._skipped, self._horizon_ms = marks, rows_max, skipped, horizon_ms
        self.counts = Counts()
        self._number = 1
        self._pieces: list[Piece] = []
        self._held = self._read = 0
        self._has_more = False

    @property
    def has_more(self) -> bool:
        """Whether messages, be they without rows, go further than the last step does."""
        return self._has_more

    @property
    def has_rows(self) -> bool:
        """Whether rows wait for a step to fill."""
        return self._held > 0

    def add(self, message: Message, before: Reached, after: Reached) -> Iterator[Step]:
        """The steps that a message fills.

        Args:
            message: The next message.
            before: Up to where messages are learned while some rows of it are not.
            after: Up to where they are once all its rows are.
        """
        batch = message.batch
        at, rows = 0, len(batch)
        self._has_more = True
        while at < rows:
            end = min(rows, at + self._rows_max - self._held)
            self._settle(batch, at, end, before)
            at = end
            if self._held == self._rows_max:
                step = self.flush(after if at == rows else before)
                self._has_more = at < rows
                yield step

    def flush(self, reached: Reached) -> Step:
        """What there is so far, as a step.

        Args:
            reached: Up to where messages are learned with it.
        """
        step = Step(self._number, tuple(self._pieces), reached, self._read)
        self._number += 1
        self._pieces, self._held, self._read, self._has_more = [], 0, 0, False
        return step

    def _settle(self, batch: SampleBatch, begin: int, end: int, reached: Reached) -> None:
        """Keep what of some rows is to be learned."""
        rows: Int64s = np.arange(begin, end)
        self._read += end - begin
        self.counts.read += end - begin
        watermark_ms = reached.watermark_ms
        if watermark_ms is not None:
            shown_ms = batch.requests.event_time_ms[batch.request_index[rows]]
            is_old = shown_ms < watermark_ms - self._horizon_ms
            if is_old.any():
                self._refuse(marked_rows(batch, rows[is_old]))
                rows = rows[~is_old]
        is_skipped = self._skipped.match(batch, rows)
        if is_skipped.any():
            self.counts.skipped += int(is_skipped.sum())
            self._marks.refuse(self._number, marked_rows(batch, rows[is_skipped]))
            rows = rows[~is_skipped]
        if not len(rows):
            return
        settled = self._marks.settle(self._number, marked_rows(batch, rows))
        kept = np.flatnonzero((settled.learn | settled.correct) != 0)
        old = int(settled.old.sum())
        if old:
            self._refuse(marked_rows(batch, rows[settled.old != 0]))
        self.counts.dropped += len(rows) - len(kept) - old
        if len(kept):
            self._pieces.append(Piece(batch, rows[kept], settled.learn[kept], settled.correct[kept]))
            self._held += len(kept)

    def _refuse(self, rows: MarkedRows) -> None:
        """Count rows that came too late to be learned."""
        self.counts.old += len(rows.settles)
        self._refused(rows.event_time_ms[rows.request_index], rows.settles)


def marked_rows(batch: SampleBatch, rows: Int64s) -> MarkedRows:
    """Rows of a message as marks take them."""
    requests = batch.requests
    return MarkedRows(
        topic_id=batch.header.events_topic_id,
        partition=requests.partition,
        offset=requests.offset,
        event_time_ms=requests.event_time_ms,
        request_index=batch.request_index[rows],
        item_index=batch.item_index[rows],
        settles=bits_of([label.settles for label in batch.labels], rows),
        labels=bits_of([label.value for label in batch.labels], rows),
    )


def bits_of(columns: Sequence[npt.NDArray[np.uint8]], rows: Int64s) -> npt.NDArray[np.uint32]:
    """A bit for each column, 1 where it is not 0."""
    bits = np.zeros(len(rows), np.uint32)
    for number, column in enumerate(columns):
        bits |= (column[rows] != 0).astype(np.uint32) << np.uint32(number)
    return bits
