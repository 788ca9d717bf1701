"""Recent: samples whose windows closed lately, with the labels they ended with, for whoever judges versions."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.samples import LabelColumns, SampleBatch
from streamlearn.trainer.extract import joined_to, rows_of
from streamlearn.trainer.identity import identity_of, request_identity
from streamlearn.trainer.step import Piece

__all__ = ["Recent"]

_ALL = (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class _Held:
    """Rows of one message.

    Attributes:
        batch: The rows.
        identity: uint64[n].
        learn: uint32[n]. A bit for every label that was learned from them.
        settled_ms: The newest of their settle times.
    """

    batch: SampleBatch
    identity: npt.NDArray[np.uint64]
    learn: npt.NDArray[np.uint32]
    settled_ms: int


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
            while self._rows > self._rows_max and not self._drop_closed():
                self._halve()

    def closed(self) -> list[SampleBatch]:
        """Rows with the labels whose windows are closed, newest last; each settles just those."""
        with self._lock:
            held, clock_ms = list(self._held), self._clock_ms
            corrected = [np.fromiter(one, np.uint64, len(one)) for one in self._corrected]
        found = (_closed(one, self._windows_ms, corrected, clock_ms) for one in held)
        return list(joined_to((one for one in found if one is not None), self._batch_rows))

    def _add(self, piece: Piece) -> None:
        batch = piece.batch
        is_held = (request_identity(batch) <= np.uint64(self._share_max))[batch.request_index[piece.rows]]
        for label, known in enumerate(self._corrected):
            is_corrected = is_held & ((piece.correct & np.uint32(1 << label)) != 0)
            known.update(identity_of(batch, piece.rows[is_corrected]).tolist())
        learned = is_held & (piece.learn != 0)
        rows = piece.rows[learned]
        if len(rows):
            newest_ms = int(batch.settle_time_ms[rows].max())
            held = _Held(rows_of(batch, rows), identity_of(batch, rows), piece.learn[learned], newest_ms)
            self._held.append(held)
            self._rows += len(rows)

    def _drop_closed(self) -> bool:
        """Let the oldest go, if that leaves enough that is closed; whether it did."""
        longest_ms = max(self._windows_ms)
        if len(self._held) < 2 or self._held[1].settled_ms + longest_ms > self._clock_ms:
            return False
        self._forget(self._held.popleft())
        return True

    def _halve(self) -> None:
        self._share_max //= 2
        held, self._held, self._rows = self._held, deque(), 0
        for one in held:
            kept = (request_identity(one.batch) <= np.uint64(self._share_max))[one.batch.request_index]
            rows = np.flatnonzero(kept)
            if len(rows):
                self._held.append(_Held(rows_of(one.batch, rows), one.identity[rows], one.learn[rows], one.settled_ms))
                self._rows += len(rows)
        there = {number for one in self._held for number in one.identity.tolist()}
        self._corrected = [known & there for known in self._corrected]

    def _forget(self, gone: _Held) -> None:
        self._rows -= len(gone.batch)
        for known in self._corrected:
            known.difference_update(gone.identity.tolist())


def _closed(
    held: _Held, windows_ms: Sequence[int], corrected: Sequence[npt.NDArray[np.uint64]], clock_ms: int
) -> SampleBatch | None:
    """The rows of a message with labels whose windows are closed; None without any."""
    batch = held.batch
    shown_ms = batch.requests.event_time_ms[batch.request_index]
    labels: list[LabelColumns] = []
    any_closed = np.zeros(len(batch), np.bool_)
    for number, (label, window_ms, known) in enumerate(zip(batch.labels, windows_ms, corrected, strict=True)):
        is_closed = ((held.learn & np.uint32(1 << number)) != 0) & (shown_ms + window_ms <= clock_ms)
        is_positive = is_closed & ((label.value != 0) | np.isin(held.identity, known))
        labels.append(replace(label, settles=is_closed.astype(np.uint8), value=is_positive.astype(np.uint8)))
        any_closed |= is_closed
    if not any_closed.any():
        return None
    return rows_of(replace(batch, labels=tuple(labels)), np.flatnonzero(any_closed))
