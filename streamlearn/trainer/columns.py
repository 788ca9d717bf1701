"""StepColumns: the pieces of a step, joined into one set of arrays, and Inputs: what of them the model learns from.

It pulls no rows and learns nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from streamlearn.samples import FeatureColumns, SampleBatch, SegmentColumns, SlotColumns, renumbered
from streamlearn.trainer.intake.identity import identity_of
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.intake.step_cutter import bits_of, numbers_of
from streamlearn.trainer.step import Piece, Step

__all__ = ["Inputs", "StepColumns", "columns_in", "columns_of", "join_features"]

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Uint32s = npt.NDArray[np.uint32]
Uint64s = npt.NDArray[np.uint64]
Float32s = npt.NDArray[np.float32]
Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, eq=False)
class StepColumns:
    """The columns of a step with U requests, N rows and L labels. Masks have one bit for each label."""

    step: Step
    requests: int  # U
    user: FeatureColumns  # one entry a request
    item: FeatureColumns  # one entry a row
    request_index: Int32s  # int32[N]: the request of each row
    learn: Uint32s  # uint32[N]: labels to learn
    correct: Uint32s  # uint32[N]: labels to correct
    positive: Uint32s  # uint32[N]: positive labels
    known: Uint32s  # uint32[N]: labels known to be positive, by earlier rows too
    rates: Float32s  # float32[N, L]: the share of negatives kept
    weights: Float32s  # float32[N, L]
    numbers: Float32s | None  # float32[N, L]: the numbers of labels that are; None if none is one
    before: Float32s | None  # float32[N, L]: of corrected numbers, what was learned; None if no number has corrections
    identity: Uint64s  # uint64[N]: a hash of each row's identity
    event_time_ms: Int64s  # int64[N]: impression times
    segments: tuple[SegmentColumns, ...]  # one entry a row each, texts of all pieces merged

    def __len__(self) -> int:
        return len(self.request_index)

    def users(self, slots: Sequence[str]) -> Uint64s:
        """Return who each row was shown to, by the slots that tell users apart; without any, all rows differ."""
        if not slots:
            return self.identity
        keys = [self.user.slots[name].keys for name in slots]
        users: Uint64s = np.bitwise_xor.reduce(keys, axis=0)[self.request_index]
        return users

    def keys(self, slot: str) -> Uint64s:
        """Return the keys of a slot with one value, uint64[N]."""
        return self.item.slots[slot].keys if slot in self.item.slots else self.user.slots[slot].keys[self.request_index]

    @property
    def served(self) -> Float32s:
        """The scores that nodes answered, float32[N, L]; NaN if none did. Made when asked for: learning needs none."""
        return _by_label(self.step.pieces, "served_score")


@dataclass(frozen=True, eq=False)
class Inputs:
    """What is learned from N rows of U requests, before their keys have become numbers."""

    requests: int  # U
    user: FeatureColumns  # one entry a request
    item: FeatureColumns  # one entry a row
    request_index: Int32s  # int32[N]: the request of each row
    targets: Float32s  # float32[N, labels, 4], see `TARGETS`

    def __len__(self) -> int:
        return len(self.request_index)


def columns_of(step: Step) -> StepColumns:
    """Join the rows of a step; each piece contributes the requests of its rows."""
    pieces = step.pieces
    positive = [bits_of([label.value for label in piece.batch.labels], piece.rows) for piece in pieces]
    selected = [renumbered(piece.batch.request_index[piece.rows], len(piece.batch.requests)) for piece in pieces]
    indexes, begin = [], 0
    for index, requests in selected:
        indexes.append(index + begin)
        begin += len(requests)
    return StepColumns(
        step=step,
        requests=begin,
        user=join_features(
            [piece.batch.user.take(_as_slice(rows)) for piece, (_, rows) in zip(pieces, selected, strict=True)]
        ),
        item=join_features([piece.batch.item.take(_as_slice(piece.rows)) for piece in pieces]),
        request_index=_concatenated(indexes, np.int32).astype(np.int32, copy=False),
        learn=_concatenated([piece.learn for piece in pieces], np.uint32),
        correct=_concatenated([piece.correct for piece in pieces], np.uint32),
        positive=_concatenated(positive, np.uint32),
        known=_concatenated(
            [own if piece.known is None else piece.known for own, piece in zip(positive, pieces, strict=True)],
            np.uint32,
        ),
        rates=_by_label(pieces, "sample_rate"),
        weights=_by_label(pieces, "weight"),
        numbers=_joined([numbers_of(piece.batch, piece.rows) for piece in pieces]),
        before=_joined([piece.before for piece in pieces]),
        identity=_concatenated([identity_of(piece.batch, piece.rows) for piece in pieces], np.uint64),
        event_time_ms=_concatenated([piece.batch.shown_ms(piece.rows) for piece in pieces], np.int64),
        segments=_segments(pieces),
    )


def columns_in(batch: SampleBatch, rows: Int64s) -> StepColumns:
    """Return some rows of a message, of which no label is to be learned."""
    no_labels = np.zeros(len(rows), np.uint32)
    return columns_of(Step(1, (Piece(batch, rows, no_labels, no_labels),), Reached((), ()), len(rows)))


def _as_slice(rows: Int64s) -> Int64s | slice:
    """Return contiguous rows as a slice, others unchanged."""
    if not len(rows):
        return rows
    begin, end = int(rows[0]), int(rows[-1]) + 1
    return slice(begin, end) if end - begin == len(rows) else rows


def join_features(sides: Sequence[FeatureColumns]) -> FeatureColumns:
    """Concatenate the rows of several sides."""
    if len(sides) == 1:
        return sides[0]
    first = sides[0] if sides else FeatureColumns({}, {})
    return FeatureColumns(
        slots={name: _join_slot([side.slots[name] for side in sides]) for name in first.slots},
        dense={name: np.concatenate([side.dense[name] for side in sides]) for name in first.dense},
    )


def _join_slot(slots: Sequence[SlotColumns]) -> SlotColumns:
    keys = np.concatenate([slot.keys for slot in slots])
    if slots[0].offsets is None:
        return SlotColumns(keys)
    begins = np.cumsum([0, *(len(slot.keys) for slot in slots[:-1])])
    inner = [slot.offsets[1:] + begin for slot, begin in zip(slots, begins, strict=True) if slot.offsets is not None]
    offsets = np.concatenate([np.zeros(1, np.int32), *inner]).astype(np.int32)
    weights = [slot.weights for slot in slots if slot.weights is not None]
    return SlotColumns(keys, offsets, np.concatenate(weights) if weights else None)


def _concatenated(arrays: Sequence[npt.NDArray[Number]], kind: type[Number]) -> npt.NDArray[Number]:
    return arrays[0] if len(arrays) == 1 else np.concatenate([*arrays, np.zeros(0, kind)])


def _joined(parts: Sequence[Float32s | None]) -> Float32s | None:
    """Concatenate columns of labels; None without any, or without labels."""
    columns = [part for part in parts if part is not None]
    return np.concatenate(columns) if columns and columns[0].shape[1] else None


def _by_label(pieces: Sequence[Piece], name: str) -> Float32s:
    """Return a column of each label, float32[N, L]."""
    parts = [np.stack([getattr(label, name)[piece.rows] for label in piece.batch.labels], axis=1) for piece in pieces]
    return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)


def _segments(pieces: Sequence[Piece]) -> tuple[SegmentColumns, ...]:
    """Join the segments of all pieces, with one code a text."""
    joined = []
    for number, first in enumerate(pieces[0].batch.segments if pieces else ()):
        codes_of: dict[str, int] = {}
        codes = []
        for piece in pieces:
            segment = piece.batch.segments[number]
            known = np.array([codes_of.setdefault(text, len(codes_of)) for text in segment.texts], np.int32)
            codes.append(known[segment.codes[piece.rows]])
        joined.append(SegmentColumns(first.name, tuple(codes_of), np.concatenate(codes)))
    return tuple(joined)
