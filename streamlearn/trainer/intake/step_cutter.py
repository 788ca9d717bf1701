"""StepCutter: cuts messages into steps of rows that are still to be learned. It reads no topic and learns nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from streamlearn.marks import MarkedRows
from streamlearn.samples import SampleBatch
from streamlearn.trainer.intake.message import Message, Reached
from streamlearn.trainer.intake.skips import are_skipped
from streamlearn.trainer.shared_marks import SharedMarks
from streamlearn.trainer.step import Piece, Step
from streamlearn.versions.format.manifest import Skip

__all__ = ["Counts", "Refused", "StepCutter", "bits_of", "marked_rows", "numbers_of"]

Int64s = npt.NDArray[np.int64]
Refused: TypeAlias = Callable[[Int64s, npt.NDArray[np.uint32]], None]
"""Called for rows that are never learned, with their impression times and their labels, one bit each."""


@dataclass
class Counts:
    """Row totals by outcome."""

    read: int = 0
    dropped: int = 0  # rows whose labels were all known
    old: int = 0  # rows from before the horizon, which were refused
    skipped: int = 0  # rows that a manifest excludes


class StepCutter:
    """Fills steps with rows in their order.

    A full step has `rows_max` learned rows, however many rows between them were left out. So the same rows make the
    same steps, even if some were learned before a restart. A row older than `horizon_ms` before the watermark is
    refused; `on_refused` is called for it. `has_more` says whether messages, with rows or without, were added after the
    last step.
    """

    def __init__(
        self,
        marks: SharedMarks,
        rows_max: int,
        skips: Sequence[Skip],
        horizon_ms: int,
        *,
        on_refused: Refused = lambda event_time_ms, labels: None,
    ) -> None:
        self._on_refused = on_refused
        self._marks, self._rows_max, self._skips, self._horizon_ms = marks, rows_max, tuple(skips), horizon_ms
        self.counts = Counts()
        self._number = 1
        self._pieces: list[Piece] = []
        self._waiting = self._read = 0
        self.has_more = False

    @property
    def has_rows(self) -> bool:
        """Whether rows wait for a step to fill up."""
        return self._waiting > 0

    def add(self, message: Message, before: Reached, after: Reached) -> Iterator[Step]:
        """Yield the steps that a message fills.

        `before` is the position until all rows of the message are learned, `after` the one from then on.
        """
        batch = message.batch
        begin, rows = 0, len(batch)
        self.has_more = True
        while begin < rows:
            end = min(rows, begin + self._rows_max - self._waiting)
            self._settle(batch, begin, end, before)
            begin = end
            if self._waiting == self._rows_max:
                step = self.flush(after if begin == rows else before)
                self.has_more = begin < rows
                yield step

    def flush(self, reached: Reached) -> Step:
        """Return the waiting rows as a step, after which messages are learned up to `reached`."""
        step = Step(self._number, tuple(self._pieces), reached, self._read)
        self._number += 1
        self._pieces, self._waiting, self._read, self.has_more = [], 0, 0, False
        return step

    def _settle(self, batch: SampleBatch, begin: int, end: int, reached: Reached) -> None:
        """Append the rows of a range that must be learned to the step."""
        rows: Int64s = np.arange(begin, end)
        self._read += end - begin
        self.counts.read += end - begin
        watermark_ms = reached.watermark_ms
        if watermark_ms is not None:
            is_old = batch.shown_ms(rows) < watermark_ms - self._horizon_ms
            if is_old.any():
                self._refuse(marked_rows(batch, rows[is_old]))
                rows = rows[~is_old]
        is_skipped = are_skipped(batch, rows, self._skips)
        if is_skipped.any():
            self.counts.skipped += int(is_skipped.sum())
            # They need no marks: a skip is never lost, and matches them again.
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
            learn, correct, known = (mask[kept] for mask in (settled.learn, settled.correct, settled.positive))
            self._append(Piece(batch, rows[kept], learn, correct, known, settled.before[kept]))
            self._waiting += len(kept)

    def _append(self, piece: Piece) -> None:
        """Append rows to the step. It has each message once: the rows of a request then are those of one user."""
        if self._pieces and self._pieces[-1].batch is piece.batch:
            piece = self._pieces.pop().followed_by(piece)
        self._pieces.append(piece)

    def _refuse(self, rows: MarkedRows) -> None:
        """Count rows that are too old to be learned."""
        self.counts.old += len(rows.settles)
        self._on_refused(rows.event_time_ms[rows.request_index], rows.settles)


def marked_rows(batch: SampleBatch, rows: Int64s) -> MarkedRows:
    """Return rows of a message in the form that marks take."""
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
        settle_time_ms=batch.settle_time_ms[rows],
        numbers=numbers_of(batch, rows),
    )


def numbers_of(batch: SampleBatch, rows: Int64s) -> npt.NDArray[np.float32] | None:
    """Return the numbers of some rows, float32[n, labels], 0 for labels that are none; None if no label is a number."""
    if all(label.number is None for label in batch.labels):
        return None
    none = np.zeros(len(rows), np.float32)
    return np.stack([none if label.number is None else label.number[rows] for label in batch.labels], axis=1)


def bits_of(columns: Sequence[npt.NDArray[np.uint8]], rows: Int64s) -> npt.NDArray[np.uint32]:
    """Return one bit for each column, set where the column is not 0."""
    bits = np.zeros(len(rows), np.uint32)
    for number, column in enumerate(columns):
        bits |= (column[rows] != 0).astype(np.uint32) << np.uint32(number)
    return bits
