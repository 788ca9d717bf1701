"""Columns: a step's pieces as one set of arrays. It pulls nothing and learns nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from streamlearn.samples import FeatureColumns, SampleBatch, SegmentColumns, SlotColumns
from streamlearn.trainer.intake.identity import identity_of
from streamlearn.trainer.step import Piece, Step

__all__ = ["StepColumns", "columns_of", "join_features", "requests_of", "take_features"]

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Uint32s = npt.NDArray[np.uint32]
Uint64s = npt.NDArray[np.uint64]
Float32s = npt.NDArray[np.float32]
Rows: TypeAlias = "Int64s | slice"
Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, eq=False)
class StepColumns:
    """A step. U requests, N rows, L labels.

    Attributes:
        step: What it is of.
        requests: U.
        user: The user side's features, by request.
        item: The item side's features, by row.
        request_index: int32[N]. The request of each row.
        learn: uint32[N]. A bit for every label that is learned.
        correct: uint32[N]. A bit for every label that is corrected.
        positive: uint32[N]. A bit for every label that is positive.
        rates: float32[N, L]. The share of negatives that was kept.
        weights: float32[N, L].
        identity: uint64[N]. A hash of each row's identity.
        event_time_ms: int64[N]. When each was shown.
        segments: One after the other, as samples have them.
    """

    step: Step
    requests: int
    user: FeatureColumns
    item: FeatureColumns
    request_index: Int32s
    learn: Uint32s
    correct: Uint32s
    positive: Uint32s
    rates: Float32s
    weights: Float32s
    identity: Uint64s
    event_time_ms: Int64s
    segments: tuple[SegmentColumns, ...]

    def __len__(self) -> int:
        return len(self.request_index)


def columns_of(step: Step) -> StepColumns:
    """Bring the rows of a step together; its requests are those of its messages, each once a piece."""
    chosen = [requests_of(piece.batch, piece.rows) for piece in step.pieces]
    indexes, at = [], 0
    for requests, index in chosen:
        indexes.append(index + at)
        at += len(requests)
    pieces = step.pieces
    labels = range(len(pieces[0].batch.labels)) if pieces else range(0)
    return StepColumns(
        step=step,
        requests=at,
        user=join_features(
            [take_features(one.batch.user, _run_of(wanted)) for one, (wanted, _) in zip(pieces, chosen, strict=True)]
        ),
        item=join_features([take_features(one.batch.item, _run_of(one.rows)) for one in pieces]),
        request_index=np.concatenate([*indexes, np.zeros(0, np.int32)]).astype(np.int32),
        learn=_end_to_end([one.learn for one in pieces], np.uint32),
        correct=_end_to_end([one.correct for one in pieces], np.uint32),
        positive=_end_to_end([_positive(one) for one in pieces], np.uint32),
        rates=_by_label(pieces, labels, lambda batch, label: batch.labels[label].sample_rate),
        weights=_by_label(pieces, labels, lambda batch, label: batch.labels[label].weight),
        identity=_end_to_end([identity_of(one.batch, one.rows) for one in pieces], np.uint64),
        event_time_ms=_end_to_end([_shown_ms(one) for one in pieces], np.int64),
        segments=_segments(pieces),
    )


def take_features(features: FeatureColumns, rows: Rows) -> FeatureColumns:
    """Some rows of a side's features; of a slice, views."""
    return FeatureColumns(
        slots={name: _take_slot(slot, rows) for name, slot in features.slots.items()},
        dense={name: values[rows] for name, values in features.dense.items()},
    )


def requests_of(batch: SampleBatch, rows: Int64s) -> tuple[Int64s, Int32s]:
    """The requests of some rows, growing, and which of them each row is of."""
    of = batch.request_index[rows]
    if len(of) and (of[1:] >= of[:-1]).all():
        is_new = np.concatenate(([True], of[1:] != of[:-1]))
        return of[is_new].astype(np.int64), np.cumsum(is_new, dtype=np.int32) - np.int32(1)
    requests, index = np.unique(of, return_inverse=True)
    return requests.astype(np.int64), index.astype(np.int32)


def _run_of(rows: Int64s) -> Rows:
    """The same rows as a slice where they lie side by side."""
    if not len(rows):
        return rows
    begin, end = int(rows[0]), int(rows[-1]) + 1
    return slice(begin, end) if end - begin == len(rows) else rows


def _take_slot(slot: SlotColumns, rows: Rows) -> SlotColumns:
    if slot.offsets is None:
        return SlotColumns(slot.keys[rows])
    if isinstance(rows, slice):
        ends = slot.offsets[rows.start : rows.stop + 1]
        taken = slice(int(ends[0]), int(ends[-1]))
        weights = None if slot.weights is None else slot.weights[taken]
        return SlotColumns(slot.keys[taken], ends - ends[0], weights)
    begins = slot.offsets[rows]
    lengths = slot.offsets[rows + 1] - begins
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    places = np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])
    return SlotColumns(slot.keys[places], offsets, None if slot.weights is None else slot.weights[places])


def join_features(sides: Sequence[FeatureColumns]) -> FeatureColumns:
    """The rows of several, one after the other."""
    if len(sides) == 1:
        return sides[0]
    first = sides[0] if sides else FeatureColumns({}, {})
    return FeatureColumns(
        slots={name: _joined_slot([side.slots[name] for side in sides]) for name in first.slots},
        dense={name: np.concatenate([side.dense[name] for side in sides]) for name in first.dense},
    )


def _joined_slot(slots: Sequence[SlotColumns]) -> SlotColumns:
    keys = np.concatenate([slot.keys for slot in slots])
    if slots[0].offsets is None:
        return SlotColumns(keys)
    begins = np.cumsum([0, *(len(slot.keys) for slot in slots[:-1])])
    inner = [slot.offsets[1:] + begin for slot, begin in zip(slots, begins, strict=True) if slot.offsets is not None]
    offsets = np.concatenate([np.zeros(1, np.int32), *inner]).astype(np.int32)
    weights = [slot.weights for slot in slots if slot.weights is not None]
    return SlotColumns(keys, offsets, np.concatenate(weights) if weights else None)


def _end_to_end(arrays: Sequence[npt.NDArray[Number]], kind: type[Number]) -> npt.NDArray[Number]:
    return np.concatenate([*arrays, np.zeros(0, kind)])


def _positive(piece: Piece) -> Uint32s:
    bits = np.zeros(len(piece), np.uint32)
    for number, label in enumerate(piece.batch.labels):
        bits |= (label.value[piece.rows] != 0).astype(np.uint32) << np.uint32(number)
    return bits


def _shown_ms(piece: Piece) -> Int64s:
    return piece.batch.requests.event_time_ms[piece.batch.request_index[piece.rows]]


def _by_label(
    pieces: Sequence[Piece], labels: Iterable[int], column: Callable[[SampleBatch, int], Float32s]
) -> Float32s:
    columns = [
        np.concatenate([column(one.batch, label)[one.rows] for one in pieces] or [np.zeros(0, np.float32)])
        for label in labels
    ]
    rows = sum(map(len, pieces))
    return np.stack(columns, axis=1) if columns else np.zeros((rows, 0), np.float32)


def _segments(pieces: Sequence[Piece]) -> tuple[SegmentColumns, ...]:
    """The segments of all rows; a text that several messages have is one."""
    found = []
    for number, first in enumerate(pieces[0].batch.segments if pieces else ()):
        codes_of: dict[str, int] = {}
        codes = []
        for one in pieces:
            segment = one.batch.segments[number]
            known = np.array([codes_of.setdefault(text, len(codes_of)) for text in segment.texts], np.int32)
            codes.append(known[segment.codes[one.rows]])
        found.append(SegmentColumns(first.name, tuple(codes_of), np.concatenate(codes)))
    return tuple(found)
