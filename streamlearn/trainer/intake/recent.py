"""RecentSamples: recent samples whose label windows have closed, with their final labels, for the judge of versions."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.samples import LabelColumns, SampleBatch
from streamlearn.trainer.intake.extract import join_batches, rows_of
from streamlearn.trainer.intake.identity import identity_of, request_identity
from streamlearn.trainer.intake.skips import are_skipped
from streamlearn.trainer.step import Piece
from streamlearn.versions.format.manifest import Skip

__all__ = ["RecentSamples"]

_ALL = (1 << 64) - 1
# A message stays in memory while at least one in this many of its rows is held; otherwise its held rows are copied.
# So at most this many rows are in memory for each held row.
_WHOLE_ROWS_MAX = 4


@dataclass(frozen=True, eq=False)
class _Held:
    """Held rows of one message."""

    batch: SampleBatch  # the message, or a copy of these rows
    rows: npt.NDArray[np.int64]  # int64[n]: the indexes of the rows
    learn: npt.NDArray[np.uint32]  # uint32[n]: one bit for each label that was learned from them
    settled_ms: int  # the newest of their settle times
    steps: int = 0  # the number of steps that were learned with them

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def identity(self) -> npt.NDArray[np.uint64]:
        return identity_of(self.batch, self.rows)

    def slim(self) -> _Held:
        """Return the same rows, without a message that is mostly other rows."""
        if len(self) * _WHOLE_ROWS_MAX >= len(self.batch):
            return self
        return replace(self, batch=rows_of(self.batch, self.rows), rows=np.arange(len(self)))


class RecentSamples:
    """A bounded sample of learned rows, by request, until their windows are closed.

    A hash of their identity decides which requests are held, so they are a fair sample. If more rows arrive in one
    window than `rows_max`, half of the held requests are dropped, and half of the new ones. `closed` returns batches
    of `batch_rows` rows.
    """

    def __init__(self, app: App, rows_max: int, batch_rows: int = 4_096) -> None:
        self._batch_rows = batch_rows
        window_ms = {group.name: group.window_s * 1_000 for group in app.groups}
        self._windows_ms = [window_ms[label.group] for label in app.labels]
        self._rows_max, self._lock = rows_max, threading.Lock()
        self._held: deque[_Held] = deque()
        # By label: the identities of corrected rows, each with what it was corrected to.
        self._corrected: list[dict[int, float]] = [{} for _ in app.labels]
        self._rows, self._share_max, self._clock_ms = 0, _ALL, -(1 << 62)

    def __len__(self) -> int:
        return self._rows

    def add(self, pieces: Sequence[Piece], watermark_ms: int | None, steps: int = 0) -> None:
        """Add learned pieces, the watermark that samples have reached, and the number of steps learned so far."""
        with self._lock:
            if watermark_ms is not None:
                self._clock_ms = max(self._clock_ms, watermark_ms)
            for piece in pieces:
                self._add(piece, steps)
            while self._rows > self._rows_max and self._share_max:
                if not self._drop_closed():
                    self._halve()

    def leave_out(self, skips: Sequence[Skip]) -> None:
        """Drop rows that must not be learned any more: they must not judge a version either."""
        with self._lock:
            self._keep(lambda entry: ~are_skipped(entry.batch, entry.rows, skips))

    def go_back(self, steps: int) -> None:
        """Drop the rows of later steps than a restored version has: they are learned again."""
        with self._lock:
            self._keep(lambda entry: np.full(len(entry), entry.steps <= steps))

    def closed(self) -> list[SampleBatch]:
        """Return rows with the labels whose windows are closed, newest last; each row settles only those labels."""
        with self._lock:
            held, clock_ms = list(self._held), self._clock_ms
            corrected = [
                (np.fromiter(known, np.uint64, len(known)), np.fromiter(known.values(), np.float32, len(known)))
                for known in self._corrected
            ]
        batches = (_closed(entry, self._windows_ms, corrected, clock_ms) for entry in held)
        return list(join_batches((batch for batch in batches if batch is not None), self._batch_rows))

    def _add(self, piece: Piece, steps: int) -> None:
        batch = piece.batch
        is_held = self._is_held(batch, piece.rows)
        for label, known in enumerate(self._corrected):
            is_corrected = is_held & ((piece.correct & np.uint32(1 << label)) != 0)
            if is_corrected.any():
                rows, number = piece.rows[is_corrected], batch.labels[label].number
                values = [1.0] * len(rows) if number is None else number[rows].tolist()
                known.update(zip(identity_of(batch, rows).tolist(), values, strict=True))
        learned = is_held & (piece.learn != 0)
        if learned.any():
            rows = piece.rows[learned]
            newest_ms = int(batch.settle_time_ms[rows].max())
            self._hold(_Held(batch, rows, piece.learn[learned], newest_ms, steps))

    def _is_held(self, batch: SampleBatch, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return for each of some rows whether its request is in the sample."""
        if self._share_max == _ALL:
            return np.ones(len(rows), np.bool_)
        is_sampled: npt.NDArray[np.bool_] = request_identity(batch) <= np.uint64(self._share_max)
        return is_sampled[batch.request_index[rows]]

    def _hold(self, held: _Held) -> None:
        self._held.append(held.slim())
        self._rows += len(held)

    def _drop_closed(self) -> bool:
        """Drop the oldest entry if enough closed rows remain; returns whether it did."""
        longest_ms = max(self._windows_ms)
        if len(self._held) < 2 or self._held[1].settled_ms + longest_ms > self._clock_ms:
            return False
        self._forget(self._held.popleft())
        return True

    def _halve(self) -> None:
        self._share_max //= 2
        self._keep(lambda entry: self._is_held(entry.batch, entry.rows))

    def _keep(self, chosen: Callable[[_Held], npt.NDArray[np.bool_]]) -> None:
        """Drop all rows but the chosen ones."""
        held, self._held, self._rows = self._held, deque(), 0
        for entry in held:
            kept = chosen(entry)
            if kept.any():
                self._hold(replace(entry, rows=entry.rows[kept], learn=entry.learn[kept]))
        if any(self._corrected):
            identities = {number for entry in self._held for number in entry.identity.tolist()}
            self._corrected = [{one: known[one] for one in known.keys() & identities} for known in self._corrected]

    def _forget(self, gone: _Held) -> None:
        self._rows -= len(gone)
        for known in self._corrected:
            if known:
                for identity in gone.identity.tolist():
                    known.pop(identity, None)


def _closed(
    held: _Held,
    windows_ms: Sequence[int],
    corrected: Sequence[tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32]]],
    clock_ms: int,
) -> SampleBatch | None:
    """Return the rows of an entry with labels whose windows are closed; None without any."""
    batch, rows = held.batch, held.rows
    shown_ms = batch.shown_ms(rows)
    is_closed = [
        ((held.learn & np.uint32(1 << number)) != 0) & (shown_ms + window_ms <= clock_ms)
        for number, window_ms in enumerate(windows_ms)
    ]
    has_closed = np.flatnonzero(np.logical_or.reduce(is_closed))
    if not len(has_closed):
        return None
    closed = rows_of(batch, rows[has_closed])
    labels: list[LabelColumns] = []
    for label, settles, (identities, values) in zip(closed.labels, is_closed, corrected, strict=True):
        is_positive, number = label.value != 0, label.number
        if len(identities):
            order = np.argsort(identities)
            place = np.minimum(np.searchsorted(identities[order], held.identity[has_closed]), len(order) - 1)
            is_corrected = identities[order][place] == held.identity[has_closed]
            is_positive |= is_corrected
            number = None if number is None else np.where(is_corrected, values[order][place], number)
        final = settles[has_closed]
        value = (final & is_positive).astype(np.uint8)
        labels.append(replace(label, settles=final.astype(np.uint8), value=value, number=number))
    return replace(closed, labels=tuple(labels))
