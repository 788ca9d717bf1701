"""The benchmark of serving: what is asked for has rows, peers are given the same, and servers are measured in turn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from benchmarks.nodes import serving_model
from benchmarks.nodes.serving_life import InterleavedLoad
from benchmarks.nodes.serving_load import P99_MS_MAX, Contender, answers_per_s_of, overload, peaks
from benchmarks.nodes.serving_model import ServingModel
from benchmarks.nodes.serving_parts import Parts, Sizes
from benchmarks.result import Result
from streamlearn.errors import ServiceError
from streamlearn.features import keys_of
from streamlearn.load.load_run import Load, LoadPlan, LoadResult
from streamlearn.models.description import Description, GraphNote, TensorNote, write_description
from streamlearn.table import TableSet, declared_tables
from streamlearn.versions import Chain, load, open_store

__all__: list[str] = []

_VALUES = 40


@pytest.fixture
def model(tmp_path: Path) -> ServingModel:
    """DIN's application, with graphs that nothing can run."""
    graphs = tmp_path / "graphs"
    graphs.mkdir()
    weights = (TensorNote(name="w", dtype="float32", shape=(3, 2)),)
    score = GraphNote(inputs=(), outputs=())
    described = Description(features="f", labels=("click",), pack={}, weights=weights, user=None, score=score)
    write_description(graphs, described)
    return ServingModel("serving_din", tmp_path, graphs, _VALUES)


def _tables(model: ServingModel, version: int) -> Any:
    (options,) = declared_tables(model.folder.app.tables, model.folder.settings.tables)
    tables = TableSet([msgspec.structs.replace(options, optimizer=None, admission=None)])
    load(Chain.find(open_store(model.folder.store_url), model.name, version), tables)
    return tables[options.spec.name]


def test_every_value_that_is_asked_for_has_the_row_that_peers_are_given(model: ServingModel) -> None:
    assert model.write(0) == 1
    table, asked = _tables(model, 1), model.requests(50)
    for slot in model.folder.app.features.slots:
        values = (asked.user if slot.side == "user" else asked.item)[slot.name]
        found = table.lookup(keys_of(slot, values))
        np.testing.assert_array_equal(found, model.rows[values + model.first[slot.name]])
        assert (values + model.first[slot.name] > 0).all()
    assert model.first["watched"] == model.first["video_id"]
    workload = model.workload(asked, [np.zeros(int(asked.candidates[0]), np.float32)])
    assert len(workload.requests) == 50


def test_a_delta_changes_as_many_rows_as_it_says_and_nobody_hears_of_it_before_it_is_committed(
    model: ServingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_model, "_MOVE_S_MAX", 0.1)  # no node follows
    model.write(0)
    commit = model.prepare(7)
    store = open_store(model.folder.store_url)
    assert Chain.find(store, model.name).version == 1
    assert commit() == 2
    slot = model.folder.app.features.slots[0]
    keys = keys_of(slot, np.arange(_VALUES))
    before, after = (_tables(model, version).lookup(keys) for version in (1, 2))
    assert (before != after).any(axis=1).tolist() == [True] * 7 + [False] * (_VALUES - 7)
    with model.pointing() as pointing:
        assert pointing.publish(2).pointer.active is not None
        assert pointing.back(1).pointer.held
        assert pointing.forward(2).pointer.active == pointing.release().pointer.active


class _Server:
    """Holds so many requests a second; what it is asked beyond that is late."""

    def __init__(self, rate: float, awake: set[int]) -> None:
        self.rate, self.awake = rate, awake

    def run(self, plan: LoadPlan, on_progress: object = None, stop: Callable[[], bool] = bool) -> LoadResult:
        assert self.awake == {id(self)}, "whoever is measured is alone"
        if plan.pace == "closed":
            return self._found(plan, int(self.rate * plan.seconds), 10.0)
        late = plan.amount > self.rate
        return self._found(plan, int(plan.amount * plan.seconds), P99_MS_MAX + 1 if late else 5.0)

    def contender(self, name: str) -> Contender:
        me = id(self)
        self.awake.add(me)
        return Contender(name, cast("Load", self), lambda: self.awake.discard(me), lambda: self.awake.add(me))

    def _found(self, plan: LoadPlan, ok: int, p99: float) -> LoadResult:
        in_time = min(ok, int(self.rate * plan.seconds))
        times = {"p50": p99 / 2, "p99": p99}
        lag = {"p99": 0.0}
        return LoadResult(plan, plan.seconds, ok, ok, in_time, 0, 0, {}, {}, times, lag, 0, (), 0.0)


@pytest.mark.parametrize("quick", [True, False])
def test_the_highest_rate_of_each_is_found_while_the_others_stand_still(quick: bool) -> None:
    awake = set[int]()
    rates = {"ours": 400.0, "theirs": 250.0}
    servers = [_Server(rate, awake) for rate in rates.values()]
    both = [one.contender(name) for one, name in zip(servers, rates, strict=True)]
    found = peaks(both, 3, lambda _: None, quick=quick)
    for name, rate in rates.items():
        assert len(found[name]) == 3
        assert all(one <= rate for one in found[name])
        # A quick search goes a few steps from where it begins; it begins there again.
        assert found[name][-1] > rate / (1.3 if quick else 1.07)
    assert awake == {id(one) for one in servers}
    assert answers_per_s_of(both, 2, 3) == {name: [rate, rate] for name, rate in rates.items()}


def test_what_is_answered_in_time_at_twice_the_peak_is_held_against_the_peak() -> None:
    awake = set[int]()
    server = _Server(100.0, awake)
    server.contender("ours")
    assert overload(cast("Load", server), 100.0, 3, 4) == 1.0
    assert overload(cast("Load", server), 80.0, 3, 4) == pytest.approx(1.25)
    server.rate = 0.0
    with pytest.raises(ServiceError, match="nothing was answered in time"):
        overload(cast("Load", server), 80.0, 1, 4)


def test_what_a_node_does_beside_something_is_held_against_a_quiet_turn_next_to_it() -> None:
    p99, plan = iter([10.0, 12.0, 20.0, 30.0, 1.0, 5.0]), LoadPlan("poisson", 9.0, 4)

    def run(plan: LoadPlan, on_progress: object = None, stop: Callable[[], bool] = bool) -> LoadResult:
        refused = {} if plan.seconds == 4 else {"UNAVAILABLE": 1}
        return LoadResult(plan, 1, 9, 8, 8, 0, 1, refused, {}, {"p99": next(p99)}, {}, 0, (), 0.0)

    beside, worked = InterleavedLoad(cast("Load", SimpleNamespace(run=run)), plan.amount, plan.seconds), list[int]()
    for at in range(3):
        beside.turn(lambda at=at: worked.append(at))  # type: ignore[misc]
    assert worked == [0, 1, 2]
    assert beside.figures("it") == {
        "it_quiet_p99_ms": 10.0, "it_p99_ms": 12.0, "it_p99_to_quiet": 1.5, "it_errors": 3,
    }  # fmt: skip
    beside.forget()
    assert not beside.quiet


def test_a_part_that_fails_is_named_and_the_others_go_on(tmp_path: Path, model: ServingModel) -> None:
    result = Result("serving")
    parts = Parts(Sizes(), lambda _: None, result, tmp_path)
    with parts.part("merging"):
        _fail()
    parts.padding(model)
    parts.figures({"it_ms": 1.0, "it_p99_to_quiet": 1.1, "rollback_to_reply_ms": 2.0})
    assert result.failures == ["merging"]
    assert result.unmeasured["merging"].startswith("nobody answers")
    assert result.figures == {"it_ms": 1.0, "rollback_to_reply_ms": 2.0}
    assert result.ratios.pop("it_p99_to_quiet") == 1.1
    assert 0 < result.ratios["padding_waste"] < 0.5


def _fail() -> None:
    message = "nobody answers"
    raise ServiceError(message)
