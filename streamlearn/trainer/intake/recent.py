"""Recent: samples whose windows closed lately, with the labels they ended with, for whoever judges versions."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.samples import LabelColumns, SampleBatch
from streamlearn.trainer.intake.extract import joined_to, rows_of
from streamlearn.trainer.intake.identity import identity_of, request_identity
from streamlearn.trainer.intake.skips import SkippedRows
from streamlearn.trainer.step import Piece

__all__ = ["Recent"]

_ALL = (1 << 64) - 1
# A message is held as it is while one row in so many of it is: so at most so many rows are in memory for one that is
# held. Of fewer a copy is made, and the message can go.
_WHOLE_ROWS_MAX = 4


@dataclass(frozen=True, eq=False)
class _Held:
    """Rows of one message.

    Attributes:
        batch: The message, or a copy of these rows.
        rows: int64[n]. Which of its rows.
        learn: uint32[n]. A bit for every label that was learned from them.
        settled_ms: The newest of their settle times.
    """

    batch: SampleBatch
    rows: npt.NDArray[np.int64]
    learn: npt.NDArray[np.uint32]
    settled_ms: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def identity(self) -> npt.NDArray[np.uint64]:
        return identity_of(self.batch, self.rows)

    def slim(self) -> _Held:
        """The same rows, without a message that they are little of."""
        if len(self) * _WHOLE_ROWS_MAX >= len(self.batch):
            return self
        return replace(self, batch=rows_of(self.batch, self.rows), rows=np.arange(len(self)))


class Recent:
    """A bounded sample of what was learned, by request, until its windows are closed.

    Which requests are held hangs on a hash of their origin, so that it is a fair share of all; where more come than
    may be held for as long as a window is open, half of them are let go, and half of those that come.

    Args:
        app: Whose windows.
        rows_max: The most rows that are held.
        batch_rows: How many are given at once.
    """

    def __init__(self, app: App, rows_max: int, batch_rows: int = 4_096) -> None:
        self._batch_rows = batch_rows
        window_ms = {group.name: group.window_s * 1_000 for group in app.groups}
        self._windows_ms = [window_ms[label.group] for label in app.labels]
        self._rows_max, self._lock = rows_max, threading.Lock()
        self._held: deque[_Held] = deque()
        self._corrected: list[set[int]] = [set() for _ in app.labels]
        self._rows, self._share_max, self._clock_ms = 0, _ALL, -(1 << 62)

    def __len__(self) -> int:
        return self._rows

    def add(self, pieces: Sequence[Piece], watermark_ms: int | None) -> None:
        """What was learned, and up to when samples are complete now."""
        with self._lock:
            if watermark_ms is not None:
                self._clock_ms = max(self._clock_ms, watermark_ms)
            for piece in pieces:
                self._add(piece)
            while self._rows > self._rows_max and self._share_max:
                if not self._drop_closed():
                    self._halve()

    def leave_out(self, skipped: SkippedRows) -> None:
        """Let go what is not to be learned from any more: nothing is to be judged by it either."""
        with self._lock:
            self._keep(lambda one: ~skipped.match(one.batch, one.rows))

    def closed(self) -> list[SampleBatch]:
        """Rows with the labels whose windows are closed, newest last; each settles just those."""
        with self._lock:
            held, clock_ms = list(self._held), self._clock_ms
            corrected = [np.fromiter(one, np.uint64, len(one)) for one in self._corrected]
        found = (_closed(one, self._windows_ms, corrected, clock_ms) for one in held)
        return list(joined_to((one for one in found if one is not None), self._batch_rows))

    def _add(self, piece: Piece) -> None:
        batch = piece.batch
        is_held = self._is_held(batch, piece.rows)
        for label, known in enumerate(self._corrected):
            is_corrected = is_held & ((piece.correct & np.uint32(1 << label)) != 0)
            if is_corrected.any():
                known.update(identity_of(batch, piece.rows[is_corrected]).tolist())
        learned = is_held & (piece.learn != 0)
        if learned.any():
            rows = piece.rows[learned]
            newest_ms = int(batch.settle_time_ms[rows].max())
            self._hold(_Held(batch, rows, piece.learn[learned], newest_ms))

    def _is_held(self, batch: SampleBatch, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether the requests of some rows are among those that are held."""
        if self._share_max == _ALL:
            return np.ones(len(rows), np.bool_)
        found: npt.NDArray[np.bool_] = request_identity(batch) <= np.uint64(self._share_max)
        return found[batch.request_index[rows]]

    def _hold(self, held: _Held) -> None:
        self._held.append(held.slim())
        self._rows += len(held)

    def _drop_closed(self) -> bool:
        """Let the oldest go, if that leaves enough that is closed; whether it did."""
        longest_ms = max(self._windows_ms)
        if len(self._held) < 2 or self._held[1].settled_ms + longest_ms > self._clock_ms:
            return False
        self._forget(self._held.popleft())
        return True

    def _halve(self) -> None:
        self._share_max //= 2
        self._keep(lambda one: self._is_held(one.batch, one.rows))

    def _keep(self, chosen: Callable[[_Held], npt.NDArray[np.bool_]]) -> None:
        """Let all others go."""
        held, self._held, self._rows = self._held, deque(), 0
        for one in held:
            kept = chosen(one)
            if kept.any():
                self._hold(replace(one, rows=one.rows[kept], learn=one.learn[kept]))
        if any(self._corrected):
            there = {number for one in self._held for number in one.identity.tolist()}
            self._corrected = [known & there for known in self._corrected]

    def _forget(self, gone: _Held) -> None:
        self._rows -= len(gone)
        for known in self._corrected:
            if known:
                known.difference_update(gone.identity.tolist())


def _closed(
    held: _Held, windows_ms: Sequence[int], corrected: Sequence[npt.NDArray[np.uint64]], clock_ms: int
) -> SampleBatch | None:
    """The rows of a message with labels whose windows are closed; None without any."""
    batch, rows = held.batch, held.rows
    shown_ms = batch.requests.event_time_ms[batch.request_index[rows]]
    is_closed = [
        ((held.learn & np.uint32(1 << number)) != 0) & (shown_ms + window_ms <= clock_ms)
        for number, window_ms in enumerate(windows_ms)
    ]
    mine = np.flatnonzero(np.logical_or.reduce(is_closed))
    if not len(mine):
        return None
    found = rows_of(batch, rows[mine])
    labels: list[LabelColumns] = []
    for label, settles, known in zip(found.labels, is_closed, corrected, strict=True):
        is_positive = label.value != 0
        if len(known):
            is_positive |= np.isin(held.identity[mine], known)
        closed = settles[mine]
        labels.append(replace(label, settles=closed.astype(np.uint8), value=(closed & is_positive).astype(np.uint8)))
    return replace(found, labels=tuple(labels))
