"""Making a registry right from the store, and telling it what the store was told."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from copy import copy
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from redis import Redis as Client

from streamlearn.errors import StoreUnreachable
from streamlearn.settings.versions import RegistrySettings
from streamlearn.testing import ManualClock, MemoryRegistry, wait_until
from streamlearn.versions import (
    History,
    Known,
    Node,
    Pointer,
    PointerLog,
    Registry,
    Store,
    Verdict,
    open_registry,
    open_store,
    rebuild_registry,
    write_verdict,
)
from streamlearn.versions.pointer.announcer import Announcer
from streamlearn.versions.pointer.moves import promote, publish, raise_floor, release, rollback
from streamlearn.versions.pointer.rebuild import kind_of_move
from streamlearn.versions.pointer.registry import Ack, Note
from tests.versions.history import MODEL, Trainer
from tests.versions.racers import ref
from tools.services import Redis


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Five versions that passed, and seven moves."""
    store = open_store(str(tmp_path_factory.mktemp("store")))
    Trainer(store).story([1, 2, 4, 5, 6])
    history, log = History(store, MODEL), PointerLog(store, MODEL, clock=ManualClock(1_000))
    for one in history.read():
        write_verdict(store, history.folder(one.ref), Verdict(version=one.ref, outcome="passed"))
    known = history.read()
    for version in (1, 2, 4):
        log.move(lambda now, version=version: publish(now, known, version, 1), by="run 1")  # type: ignore[misc]
    log.move(lambda now: rollback(now, known, 2), by="ada", reason="clicks fell")
    log.move(lambda now: promote(now, known, 5, accept=True), by="ada")
    log.move(lambda now: release(now, known), by="ada")
    log.move(lambda now: raise_floor(now, known, 2), by="gc")
    return store


@pytest.fixture(params=["memory", "sqlite", "redis"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    if request.param == "memory":
        yield MemoryRegistry(MODEL)
        return
    url = request.getfixturevalue("redis") if request.param == "redis" else f"sqlite://{tmp_path}/registry.db"
    with open_registry(url, MODEL, RegistrySettings(reach_s=60)) as registry:
        registry.clear()
        yield registry
        registry.clear()


def check_equal(registry: Registry, store: Store) -> None:
    """That a registry says what the store says."""
    assert registry.pointer() == PointerLog(store, MODEL).newest()
    assert registry.versions() == list(History(store, MODEL).read())
    assert [note.seq for note in registry.notes(100) if note.seq] == [1, 2, 3, 4, 5, 6, 7]


def test_an_empty_registry_is_made_equal_to_the_store(registry: Registry, written: Store) -> None:
    made = rebuild_registry(written, registry)
    assert (made.seq, made.pointer, made.put, made.dropped, made.notes) == (7, True, (1, 2, 4, 5, 6), (), 7)
    check_equal(registry, written)
    said = [(note.seq, note.what, note.by, note.version) for note in registry.notes(100)]
    assert said == [
        (1, "promote", "run 1", 1),
        (2, "promote", "run 1", 2),
        (3, "promote", "run 1", 4),
        (4, "rollback", "ada", 2),
        (5, "promote", "ada", 5),
        (6, "release", "ada", 6),
        (7, "floor", "gc", 6),
    ]
    assert registry.notes(4)[0].reason == "clicks fell"
    again = rebuild_registry(written, registry)
    assert (again.seq, again.pointer, again.put, again.dropped, again.notes) == (7, False, (), (), 0)
    check_equal(registry, written)


def test_a_stale_registry_catches_up_and_keeps_its_nodes_and_acks(registry: Registry, written: Store) -> None:
    log, known = PointerLog(written, MODEL), History(written, MODEL).read()
    registry.announce(log.read(4))
    registry.put_versions([known[0], Known(ref=ref(3), kind="delta"), Known(ref=known[1].ref, kind="delta")])
    registry.note(Note(wall_ms=1, by="ada", what="compact"))
    registry.note(Note(wall_ms=log.read(2).wall_ms, by="run 1", what="promote", seq=2))
    registry.beat(Node(boot_id="a", name="a"))
    registry.ack(Ack(boot_id="a", name="a", seq=4, version=2, took_ms=1))
    made = rebuild_registry(written, registry)
    assert (made.pointer, made.put, made.dropped, made.notes) == (True, (2, 4, 5, 6), (3,), 6)
    check_equal(registry, written)
    assert registry.notes(100)[0].what == "compact"
    assert len(registry.nodes()) == len(registry.acks(4)) == 1


@pytest.mark.parametrize("seq", [3, 7, 90])
def test_a_registry_of_another_history_is_emptied_first(registry: Registry, written: Store, seq: int) -> None:
    registry.announce(Pointer(seq=seq, active=ref(90), by="another"))
    registry.note(Note(wall_ms=1, by="another", what="rollback", seq=5))
    registry.ack(Ack(boot_id="a", name="a", seq=8, version=2, took_ms=1))
    rebuild_registry(written, registry)
    check_equal(registry, written)
    assert registry.acks(8) == []
    assert {note.by for note in registry.notes(100)} == {"run 1", "ada", "gc"}


def test_a_registry_without_a_store_becomes_empty(registry: Registry, tmp_path: Path) -> None:
    registry.put_versions([Known(ref=ref(3), kind="delta")])
    made = rebuild_registry(open_store(str(tmp_path / "none")), registry)
    assert (made.seq, made.pointer, made.dropped) == (0, False, (3,))
    assert registry.versions() == []
    assert registry.notes(5) == []


def test_a_full_audit_log_is_not_filled_again(written: Store) -> None:
    registry = MemoryRegistry(MODEL, RegistrySettings(notes_max=2))
    assert rebuild_registry(written, registry).notes == 2
    for _ in range(3):
        registry.note(Note(wall_ms=10**12, by="ada", what="compact", version=len(registry.notes(9))))
        assert rebuild_registry(written, registry, notes_max=5).notes == 0
    assert len(registry.notes(9)) == 2


def test_records_of_the_pointer_that_are_gone_or_damaged_take_nothing_from_the_others(tmp_path: Path) -> None:
    store, log = open_store(str(tmp_path)), PointerLog(open_store(str(tmp_path)), MODEL)
    for _ in range(5):
        log.move(copy, by="ada")
    store.remove(f"{MODEL}/pointer/{1:012d}.json")
    (tmp_path / MODEL / "pointer" / f"{3:012d}.json").write_bytes(b"{}")
    registry = MemoryRegistry(MODEL)
    assert rebuild_registry(store, registry).notes == 3
    assert [(note.seq, note.what) for note in registry.notes(9)] == [(2, "move"), (4, "move"), (5, "floor")]


def test_what_a_move_was_is_told_by_what_it_changed() -> None:
    known = [Known(ref=ref(version), kind="delta", outcome="passed") for version in range(1, 6)]
    three = Pointer(seq=3, active=ref(3), previous=ref(2))
    tried = promote(three, known, 4, share=0.1)
    held = rollback(three, known, 2)
    assert kind_of_move(Pointer(), publish(Pointer(), known, 1, 1)) == "promote"
    assert kind_of_move(three, tried) == "canary"
    assert kind_of_move(three, promote(three, known, 4, share=1.0, shadow=True)) == "shadow"
    assert kind_of_move(tried, promote(tried, known, 4)) == "promote"
    assert kind_of_move(three, held) == kind_of_move(held, rollback(held, known, 1)) == "rollback"
    assert kind_of_move(tried, rollback(tried, known, 3)) == "rollback"
    later = [*known, Known(ref=ref(6), kind="delta", outcome="passed")]
    assert kind_of_move(held, rollback(held, later, 2)) == "rollback"  # to where it is held already
    assert kind_of_move(held, promote(held, known, 5, accept=True)) == "promote"
    assert kind_of_move(three, release(three, known)) == "promote"
    assert kind_of_move(rollback(three, known, 3), release(rollback(three, known, 3), known)) == "release"
    assert kind_of_move(three, raise_floor(three, known, 2)) == "floor"
    assert kind_of_move(three, raise_floor(three, known, 0)) == "floor"


def behind(model: str = MODEL) -> float:
    return REGISTRY.get_sample_value("streamlearn_publisher_registry_behind_seconds", {"model": model}) or 0.0


def test_what_a_registry_missed_while_away_is_made_up_for_and_said_once(
    written: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "streamlearn.versions")
    clock, registry = ManualClock(), MemoryRegistry(MODEL, RegistrySettings(reach_s=2))
    announcer = Announcer(written, registry, clock=clock)
    assert announcer.keep_up()
    check_equal(registry, written)
    assert behind() == 0
    registry.clear()
    registry.is_away = True
    newest, known = PointerLog(written, MODEL).newest(), History(written, MODEL).read()
    assert not announcer.moved(newest, "floor")
    clock.sleep(1)
    assert not announcer.published(known)
    assert announcer.is_behind()
    assert behind() == 1
    assert not announcer.dropped([3])
    clock.sleep(1.5)
    assert not announcer.keep_up()
    assert behind() == 2.5
    registry.is_away = False
    assert not announcer.keep_up()  # not tried again so soon
    clock.sleep(4)
    assert announcer.published(known[-1:])
    assert not announcer.is_behind()
    assert behind() == 0
    check_equal(registry, written)
    assert announcer.keep_up()
    said = [(record.levelname, "does not receive the state" in record.message) for record in caplog.records]
    assert said == [("WARNING", True), ("INFO", False)]


def test_a_registry_that_is_away_costs_a_publisher_less_and_less_tries(written: Store) -> None:
    clock, registry = ManualClock(), MemoryRegistry(MODEL, RegistrySettings(reach_s=1))
    tries: list[float] = []
    announcer = Announcer(written, registry, clock=clock)
    registry.is_away = True
    there = registry._open

    def counted() -> threading.Condition:
        tries.append(clock.monotonic_s())
        return there()

    registry._open = counted  # type: ignore[method-assign]
    for _ in range(100):
        assert not announcer.keep_up()
        clock.sleep(1)
    assert tries == [0, 1, 3, 7, 15, 31, 47, 63, 79, 95]


def test_a_move_by_somebody_else_that_the_registry_missed_is_told_by_who_keeps_up(written: Store) -> None:
    registry = MemoryRegistry(MODEL)
    announcer = Announcer(written, registry)
    for wrong in (None, PointerLog(written, MODEL).read(3), Pointer(seq=7), Pointer(seq=99, active=ref(99))):
        registry.clear()
        if wrong is not None:
            registry.announce(wrong)
        assert announcer.keep_up()
        check_equal(registry, written)


def test_a_store_that_is_away_is_no_reason_to_stop(written: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, registry = ManualClock(), MemoryRegistry(MODEL)
    announcer = Announcer(written, registry, clock=clock)

    def refuse(*_: object, **__: object) -> object:
        message = "no store"
        raise StoreUnreachable(message)

    with monkeypatch.context() as patched:
        for name in ("entries", "exists", "read"):
            patched.setattr(type(written), name, refuse)
        assert not announcer.keep_up()
    assert announcer.is_behind()
    clock.sleep(60)
    assert announcer.keep_up()
    check_equal(registry, written)


def test_a_redis_that_lost_its_data_or_came_back_with_old_data_is_told_by_the_announcer(
    own_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    log = PointerLog(store, MODEL)
    with open_registry(own_redis.url, MODEL, RegistrySettings(reach_s=60)) as registry:
        announcer = Announcer(store, registry)
        with Client.from_url(own_redis.url) as client:
            assert announcer.moved(log.move(copy, by="ada"), "promote")
            old = client.dump(f"streamlearn:{{{MODEL}}}:pointer")
            assert announcer.moved(log.move(copy, by="ada"), "promote")
            client.restore(f"streamlearn:{{{MODEL}}}:pointer", 0, old, replace=True)
            assert registry.pointer() == log.read(1)
            assert announcer.keep_up()
            assert registry.pointer() == log.newest()
            client.flushall()
            assert announcer.keep_up()
            assert registry.pointer() == log.newest()
        own_redis.kill()
        with monkeypatch.context() as patched:
            patched.setattr(registry, "settings", RegistrySettings(reach_s=0.5))  # the pause, too
            assert not announcer.moved(log.move(copy, by="ada"), "promote")
        own_redis.restart()
        assert registry.pointer() == log.read(2)
        wait_until(announcer.keep_up, "the registry to be told")
        assert registry.pointer() == log.newest()
        assert [note.seq for note in registry.notes(9)] == [1, 2, 3]


def test_threads_that_move_the_pointer_and_tell_of_it_leave_the_newest(tmp_path: Path) -> None:
    store, registry = open_store(str(tmp_path)), MemoryRegistry(MODEL)
    announcer = Announcer(store, registry)

    def work(by: str) -> None:
        log = PointerLog(store, MODEL)
        for _ in range(8):
            announcer.moved(log.move(copy, by=by), "promote")
            rebuild_registry(store, registry)

    threads = [threading.Thread(target=work, args=(str(number),)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert registry.pointer() == PointerLog(store, MODEL).newest()
    assert {note.seq for note in registry.notes(100)} == set(range(1, 25))


def test_what_verbs_need_of_versions_loads_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from streamlearn.versions import History, PointerLog, open_registry, rebuild_registry\n"
        "from streamlearn.versions.pointer.announcer import Announcer\n"
        "from streamlearn.versions.pointer.fence import Fence\n"
        "open_registry('sqlite:///nowhere/x.db', 'ctr').close()\n"
        "heavy = ('numpy', 'pyarrow', 'redis', 'prometheus_client', 'fsspec', 'streamlearn._native')\n"
        "print(*[name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
