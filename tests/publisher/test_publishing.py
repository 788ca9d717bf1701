"""A publisher at work: what is cut and when, what becomes of it, and where the next run goes on."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from prometheus_client import REGISTRY

from streamlearn.errors import CutFailed, RunOver, UsageError
from streamlearn.features import TableSpec
from streamlearn.publisher import Lineage, compact_apart
from streamlearn.settings import PublisherSettings
from streamlearn.table import Adagrad, TableOptions, TableSet
from streamlearn.testing import MemoryRegistry, wait_until
from streamlearn.versions import (
    Chain,
    History,
    PointerLog,
    Store,
    load,
    open_store,
    record_of,
)
from tests.publisher.training import INTERVAL_S, KEYS, MODEL, OPTIONS, Training, check_learned, take_step


def active(store: Store) -> int:
    found = PointerLog(store, MODEL).newest().active
    return 0 if found is None else found.version


def told(registry: MemoryRegistry) -> int:
    pointer = registry.pointer()
    return 0 if pointer is None else pointer.seq


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"streamlearn_publisher_{name}", labels) or 0.0


def outcomes(store: Store) -> dict[int, str | None]:
    return {one.version: one.outcome for one in History(store, MODEL).read()}


def test_the_first_version_is_a_base_and_is_there_before_anything_is_learned(store: Store) -> None:
    with Training(store).begin():
        chain = Chain.find(store, MODEL)
    assert (chain.version, chain.manifest.kind, active(store)) == (1, "base", 1)
    check_learned(store, 0)


def test_what_is_learned_in_an_interval_is_one_version_and_is_served(store: Store) -> None:
    with Training(store).begin() as training:
        training.step(3)
        assert active(store) == 1
        training.tick()
        training.publish(2)
    assert [one.kind for one in History(store, MODEL).read()] == ["base", "delta", "delta"]
    assert active(store) == 3
    assert PointerLog(store, MODEL).newest().seq == 3
    check_learned(store, 5)
    assert Chain.find(store, MODEL).manifest.metrics["learned_rows"] == 2 * 60


def test_an_empty_interval_publishes_nothing(store: Store) -> None:
    with Training(store).begin() as training:
        assert not training.tick()
        assert list(outcomes(store)) == [1]
        training.publish()
        assert not training.tick()
    assert list(outcomes(store)) == [1, 2]


def test_an_empty_version_is_published_where_the_setting_says_so(store: Store) -> None:
    settings = PublisherSettings(publish_interval_s=INTERVAL_S, empty_versions=True)
    with Training(store, settings).begin() as training:
        training.publish()
        assert training.tick()
    assert outcomes(store) == {1: "unscored", 2: "unscored", 3: "unscored"}
    assert active(store) == 3
    check_learned(store, 1)


def test_ticks_are_skipped_while_a_version_is_written_and_the_next_one_holds_more(store: Store) -> None:
    with Training(store).begin() as training:
        gate, entered = threading.Event(), threading.Event()
        export, skipped = training.client.export, metric("skipped_ticks_total")

        def slow(head):  # type: ignore[no-untyped-def]
            entered.set()
            assert gate.wait(60)
            return export(head)

        training.client.export = slow  # type: ignore[method-assign]
        training.step()
        training.clock.sleep(INTERVAL_S)
        training.step()
        assert entered.wait(60)
        for _ in range(3):
            training.clock.sleep(INTERVAL_S)
            training.step()
        gate.set()
        training.publisher.settle(60)
        assert metric("skipped_ticks_total") == skipped + 3
        assert Chain.find(store, MODEL).manifest.metrics["steps"] == 2
        training.tick()
    assert list(outcomes(store)) == [1, 2, 3]
    check_learned(store, 5)


def test_a_run_goes_on_where_the_last_one_was(store: Store) -> None:
    with Training(store).begin() as training:
        training.publish(2)
        training.step(3)  # never published
    with Training(store).begin() as again:
        assert (again.publisher.run, again.steps) == (2, 2)
        again.publish(3)
    assert active(store) == 3
    check_learned(store, 5)


def test_nothing_is_promoted_again_by_the_next_run(store: Store) -> None:
    with Training(store).begin() as training:
        training.publish()
    seq = PointerLog(store, MODEL).newest().seq
    with Training(store).begin():
        pass
    assert PointerLog(store, MODEL).newest().seq == seq


def test_numbers_of_versions_that_were_never_committed_are_not_used_again(store: Store) -> None:
    with Training(store).begin():
        pass
    store.create(f"{MODEL}/deltas/000000000007-00000001/rows/left.arrow", b"left")
    with Training(store).begin() as training:
        training.publish()
    assert list(outcomes(store)) == [1, 8]
    check_learned(store, 1)


def test_of_two_trainers_the_older_one_ends_and_promotes_nothing_more(store: Store) -> None:
    with Training(store).begin() as old, Training(store).begin() as new:
        new.publish()
        old.step()
        old.clock.sleep(INTERVAL_S)
        old.publisher.boundary(old.note)
        with pytest.raises(RunOver, match="run 1 of 'ctr' is over: run 2"):
            old.publisher.settle(60)
        with pytest.raises(RunOver):
            old.publisher.boundary(old.note)
        assert active(store) == 2
        new.publish()
    assert PointerLog(store, MODEL).newest().run == 2
    assert list(outcomes(store)) == [1, 2, 3]
    check_learned(store, 2)


def test_a_newer_run_takes_over_from_versions_of_an_older_one_that_came_too_late(store: Store) -> None:
    with Training(store).begin() as old, Training(store).begin() as new:
        # As if it had asked a moment before the other began.
        old.publisher._fence.check = lambda run: None  # type: ignore[method-assign]
        with pytest.raises(RunOver):
            old.publish()
        assert store.exists(f"{MODEL}/deltas/000000000002-00000001/manifest.json")
        assert active(store) == 1
        new.publish(2)
        new.publish()
    assert [(one.ref.run, one.version) for one in History(store, MODEL).read()][-2:] == [(2, 2), (2, 3)]
    assert active(store) == 3
    check_learned(store, 3)


def test_a_cut_that_fails_harms_nothing_and_the_next_one_says_it_all(store: Store) -> None:
    with Training(store).begin() as training:
        training.publish()
        export = training.client.export

        def failing(head):  # type: ignore[no-untyped-def]
            raise CutFailed("a shard fell")  # noqa: EM101

        training.client.export = failing  # type: ignore[method-assign]
        training.publish(2)
        training.client.export = export  # type: ignore[method-assign]
        assert list(outcomes(store)) == [1, 2]
        training.publish()
    assert list(outcomes(store)) == [1, 2, 4]
    assert Chain.find(store, MODEL).manifest.metrics["learned_rows"] == 3 * 60
    check_learned(store, 4)


def test_failures_in_a_row_are_raised_to_the_trainer_which_may_go_on(store: Store) -> None:
    settings = PublisherSettings(publish_interval_s=INTERVAL_S, failures_max=3)
    with Training(store, settings).begin() as training:
        export = training.client.export

        def failing(head):  # type: ignore[no-untyped-def]
            raise CutFailed("a shard fell")  # noqa: EM101

        training.client.export = failing  # type: ignore[method-assign]
        for _ in range(3):
            training.publish()
        training.step()
        with pytest.raises(CutFailed, match="3 cuts failed in a row; the last: a shard fell"):
            training.tick()
        training.client.export = export  # type: ignore[method-assign]
        training.publish()
    check_learned(store, 5)


def test_a_recovery_within_a_run_loses_nothing_that_is_committed(store: Store) -> None:
    with Training(store).begin() as training:
        training.publish(2)
        training.step(2)
        training.recover()
        assert training.steps == 2
        training.publish(3)
    check_learned(store, 5)


def test_embeddings_and_optimizer_state_of_a_version_belong_together_while_others_push(store: Store) -> None:
    with Training(store).begin() as training:
        training.publish()
        stop, pushed = threading.Event(), threading.Event()
        steps = 40
        export = training.client.export

        def pushing() -> None:
            number = 1_000
            while not stop.is_set():
                take_step(training.client, number)
                number += 1
                pushed.set()

        thread = threading.Thread(target=pushing)

        def beside(head):  # type: ignore[no-untyped-def]
            thread.start()
            assert pushed.wait(60)
            return export(head)

        training.client.export = beside  # type: ignore[method-assign]
        try:
            training.publish(steps)
        finally:
            stop.set()
            thread.join()
    check_learned(store, steps + 1)


def test_a_key_that_leaves_and_comes_back_within_a_version_is_there_and_one_that_leaves_is_not(store: Store) -> None:
    with Training(store).begin() as training:
        training.publish(4)
        table = training.client._link._shard.tables["main"]  # type: ignore[union-attr]
        rng = np.random.default_rng(3)
        back, gone = KEYS[:40], KEYS[40:80]
        table.remove(np.concatenate([back, gone]))
        table.push(back, rng.standard_normal((40, 4), np.float32), now_ms=9_000)
        training.learned += 40
        assert training.tick()
        found = TableSet(OPTIONS)
        load(Chain.find(store, MODEL), found)
        assert np.array_equal(found["main"].lookup(KEYS), table.lookup(KEYS))
        there = {int(key) for one in found.changed(None, 3) for key in one.keys}
    assert {int(key) for key in back} <= there
    assert not {int(key) for key in gone} & there


def test_an_expired_key_leaves_with_the_next_version(store: Store) -> None:
    from streamlearn.table import Expiry

    with Training(store).begin() as training:
        training.publish(4)
        training.step()
        done = training.client.expire({"main": Expiry(idle_ms=2_500)}, now_ms=6_000, budget_keys=10_000)
        assert done["main"].idle > 0
        assert training.tick()
        newest = Chain.find(store, MODEL)
    assert sum(one.rows for one in newest.manifest.of_kind("gone")) == done["main"].idle
    found = TableSet(OPTIONS)
    load(newest, found)
    assert found["main"].stats().keys == sum(
        one.rows for one in Chain.find(store, MODEL, upto=2).manifest.of_kind("rows")
    ) - done["main"].idle + _new(newest)


def _new(chain: Chain) -> int:
    """Keys that the last version of a chain has and the one before had not."""
    before, now = TableSet(OPTIONS), TableSet(OPTIONS)
    load(Chain.find(chain.store, MODEL, upto=2), before)
    load(chain, now)
    keys = [
        {int(key) for one in tables.changed(None, version) for key in one.keys}
        for tables, version in ((before, 2), (now, 3))
    ]
    return len(keys[1] - keys[0])


def test_two_tables_of_one_name_are_refused() -> None:
    twice = tuple(
        record_of(TableOptions(TableSpec("main", dim, 0.1), rows_max=100, optimizer=Adagrad(rate=0.1)))
        for dim in (4, 8)
    )
    with pytest.raises(UsageError, match="model 'ctr' has two tables named 'main'"):
        Lineage(MODEL, "features", "windows", twice)


def test_versions_of_other_tables_are_never_followed(store: Store) -> None:
    with Training(store).begin():
        pass
    with (
        Training(store, row_type="float16") as other,
        pytest.raises(
            UsageError, match=r"version 1 of 'ctr' .* tables: row_type of 'main' was float32 and is now float16"
        ),
    ):
        other.begin()


@pytest.mark.parametrize(("row_type", "most"), [("float16", 1e-3), ("int8", 1e-2)])
def test_rounded_rows_say_by_how_much_and_training_goes_on_from_the_exact_ones(
    store: Store, row_type: str, most: float
) -> None:
    with Training(store, row_type=row_type).begin() as training:
        training.publish(4)
        metrics = Chain.find(store, MODEL).manifest.metrics
        assert 0 < metrics["rounding.main.rms"] <= metrics["rounding.main.max"] < most
    with Training(store, row_type=row_type).begin() as again:
        again.publish(2)
    check_learned(store, 6)


def test_metrics_of_rows_are_those_of_the_rows(store: Store) -> None:
    with Training(store).begin() as training:
        training.publish(3)
        chain = Chain.find(store, MODEL)
        found = TableSet(OPTIONS)
        load(chain, found)
        rows = np.concatenate([one.rows for one in found.changed(None, 2)]).astype(np.float64)
    metrics = chain.manifest.metrics
    assert metrics["rows.main.count"] == len(rows)
    assert metrics["rows.main.rms"] == pytest.approx(np.sqrt(np.square(rows).mean()))
    assert metrics["rows.main.not_finite"] == 0
    assert metrics["dense.w.rms"] == 1 + 3 / 1024


def test_a_registry_that_is_away_for_a_minute_hears_of_everything_when_it_is_back(store: Store) -> None:
    registry = MemoryRegistry(MODEL)
    with Training(store, registry=registry).begin() as training:
        training.publish()
        assert told(registry) == PointerLog(store, MODEL).newest().seq
        registry.is_away = True
        for _ in range(6):
            training.publish()
        assert active(store) == 8  # who looks into the store goes on being told
        registry.is_away = False
        registry.clear()  # it was started anew, and knows nothing
        # However long the pauses have become: it is told without anything being published.
        for _ in range(20):
            training.clock.sleep(INTERVAL_S)
            training.publisher.boundary(training.note)
            training.publisher.settle(60)
        assert told(registry) == PointerLog(store, MODEL).newest().seq
        assert registry.versions() == list(History(store, MODEL).read())


def test_a_base_is_asked_for_after_so_many_deltas_one_at_a_time(store: Store) -> None:
    settings = PublisherSettings(publish_interval_s=INTERVAL_S, base_deltas_max=2)
    asked: list[int] = []
    gate = threading.Event()

    def compact(version: int) -> None:
        asked.append(version)
        assert gate.wait(60)

    with Training(store, settings, compact=compact).begin() as training:
        for _ in range(4):
            training.publish()
        assert asked == [3]
        gate.set()
        wait_until(lambda: training.publisher._bases.deltas == 2, "the base to be counted")
        training.publisher._bases.join(240)
        training.publish()
        training.publisher._bases.join(240)
    assert asked == [3, 6]


def test_a_trainer_without_a_first_version_is_told_what_to_call(store: Store) -> None:
    with Training(store) as training, pytest.raises(UsageError, match="the first version has not been written yet"):
        training.publisher.boundary(training.note)


def test_metrics_of_a_publisher_say_what_it_did(store: Store) -> None:
    before = metric("versions_total", outcome="committed")
    with Training(store).begin() as training:
        training.publish()
        training.clock.sleep(4)
        assert metric("since_committed_seconds") == 4
    assert metric("versions_total", outcome="committed") == before + 2
    assert metric("committed_version") == 2
    assert metric("written_bytes") > 0
    for stage in ("seal", "export", "write", "judge", "promote"):
        assert metric("stage_seconds_count", stage=stage) > 0, stage


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return open_store(str(tmp_path_factory.mktemp("store")))


def test_a_base_is_written_by_a_process_of_its_own_and_chains_begin_there(store: Store) -> None:
    settings = PublisherSettings(publish_interval_s=INTERVAL_S, base_deltas_max=3)
    with Training(store, settings, compact=compact_apart(store.url, MODEL)).begin() as training:
        for _ in range(3):
            training.publish()
        training.publisher._bases.join(240)
        assert training.publisher._bases.deltas == 0
        training.publish()
    links = Chain.find(store, MODEL).links
    assert [(one.manifest.kind, one.manifest.version) for one in links] == [("base", 4), ("delta", 5)]
    check_learned(store, 4)
    with Training(store, settings).begin() as again:
        assert again.steps == 4
        again.publish()
    assert active(store) == 6
    check_learned(store, 5)


def test_a_base_that_could_not_be_written_is_said_and_harms_nothing(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    settings = PublisherSettings(publish_interval_s=INTERVAL_S, base_deltas_max=1)
    with Training(store, settings, compact=compact_apart(store.url, "other")).begin() as training:
        training.publish()
        training.publisher._bases.join(240)
        assert "cannot write a base of version 2: the base of version 2 was not written" in caplog.text
        assert training.publisher._bases.deltas == 1
        training.publish()
        training.publisher._bases.join(240)
    check_learned(store, 2)


def test_positions_that_moved_on_with_nothing_learned_are_published_within_a_bound(store: Store) -> None:
    with Training(store, quiet_s_max=5 * INTERVAL_S).begin() as training:
        training.publish()
        positions: list[tuple[int, int]] = []
        for _ in range(12):
            training.steps += 1  # messages without anything to learn
            training.tick()
            newest = Chain.find(store, MODEL)
            positions.append((newest.version, newest.manifest.positions[0].offset))
        assert [version for version, _ in positions] == [2] * 4 + [3] * 5 + [4] * 3
        assert positions[-1] == (4, 11)
    # Whoever is started again goes by when the newest version was written.
    with Training(store, quiet_s_max=5 * INTERVAL_S, clock=training.clock).begin() as training:
        training.clock.sleep(2 * INTERVAL_S)
        training.recover()
        assert not training.tick()  # nothing moved
        training.steps += 1
        assert training.tick()
