"""Looking at a model for many: how often, by whom it is waited for, and what is said when the store fails."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from streamlearn.console.gather import Gatherer
from streamlearn.console.snapshot import Gathered
from streamlearn.console.watch import Watch
from streamlearn.errors import StoreUnreachable
from streamlearn.online.fold_progress import fold_facts
from streamlearn.settings import Settings
from streamlearn.settings.console import ConsoleSettings
from streamlearn.settings.versions import RegistrySettings
from streamlearn.testing import ManualClock, wait_until
from streamlearn.versions import Node, PointerLog
from streamlearn.versions.pointer.model import Model
from streamlearn.versions.pointer.moves import rollback
from streamlearn.versions.pointer.registry import Ack
from streamlearn.versions.pointer.switch_log import SwitchLog
from streamlearn.versions.store.interface import Entry
from tests.cli.place import Place
from tests.console.gathered import gathered, moved
from tests.online.shop import folder_of
from tests.versions.history import MODEL

DEADLINE_S = 60.0


class Source:
    """Counts looks; may fail, or hang until it is let go."""

    def __init__(self) -> None:
        self.looks, self.fails, self.free = 0, False, threading.Event()
        self.free.set()

    def gather(self) -> Gathered:
        self.looks += 1
        assert self.free.wait(DEADLINE_S)
        if self.fails:
            message = "the store is away"
            raise StoreUnreachable(message, help="bring it back")
        return gathered(moved(self.looks, 10))


@pytest.fixture
def watching() -> Iterator[Callable[..., tuple[Source, Watch]]]:
    with ExitStack() as stack:

        def begin(*, refresh_s: float = 3_600.0, idle_s: float = 3_600.0) -> tuple[Source, Watch]:
            source = Source()
            watch = Watch(source.gather, lambda found: {"seq": found.pointer.seq}, refresh_s=refresh_s, idle_s=idle_s)
            stack.callback(watch.close)
            stack.callback(source.free.set)
            return source, watch

        yield begin


def test_many_visitors_cost_one_look(watching: Callable[..., tuple[Source, Watch]]) -> None:
    source, watch = watching()
    said: list[bytes] = []
    threads = [threading.Thread(target=lambda: said.append(watch.seen(DEADLINE_S).state)) for _ in range(20)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert said == [b'{"seq":1}'] * 20
    assert source.looks == 1


def test_without_a_visitor_nothing_is_looked_at(watching: Callable[..., tuple[Source, Watch]]) -> None:
    source, watch = watching(refresh_s=0.001, idle_s=0.05)
    assert source.looks == 0
    watch.seen(DEADLINE_S)
    assert wait_until(lambda: _is_quiet(source), "looking ends when nobody asks", DEADLINE_S)


def _is_quiet(source: Source) -> bool:
    before = source.looks
    return not threading.Event().wait(0.1) and source.looks == before


def test_after_a_move_the_next_look_is_a_new_one(watching: Callable[..., tuple[Source, Watch]]) -> None:
    _, watch = watching()
    assert watch.seen(DEADLINE_S).state == b'{"seq":1}'
    watch.look()
    assert watch.seen(DEADLINE_S).state == b'{"seq":2}'


def test_a_look_that_was_under_way_at_a_move_is_not_taken_for_a_new_one(
    watching: Callable[..., tuple[Source, Watch]],
) -> None:
    source, watch = watching()
    source.free.clear()
    asking = threading.Thread(target=watch.seen, args=(DEADLINE_S,))
    asking.start()
    wait_until(lambda: source.looks == 1, "the first look began", DEADLINE_S)
    watch.look()
    source.free.set()
    assert watch.seen(DEADLINE_S).state == b'{"seq":2}'
    asking.join()


def test_a_store_that_fails_leaves_what_was_seen_and_says_so(watching: Callable[..., tuple[Source, Watch]]) -> None:
    source, watch = watching()
    watch.seen(DEADLINE_S)
    source.fails = True
    watch.look()
    seen = watch.seen(DEADLINE_S)
    assert (seen.state, seen.error, seen.help) == (b'{"seq":1}', "the store is away", "bring it back")
    source.fails = False
    watch.look()
    assert watch.seen(DEADLINE_S).error == ""


def test_a_store_that_hangs_holds_no_visitor_for_long(watching: Callable[..., tuple[Source, Watch]]) -> None:
    source, watch = watching()
    watch.seen(DEADLINE_S)
    source.free.clear()
    watch.look()
    seen = watch.seen(0.05)
    assert seen.state == b'{"seq":1}'
    assert "have not answered within 0.05 s" in seen.error


def test_versions_are_listed_when_it_is_time_or_when_one_is_served_that_is_not_known(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    model = Model(MODEL, str(place.folder / "store"), "", Settings())
    entries = model.store.entries

    def noted(path: str) -> list[Entry]:
        listed.append(path)
        return entries(path)

    monkeypatch.setattr(model.store, "entries", noted)
    clock = ManualClock()
    gatherer = Gatherer(model, ConsoleSettings(versions_s=5.0, moves_max=3), clock=clock)
    first = gatherer.gather()
    assert [path for path in listed if "deltas" in path]
    assert [one.version for one in first.known] == [1, 2, 4, 5]
    assert ([one.seq for one in first.moves], first.moves_left) == ([2, 3, 4], 1)
    listed.clear()
    place.cut(6)
    assert gatherer.gather().known == first.known
    assert not [path for path in listed if "deltas" in path]
    place.follow(6)
    assert gatherer.gather().known[-1].version == 6, "at once, as it is served"
    listed.clear()
    clock.sleep(5.0)
    gatherer.gather()
    assert [path for path in listed if "deltas" in path]


@pytest.mark.parametrize("more", [0, 1, 2], ids=["less far", "as far", "farther"])
def test_moves_and_versions_after_a_restore_of_the_store_are_those_of_the_copy(place: Place, more: int) -> None:
    gatherer = Gatherer(Model(MODEL, str(place.folder / "store"), "", Settings()), ConsoleSettings())
    shutil.copytree(place.folder / "store", place.folder / "copy")
    place.cut(6)
    place.follow(6)
    assert [move.active_version for move in gatherer.gather().moves] == [1, 2, 4, 5, 6]
    shutil.rmtree(place.folder / "store")
    (place.folder / "copy").rename(place.folder / "store")
    log = PointerLog(place.store, MODEL)
    for _ in range(more):
        log.move(partial(rollback, known=place.known, to=4), by="ada")
    after = gatherer.gather()
    assert after.moves == tuple(log.read(seq) for seq in log.seqs())
    assert (after.moves[-1], after.known) == (log.newest(), place.known)


def test_the_switches_are_those_of_the_served_name(place: Place) -> None:
    model = Model(MODEL, str(place.folder / "store"), "", Settings())
    assert Gatherer(model, ConsoleSettings()).gather().switch is None
    log = SwitchLog(model.store, "shop")
    log.begin("shop", MODEL, by="ada")
    clock = ManualClock()
    gatherer = Gatherer(model, ConsoleSettings(versions_s=5.0), served_name="shop", clock=clock)
    assert gatherer.gather().answers_callers is False
    log.switch(MODEL, by="ada")
    clock.sleep(5.0)
    assert gatherer.gather().answers_callers is True
    assert gatherer.gather().switch == log.newest()


def test_features_are_read_as_often_as_versions_and_what_is_away_fails_nothing(place: Place) -> None:
    model = Model(MODEL, str(place.folder / "store"), "", Settings())
    clock, read = ManualClock(), list[Any]()

    def features() -> Any:
        read.append(fold_facts(folder_of(place.folder, "redis://127.0.0.1:1")))
        return read[-1]

    gatherer = Gatherer(model, ConsoleSettings(versions_s=5.0), clock=clock, features=features)
    found = [gatherer.gather() for _ in range(3)]
    assert len(read) == 1
    assert [(one.pointer, one.features) for one in found] == [(place.pointer, read[0])] * 3
    assert "the feature states at redis://127.0.0.1:1/0 do not answer" in read[0]["error"]
    clock.sleep(5.0)
    gatherer.gather()
    assert len(read) == 2


def test_workers_are_asked_as_often_as_versions_are_listed_and_old_answers_do_not_stay(place: Place) -> None:
    model, clock = Model(MODEL, str(place.folder / "store"), "", Settings()), ManualClock()
    answers: list[Any] = [{"error": "", "members": [{}, {}]}, {"error": "it does not answer", "members": []}]
    gatherer = Gatherer(model, ConsoleSettings(versions_s=5.0), clock=clock, workers=lambda: answers[0])
    assert [gatherer.gather().workers for _ in range(2)] == [answers[0]] * 2
    del answers[0]
    clock.sleep(5.0)
    assert gatherer.gather().workers == {"error": "it does not answer", "members": []}


def test_an_ack_counts_until_the_next_heartbeat_even_if_that_is_of_an_older_move(place: Place) -> None:
    model = Model(MODEL, str(place.folder / "store"), f"sqlite://{place.folder}/registry.db", Settings())
    before = Node(boot_id="a", name="node-a", state="ready", active=4, seq=3, wall_ms=1_000)
    try:
        place.registry.beat(before)
        place.registry.ack(Ack(boot_id="a", name="node-a", seq=4, version=5, took_ms=1.0, wall_ms=1_500))
        assert [(node.seq, node.active) for node in model.nodes()[0]] == [(4, 5)]
        # The store was restored from an older copy, and the node went back.
        place.registry.beat(structs.replace(before, wall_ms=2_000))
        assert [(node.seq, node.active) for node in model.nodes()[0]] == [(3, 4)]
    finally:
        model.close()


def test_a_silent_node_last_answered_with_the_version_that_it_acknowledged_last(place: Place) -> None:
    settings = Settings(registry=RegistrySettings(node_ttl_s=0.3))
    where = str(place.folder / "store"), f"sqlite://{place.folder}/registry.db"
    model, patient = Model(MODEL, *where, settings), Model(MODEL, *where, Settings())
    seq = place.pointer.seq
    try:
        place.registry.beat(Node(boot_id="a", name="node-a", state="ready", active=5, seq=seq - 3, wall_ms=1_000))
        for move, version in ((seq - 2, 4), (seq - 1, 3)):
            place.registry.ack(Ack(boot_id="a", name="node-a", seq=move, version=version, took_ms=1.0, wall_ms=2_000))
        assert [(node.seq, node.active) for node in patient.nodes()[0]] == [(seq - 1, 3)]
        wait_until(lambda: not model.nodes()[0], "it is silent")
        (silent,) = model.missing([])
        assert (silent.seq, silent.active) == (seq - 1, 3), "an older heartbeat does not hide what it has confirmed"
    finally:
        model.close()
        patient.close()


def test_a_node_that_falls_silent_is_gone_until_it_leaves(place: Place, tmp_path: Path) -> None:
    settings = Settings(registry=RegistrySettings(node_ttl_s=0.3))
    model = Model(MODEL, str(tmp_path / "store"), f"sqlite://{tmp_path}/registry.db", settings)
    gatherer = Gatherer(model, ConsoleSettings())
    try:
        place.registry.beat(Node(boot_id="a", name="node-a", state="ready", active=5, seq=4))
        wait_until(lambda: [one.name for one in gatherer.gather().gone] == ["node-a"], "it is gone")
        assert gatherer.gather().nodes == ()
        place.registry.leave("a")
        assert gatherer.gather().gone == ()
    finally:
        model.close()
