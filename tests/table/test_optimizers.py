"""What rows learn through the public calls is what the same arithmetic gives in NumPy, to the bit."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streamlearn.errors import ConfigError
from streamlearn.features import TableSpec
from streamlearn.table import Adagrad, Changes, Pushed, TableOptions, TableSet
from streamlearn.table.options import Adam, Ftrl, Optimizer, RowwiseAdagrad, Sgd
from streamlearn.table.table import Table
from tests.table import optimizer_reference as reference
from tests.table.oracle import initial_rows

Floats: TypeAlias = npt.NDArray[np.float32]

_BOUNDED = hypothesis_settings(max_examples=60, derandomize=True, database=None)
_RATES = st.sampled_from([1e-3, 0.05, 0.7])
_LEARNING = {
    "rate": _RATES,
    "weight_decay": st.sampled_from([0.0, 0.01, 0.3]),
    "clip_norm": st.sampled_from([None, 0.5, 3.0]),
    "clip_value": st.sampled_from([None, 0.1, 1.0]),
}
_SUMS = {"initial_accumulator": st.sampled_from([0.0, 0.1, 2.0]), "epsilon": st.sampled_from([1e-10, 1e-3])}
OPTIMIZERS: dict[str, st.SearchStrategy[Optimizer]] = {
    "sgd": st.builds(Sgd, **_LEARNING),
    "adagrad": st.builds(Adagrad, **_LEARNING, **_SUMS),
    "rowwise_adagrad": st.builds(RowwiseAdagrad, **_LEARNING, **_SUMS),
    "adam": st.builds(
        Adam,
        **_LEARNING,
        beta1=st.sampled_from([0.0, 0.9]),
        beta2=st.sampled_from([0.0, 0.999]),
        epsilon=st.sampled_from([1e-7, 1e-3]),
    ),
    "ftrl": st.builds(
        Ftrl,
        **{**_LEARNING, "weight_decay": st.just(0.0)},
        l1=st.sampled_from([0.0, 0.02]),
        l2=st.sampled_from([0.0, 0.1]),
        beta=st.sampled_from([0.0, 1.0]),
        initial_accumulator=st.sampled_from([0.1, 1.0]),
    ),
}


def _begun(optimizer: Optimizer, count: int, dim: int) -> Floats:
    """The state of rows that have learned nothing."""
    state = np.zeros((count, optimizer.state_width(dim)), np.float32)
    if isinstance(optimizer, Adagrad | RowwiseAdagrad):
        state[:] = optimizer.initial_accumulator
    elif isinstance(optimizer, Ftrl):
        state[:, :dim] = optimizer.initial_accumulator
    return state


def _expected(
    optimizer: Optimizer, rows: Floats, state: Floats, gradients: Floats, rate_scale: float
) -> tuple[Floats, Floats]:
    """Rows and state after one step; a gradient a row."""
    dim, rate = rows.shape[1], reference.scaled(optimizer.rate, rate_scale)
    if optimizer.clip_value is not None:
        gradients = reference.clip_value(gradients, optimizer.clip_value)
    if optimizer.clip_norm is not None:
        gradients = reference.clip_norm(gradients, optimizer.clip_norm)
    rows = reference.decay(rows, rate, optimizer.weight_decay)
    match optimizer:
        case Sgd():
            return reference.sgd(rows, gradients, rate), state
        case Adagrad():
            return reference.adagrad(rows, state, gradients, rate, optimizer.epsilon)
        case RowwiseAdagrad():
            return reference.rowwise_adagrad(rows, state, gradients, rate, optimizer.epsilon)
        case Adam():
            parts = state[:, :dim], state[:, dim : 2 * dim], state[:, 2 * dim :]
            betas = {"beta1": optimizer.beta1, "beta2": optimizer.beta2}
            rows, after = reference.adam(rows, parts, gradients, rate, **betas, epsilon=optimizer.epsilon)
            return rows, np.hstack(after)
        case Ftrl():
            pulls = {"l1": optimizer.l1, "l2": optimizer.l2, "beta": optimizer.beta}
            rows, after_two = reference.ftrl(rows, (state[:, :dim], state[:, dim:]), gradients, rate, **pulls)
            return rows, np.hstack(after_two)


def _summed(keys: npt.NDArray[np.uint64], gradients: Floats, known: npt.NDArray[np.uint64]) -> Floats:
    """The gradients of each known key, added in the order they were given."""
    sums = np.zeros((len(known), gradients.shape[1]), np.float32)
    for at, key in enumerate(known):
        mine = gradients[keys == key]
        sums[at] = mine[0]
        for one in mine[1:]:
            sums[at] += one
    return sums


def _stored(table: TableSet, version: int) -> dict[int, tuple[bytes, bytes, int]]:
    """Row, state and count of each key."""
    found = {}
    for one in table.changed(None, version):
        assert one.state is not None
        assert one.counts is not None
        for at, key in enumerate(one.keys.tolist()):
            found[key] = (one.rows[at].tobytes(), one.state[at].tobytes(), int(one.counts[at]))
    return found


def _same(found: Floats, expected: Floats) -> None:
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", OPTIMIZERS)
@_BOUNDED
@given(data=st.data(), dim=st.integers(1, 70), seed=st.integers(0, 1 << 30))
def test_a_push_does_what_the_reference_does_to_the_bit(kind: str, data: st.DataObject, dim: int, seed: int) -> None:
    optimizer = data.draw(OPTIMIZERS[kind])
    spec = TableSpec("main", dim, 0.5)
    sets = [TableSet([TableOptions(spec, rows_max=1_000, optimizer=optimizer, seed=seed)]) for _ in range(2)]
    rng = np.random.default_rng(seed)
    known = rng.integers(0, 1 << 63, 6, np.uint64)
    rows, state = initial_rows(known, dim, 0.5, seed), _begun(optimizer, len(known), dim)
    counts = np.zeros(len(known), np.int64)
    for _ in range(3):
        keys = np.concatenate((known, rng.choice(known, 8)))
        rng.shuffle(keys)
        gradients = (rng.standard_normal((len(keys), dim)) * rng.choice([1e-3, 1.0, 30.0])).astype(np.float32)
        seen, rate_scale = rng.integers(0, 40, len(keys), np.uint32), float(rng.choice([1.0, 0.25, 0.0]))
        rows, state = _expected(optimizer, rows, state, _summed(keys, gradients, known), rate_scale)
        counts = np.minimum(counts + [seen[keys == key].sum() for key in known], 255)
        for threads, tables in enumerate(sets, 1):
            done = tables["main"].push(keys, gradients, now_ms=5, counts=seen, rate_scale=rate_scale, threads=threads)
            assert done.learned == len(known)
            _same(tables["main"].lookup(known), rows)
    for tables in sets:
        tables.seal(1)
        stored = _stored(tables, 1)
        assert list(map(stored.get, known.tolist())) == [
            (rows[at].tobytes(), state[at].tobytes(), int(counts[at])) for at in range(len(known))
        ]


@pytest.mark.parametrize("optimizer", [Sgd(rate=0.1), Adagrad(), RowwiseAdagrad(), Adam(), Ftrl()])
def test_two_threads_learn_what_one_does_over_many_parts(optimizer: Optimizer) -> None:
    options = TableOptions(TableSpec("main", 16, 0.05), rows_max=20_000, optimizer=optimizer)
    one, two = TableSet([options]), TableSet([options])
    rng = np.random.default_rng(4)
    for _ in range(3):
        keys, gradients = rng.zipf(1.3, 8_000).astype(np.uint64), rng.standard_normal((8_000, 16), np.float32)
        done = [tables["main"].push(keys, gradients, now_ms=0, threads=t) for tables, t in ((one, 1), (two, 2))]
        assert done[0] == done[1]
    for tables in (one, two):
        tables.seal(1)
    assert _stored(one, 1) == _stored(two, 1)


def test_gradients_of_a_key_are_summed_in_the_order_they_are_given() -> None:
    # In float32, (1e8 + 1) - 1e8 is 0, and (1e8 - 1e8) + 1 is 1.
    for gradients, expected in (([1e8, 1.0, -1e8], 0.0), ([1e8, -1e8, 1.0], 1.0)):
        table = TableSet([TableOptions(TableSpec("main", 1, 0.0), rows_max=10, optimizer=Sgd(rate=1.0))])["main"]
        keys = np.full(3, 9, np.uint64)
        done = table.push(keys, np.array(gradients, np.float32)[:, None], now_ms=0)
        assert done == Pushed(learned=1, created=1, waiting=0)
        assert table.lookup(keys[:1])[0, 0] == -expected


def test_a_row_that_is_put_with_its_state_learns_on_from_there() -> None:
    rng = np.random.default_rng(0)
    for optimizer in (Adagrad(), RowwiseAdagrad(), Adam(), Ftrl()):
        options = TableOptions(TableSpec("main", 6, 0.05), rows_max=100, optimizer=optimizer)
        first, second = TableSet([options]), TableSet([options])
        keys = np.arange(5, dtype=np.uint64)
        first["main"].push(keys, rng.standard_normal((5, 6), np.float32), now_ms=0)
        first.seal(1)
        for one in first.changed(None, 1):
            assert one.state is not None
            second["main"].put(one.keys, np.asarray(one.rows, np.float32), state=one.state)
        gradients = rng.standard_normal((5, 6), np.float32)
        for tables in (first, second):
            tables["main"].push(keys, gradients, now_ms=0)
        _same(first["main"].lookup(keys), second["main"].lookup(keys))


def test_state_that_is_not_given_is_begun_anew() -> None:
    options = TableOptions(TableSpec("main", 4, 0.05), rows_max=100, optimizer=Adagrad(initial_accumulator=0.7))
    tables, keys = TableSet([options]), np.array([3, 4], np.uint64)
    tables["main"].push(keys, np.ones((2, 4), np.float32), now_ms=0)
    tables["main"].put(keys[:1], np.ones((1, 4), np.float32))
    tables["main"].apply(Changes("main", keys[1:], np.ones((1, 4), np.float32)))
    tables.seal(1)
    begun = np.full(4, 0.7, np.float32).tobytes()
    assert [state for _, state, _ in _stored(tables, 1).values()] == [begun, begun]


def _table(**changed: object) -> Table:
    options = TableOptions(TableSpec("main", 4, 0.05), rows_max=100, optimizer=Adagrad())
    return TableSet([msgspec.structs.replace(options, **changed)])["main"]


@pytest.mark.parametrize(
    ("kind", "changed", "match"),
    [
        (Sgd, {"rate": 0.0}, r"Sgd: rate is 0\.0"),
        (Sgd, {"rate": float("nan")}, "Sgd: rate is nan"),
        (Sgd, {"rate": "x"}, "Sgd: rate is 'x'"),
        (Adagrad, {"rate": -1.0}, r"Adagrad: rate is -1\.0"),
        (Adagrad, {"epsilon": -1.0}, "epsilon"),
        (Adagrad, {"clip_norm": 0.0}, "clip_norm"),
        (Adagrad, {"clip_value": float("nan")}, "clip_value"),
        (RowwiseAdagrad, {"initial_accumulator": float("inf")}, "initial_accumulator is inf: float32"),
        (Adagrad, {"rate": 1e300}, "rate is 1e[+]300: float32"),
        (Adam, {"beta1": 1.0}, "beta1"),
        (Adam, {"epsilon": 0.0}, "epsilon"),
        (Ftrl, {"weight_decay": 0.1}, r"weight_decay is 0\.1[\s\S]*set `l2`"),
    ],
)
def test_an_optimizer_out_of_its_bounds_is_refused_when_it_is_made(
    kind: type[Optimizer], changed: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        kind(**{"rate": 0.1, **changed})


def test_a_divisor_that_may_be_zero_makes_no_table() -> None:
    with pytest.raises(ConfigError, match=r"tables main: initial_accumulator \+ epsilon"):
        _table(optimizer=Adagrad(epsilon=0.0, initial_accumulator=0.0))


def test_the_rate_may_be_given_by_position() -> None:
    for kind in (Sgd, Adagrad, RowwiseAdagrad, Adam, Ftrl):
        assert kind(0.25) == kind(rate=0.25)


def test_only_rows_of_float32_learn() -> None:
    with pytest.raises(ConfigError, match="row_type is 'int8': a table with an optimizer stores float32 rows"):
        _table(row_type="int8")
    with pytest.raises(ValueError, match="no optimizer"):
        _table(optimizer=None).push(np.ones(1, np.uint64), np.ones((1, 4), np.float32), now_ms=0)


@pytest.mark.parametrize("rate_scale", [-1.0, float("nan"), float("inf")])
def test_a_rate_is_scaled_by_a_number_that_makes_sense(rate_scale: float) -> None:
    with pytest.raises(ValueError, match="rate_scale"):
        _table().push(np.ones(1, np.uint64), np.ones((1, 4), np.float32), now_ms=0, rate_scale=rate_scale)
