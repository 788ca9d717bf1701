"""Slices: together they are the step, row by row, whatever it looks like."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.samples import FeatureColumns, SlotColumns
from streamlearn.trainer.columns import Inputs
from streamlearn.trainer.workers.messages import Side, SliceWork, arrays_of, decode, encode, inputs_of
from streamlearn.trainer.workers.slices import cut, slice_rows
from tests.campaign import examples


def made(seed: int, rows: int, requests: int) -> Inputs:
    rng = np.random.default_rng(seed)

    def side(count: int) -> FeatureColumns:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 3, count))]).astype(np.int32)
        several = SlotColumns(
            rng.integers(0, 1 << 62, offsets[-1]).astype(np.uint64), offsets, rng.random(offsets[-1]).astype(np.float32)
        )
        one = SlotColumns(rng.integers(0, 1 << 62, count).astype(np.uint64))
        return FeatureColumns({"one": one, "several": several}, {"price": rng.random((count, 2)).astype(np.float32)})

    index = rng.integers(0, max(requests, 1), rows).astype(np.int32)
    return Inputs(requests, side(requests), side(rows), index, rng.random((rows, 2, 4)).astype(np.float32))


def flat(inputs: Inputs) -> list[tuple[object, ...]]:
    """What each row is learned from."""
    found = []
    for row in range(len(inputs)):
        request = int(inputs.request_index[row])
        entry: list[object] = [inputs.targets[row].tobytes()]
        for side, at in ((inputs.user, request), (inputs.item, row)):
            for slot in side.slots.values():
                begin, end = (at, at + 1) if slot.offsets is None else slot.offsets[at : at + 2]
                entry += [
                    slot.keys[begin:end].tobytes(),
                    b"" if slot.weights is None else slot.weights[begin:end].tobytes(),
                ]
            entry.append(side.dense["price"][at].tobytes())
        found.append(tuple(entry))
    return found


shapes = st.tuples(st.integers(0, 2**32), st.integers(0, 40), st.integers(1, 12))


@settings(max_examples=examples(100))
@given(shapes, st.integers(1, 9))
def test_slices_have_every_row_once_in_order_and_no_more_rows_than_their_shape(
    shape: tuple[int, int, int], slices: int
) -> None:
    inputs = made(*shape)
    pieces = list(cut(inputs, slices))
    assert len(pieces) == slices
    assert [row for piece in pieces for row in flat(piece)] == flat(inputs)
    assert all(len(piece) <= slice_rows(len(inputs), slices) for piece in pieces)
    assert all(piece.requests == len(set(piece.request_index.tolist())) for piece in pieces)


@settings(max_examples=examples(100))
@given(shapes)
def test_a_slice_comes_back_from_its_message(shape: tuple[int, int, int]) -> None:
    inputs = made(*shape)
    user, item, arrays = arrays_of(inputs)
    head = SliceWork(7, 3, 4, 5, 1, len(inputs), 123, inputs.requests, user, item)
    found, back = decode(encode(head, arrays), "answer")
    assert found == head
    assert flat(inputs_of(found, back)) == flat(inputs)
    assert isinstance(found.user, Side)
