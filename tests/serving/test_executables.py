"""Executables: scores are the same however a request is run, and a version never costs a compilation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.errors import UsageError
from streamlearn.models import PackedSide
from streamlearn.models.tf_calls import Place
from streamlearn.serving.graphs.dense import Dense
from streamlearn.serving.graphs.ladder import Bucket
from tests.models.packed import Packed, packed, scores_of
from tests.serving.made import Made, make, named_weights, work_of

TOLERANCE = 1e-5


def assert_same(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)


def alone(inputs: Packed, user: int) -> Packed:
    """The candidates of one user, and no other."""
    rows = inputs.user_index == user
    of_user = PackedSide(*(None if one is None else one[user : user + 1] for one in inputs.user))
    of_item = PackedSide(*(None if one is None else one[rows] for one in inputs.item))
    return Packed(of_user, np.zeros(rows.sum(), np.int32), of_item)


def shortened(inputs: Packed, places: int) -> Packed:
    """The same with histories of no more places."""
    if inputs.user.sequence is None:
        return inputs
    sequence = inputs.user.sequence.copy()
    sequence[:, places:] = 0
    return inputs._replace(user=inputs.user._replace(sequence=sequence))


@settings(max_examples=12, derandomize=True, database=None)
@given(st.integers(1, 4), st.integers(1, 16), st.integers(0, 5), st.integers(0, 1 << 20))
def test_scores_are_the_same_alone_merged_padded_compiled_and_not(
    made: Made, users: int, candidates: int, places: int, seed: int
) -> None:
    arrays, dense = made.dense(seed)
    inputs = shortened(packed(made.spec, users, candidates, seed), places)
    wanted = scores_of(made.graphs, arrays, inputs)
    ladder, before = made.ladder, made.executables.compiles
    own = ladder.lengths[-1]
    length = next((length for length in ladder.lengths if length >= places), own)

    def scored(some: Packed, *shape: int) -> Any:
        return made.executables.score(made.place, work_of(dense, some, *shape))[: len(some.user_index)]

    merged = scored(inputs, ladder.users_bucket(users), ladder.candidates_bucket(candidates), length)
    assert merged.dtype == np.float32
    assert_same(merged, wanted)
    # The largest buckets, then shapes that are none, more users than the score graph is compiled for among them.
    assert_same(scored(inputs, 4, 16, own), wanted)
    assert_same(scored(inputs, users, candidates, own), wanted)
    assert_same(scored(inputs, 5, 23, own), wanted)
    for user in range(users):
        if (inputs.user_index == user).any():
            some = alone(inputs, user)
            rows = ladder.candidates_bucket(len(some.user_index))
            assert_same(scored(some, 1, rows, length), wanted[inputs.user_index == user])
    assert made.executables.compiles == before


def test_the_index_may_be_copied_to_int64_as_on_gpus(exported: Path, din: Made) -> None:
    long = make("din", exported, has_long_index=True)
    long.executables.compile_ladder(long.ladder)
    before = long.executables.compiles
    for users, candidates in ((4, 16), (4, 9)):  # compiled, and uncompiled
        work = [work_of(made.dense()[1], packed(din.spec, users, candidates), 4, candidates, 5) for made in (din, long)]
        scores = [made.executables.score(made.place, one) for made, one in zip((din, long), work, strict=True)]
        assert scores[0].tobytes() == scores[1].tobytes()
    index = work[0].user_index.__dlpack__()  # as a front hands it over
    again = long.executables.score(long.place, work[1]._replace(user_index=index))
    assert again.tobytes() == scores[1].tobytes()
    assert long.executables.compiles == before


def test_versions_take_turns_without_a_compilation(din: Made) -> None:
    inputs, before = packed(din.spec, 4, 16), din.executables.compiles
    versions = [din.dense(seed) for seed in range(6)]
    for arrays, dense in versions * 3:
        found = din.executables.score(din.place, work_of(dense, inputs, 4, 16, 5))
        assert_same(found, scores_of(din.graphs, arrays, inputs))
    assert din.executables.compiles == before == sum(1 for _ in din.ladder.buckets())


def test_only_shapes_that_were_compiled_are_run_compiled(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make("logistic", exported)
    run, called = Place.run, []

    def noted(place: Place, function: bytes, inputs: list[Any], outputs: int) -> list[Any]:
        called.append(function.decode().startswith("compiled_"))
        return run(place, function, inputs, outputs)

    monkeypatch.setattr(Place, "run", noted)
    _, dense = made.dense()
    work = work_of(dense, packed(made.spec, 4, 16), 4, 16, 5)
    made.executables.score(made.place, work)
    assert called == [False, False]
    assert made.executables.compile(Bucket("score", 16, 5))
    assert not made.executables.has(Bucket("user", 4, 5))
    called.clear()
    made.executables.score(made.place, work)
    assert called == [False, True]
    made.executables.compile(Bucket("user", 4, 5))
    called.clear()
    made.executables.score(made.place, work)
    assert called == [True, True]
    assert made.executables.compiles == 2


def test_no_more_than_so_many_executables_are_made(exported: Path) -> None:
    made = make("logistic", exported, compiles_max=2)
    assert made.executables.compile(Bucket("user", 1, 5))
    assert made.executables.compile(Bucket("score", 4, 5))
    assert made.executables.compile(Bucket("score", 4, 5))
    assert not made.executables.compile(Bucket("score", 16, 5))
    assert not made.executables.has(Bucket("score", 16, 5))
    assert made.executables.compiles == 2
    assert made.executables.budget.is_used_up
    with pytest.raises(UsageError, match="the limit of 2 executables is reached"):
        made.executables.compile_ladder(made.ladder)
    arrays, dense = made.dense()
    inputs = packed(made.spec, 1, 16)
    found = made.executables.score(made.place, work_of(dense, inputs, 1, 16, 5))
    assert_same(found, scores_of(made.graphs, arrays, inputs))


def test_a_shape_that_comes_often_is_told_of(exported: Path) -> None:
    made = make("din", exported, calls_min=3)
    told: list[Bucket] = []
    made.executables.wanted = told.append
    _, dense = made.dense()
    work = work_of(dense, shortened(packed(made.spec, 2, 7), 3), 2, 7, 3)
    for _ in range(2):
        made.executables.score(made.place, work)
    assert told == []
    made.executables.score(made.place, work)
    assert told == [Bucket("user", 2, 3), Bucket("score", 7, 3)]
    assert all(made.executables.compile(bucket) for bucket in told)
    for _ in range(9):
        made.executables.score(made.place, work)
    assert len(told) == 2
    # An executable for more users than the score graph takes would never be of use.
    beyond = work_of(dense, shortened(packed(made.spec, 5, 7), 3), 5, 7, 3)
    for _ in range(9):
        made.executables.score(made.place, beyond)
    assert len(told) == 2


def test_each_shape_has_a_cost(din: Made) -> None:
    costs = {bucket: din.executables.cost_us(bucket, 5) for bucket in din.ladder.buckets()}
    assert all(0 < cost < 1e6 for cost in costs.values())


def test_what_the_graphs_do_not_take_is_refused_and_not_compiled(din: Made) -> None:
    _, dense = din.dense()
    fit, before = work_of(dense, packed(din.spec, 4, 16), 4, 16, 5), din.executables.compiles
    wrong = [
        fit._replace(user=fit.user[:1]),
        fit._replace(user=fit.user[::-1]),
        fit._replace(item=()),
        fit._replace(user_index=np.zeros(16, np.int64)),
        fit._replace(item=[fit.item[0][:, :-1].copy()]),
        fit._replace(item=[fit.item[0].astype(np.float64)]),
    ]
    for work in wrong:
        with pytest.raises(UsageError, match=r"the (user|score) graph takes user_flat float32\[None"):
            din.executables.score(din.place, work)
    assert din.executables.compiles == before
    assert din.executables.score(din.place, fit).shape == (16, 2)


def test_weights_of_other_graphs_are_refused(din: Made, exported: Path) -> None:
    other = make("deepfm", exported)
    _, dense = other.dense()
    with pytest.raises(UsageError, match="belong to other graphs"):
        din.executables.score(din.place, work_of(dense, packed(din.spec, 4, 16), 4, 16, 5))
    with pytest.raises(UsageError, match="16 weights do not match the graphs: 'attention_0_bias' of shape none"):
        Dense(din.graphs.described, named_weights(other.graphs, 1), [din.place])


def test_weights_are_copied_and_aligned(din: Made) -> None:
    named = named_weights(din.graphs, 1)
    dense = Dense(din.executables.definitions.described, named, [din.place])
    inputs = packed(din.spec, 4, 16)
    before = din.executables.score(din.place, work_of(dense, inputs, 4, 16, 5))
    for array in named.values():
        array[...] = np.nan
    assert np.array_equal(din.executables.score(din.place, work_of(dense, inputs, 4, 16, 5)), before)
    assert all(one._numpy().ctypes.data % 64 == 0 for one in dense.on(din.place))
