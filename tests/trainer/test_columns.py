"""Columns of a step, and messages of some rows, against loops over rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.samples import SampleBatch, SegmentColumns
from streamlearn.samples.rules import check_batch
from streamlearn.testing import small_app, small_batch
from streamlearn.trainer.columns import columns_of, join_features
from streamlearn.trainer.intake.extract import join_batches, rows_of
from streamlearn.trainer.intake.identity import identity_of
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.step import Piece, Step
from tests.campaign import examples
from tests.trainer.plain import features_at, row_of, segments_at

_APP = small_app()
_REACHED = Reached((7,), (8,), 9)
_EMPTY = np.zeros(0, np.int64)


def batch_of(rng: np.random.Generator) -> SampleBatch:
    """A message, its rows' requests in any order; rates, weights and texts of segments are its own."""
    rows, requests = int(rng.integers(1, 12)), int(rng.integers(1, 6))
    batch = small_batch(_APP, requests, rows, seed=int(rng.integers(1 << 30)))
    labels = tuple(
        replace(
            one,
            sample_rate=rng.uniform(0.1, 1, rows).astype(np.float32),
            weight=rng.uniform(0, 3, rows).astype(np.float32),
        )
        for one in batch.labels
    )
    texts = tuple(map(str, rng.permutation(["a", "b", "c", "d"])))
    segments = tuple(
        SegmentColumns(one.name, texts, rng.integers(0, 4, rows).astype(np.int32)) for one in batch.segments
    )
    if rng.random() < 0.5:
        batch = replace(batch, request_index=rng.permutation(batch.request_index))
    return replace(batch, labels=labels, segments=segments)


def piece_of(rng: np.random.Generator) -> Piece:
    batch = batch_of(rng)
    kept = np.ones(len(batch), np.bool_) if rng.random() < 0.3 else rng.random(len(batch)) < 0.6
    rows = np.flatnonzero(kept)
    learn, correct = rng.integers(0, 4, (2, len(rows))).astype(np.uint32)
    return Piece(batch, rows, learn, correct)


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_a_step_is_its_pieces_rows_one_after_the_other(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    pieces = tuple(piece_of(rng) for _ in range(count))
    step = Step(3, pieces, _REACHED, 100)
    columns = columns_of(step)
    assert columns.step is step
    assert len(columns) == len(step) == sum(len(one) for one in pieces)
    assert columns.requests == sum(len(np.unique(one.batch.request_index[one.rows])) for one in pieces)
    found = iter(range(len(columns)))
    for piece in pieces:
        batch = piece.batch
        for at, row in enumerate(piece.rows):
            number, request = next(found), int(batch.request_index[row])
            user = int(columns.request_index[number])
            assert features_at(columns.user, user) == features_at(batch.user, request)
            assert features_at(columns.item, number) == features_at(batch.item, int(row))
            assert segments_at(columns.segments, number) == segments_at(batch.segments, int(row))
            assert (columns.learn[number], columns.correct[number]) == (piece.learn[at], piece.correct[at])
            assert columns.positive[number] == sum(
                1 << bit for bit, label in enumerate(batch.labels) if label.value[row]
            )
            assert columns.rates[number].tolist() == [label.sample_rate[row] for label in batch.labels]
            assert columns.weights[number].tolist() == [label.weight[row] for label in batch.labels]
            assert columns.event_time_ms[number] == batch.requests.event_time_ms[request]
            assert columns.identity[number] == identity_of(batch, piece.rows[at : at + 1])[0]
    assert [len(set(one.texts)) for one in columns.segments] == [len(one.texts) for one in columns.segments]


def test_a_step_without_rows_has_columns_of_none() -> None:
    columns = columns_of(Step(1, (), _REACHED, 0))
    assert (len(columns), columns.requests, columns.segments) == (0, 0, ())
    batch = small_batch(_APP, 2, 3)
    empty = Piece(batch, _EMPTY, np.zeros(0, np.uint32), np.zeros(0, np.uint32))
    columns = columns_of(Step(1, (empty, empty), _REACHED, 6))
    assert (len(columns), columns.requests) == (0, 0)
    assert columns.rates.shape == (0, len(_APP.labels))
    offsets = columns.item.slots["tags"].offsets
    assert offsets is not None
    assert offsets.tolist() == [0]


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32))
def test_features_are_taken_and_joined_row_by_row(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sides = [batch_of(rng).item for _ in range(int(rng.integers(1, 4)))]
    plain = [[features_at(one, at) for at in range(len(one.dense["vector"]))] for one in sides]
    joined = join_features(sides)
    everything = [row for some in plain for row in some]
    assert [features_at(joined, at) for at in range(len(everything))] == everything
    rows = np.flatnonzero(rng.random(len(everything)) < 0.5)
    taken = joined.take(rows)
    assert [features_at(taken, at) for at in range(len(rows))] == [everything[row] for row in rows]


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32))
def test_rows_of_a_message_are_a_message_of_those_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = batch_of(rng)
    rows = np.flatnonzero(rng.random(len(batch)) < 0.6)
    some = rows_of(batch, rows)
    check_batch(_APP, some)
    assert [row_of(some, at) for at in range(len(some))] == [row_of(batch, int(row)) for row in rows]
    assert len(some.requests) == len(np.unique(batch.request_index[rows]))
    np.testing.assert_array_equal(identity_of(some, np.arange(len(some))), identity_of(batch, rows))
    np.testing.assert_array_equal(identity_of(batch, np.arange(len(batch)))[rows], identity_of(batch, rows))


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32), st.integers(1, 30))
def test_messages_joined_are_the_same_rows_in_as_many_as_are_needed(seed: int, rows_max: int) -> None:
    rng = np.random.default_rng(seed)
    batches = [batch_of(rng) for _ in range(int(rng.integers(0, 7)))]

    def plain(some: list[SampleBatch]) -> list[dict[str, Any]]:
        return [row_of(one, row, segments=False) for one in some for row in range(len(one))]

    joined = list(join_batches(iter(batches), rows_max))
    for one in joined:
        check_batch(_APP, one)
    assert plain(joined) == plain(batches)
    sizes = [len(one) for one in batches]
    assert all(len(one) <= max(rows_max, max(sizes)) for one in joined)
    # Two that stand side by side would not have fitted into one.
    begins = np.cumsum([0, *(len(one) for one in joined)]).tolist()
    firsts = dict(zip(np.cumsum([0, *sizes]).tolist(), sizes, strict=False))
    for at in range(1, len(joined)):
        assert len(joined[at - 1]) + firsts[begins[at]] > rows_max


def test_a_row_is_known_by_where_its_impression_is_and_its_place_in_it() -> None:
    batch = small_batch(_APP, 3, 6)
    rows = np.arange(6)
    one = replace(batch, item_index=np.arange(6, dtype=np.int32), request_index=np.zeros(6, np.int32))
    assert len(set(identity_of(one, rows).tolist())) == 6
    again = replace(one, settle_time_ms=one.settle_time_ms + 1, labels=())
    np.testing.assert_array_equal(identity_of(one, rows), identity_of(again, rows))
    for name in ("partition", "offset"):
        moved = replace(one.requests, **{name: getattr(one.requests, name) + 1})
        assert not np.isin(identity_of(replace(one, requests=moved), rows), identity_of(one, rows)).any()


def test_a_message_without_rows_is_refused_nowhere() -> None:
    some = rows_of(small_batch(_APP, 2, 3), _EMPTY)
    check_batch(_APP, some)
    assert (len(some), len(some.requests)) == (0, 0)
    with pytest.raises(StopIteration):
        next(join_batches([], 5))
