"""The contract of registries, on every one of them: in memory, in a file, in a real Redis."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from msgspec import Struct, structs

from streamlearn.errors import UsageError
from streamlearn.settings.versions import RegistrySettings
from streamlearn.testing import MemoryRegistry, wait_until
from streamlearn.versions import Known, Node, Pointer, Registry, open_registry
from streamlearn.versions.pointer.registry import Ack, Door, Note, decode, encode
from tests.versions.racers import race, ref

Opens = Callable[..., Registry]
# One that polls often, and one call may take long: two cores are shared by all that runs.
LIMITS = {"reach_s": 60.0, "poll_ms": 2}


@pytest.fixture(params=["memory", "sqlite", "redis"])
def opens(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opens]:
    """Opens one and the same empty registry, again and again."""
    model = f"m{uuid.uuid4().hex}"
    opened: list[Registry] = []
    url = request.getfixturevalue("redis") if request.param == "redis" else f"sqlite://{tmp_path}/of/registry.db"

    def give(**limits: float) -> Registry:
        settings = RegistrySettings(**{**LIMITS, **limits})  # type: ignore[arg-type]
        if request.param != "memory":
            opened.append(open_registry(url, model, settings))
        elif not opened:
            opened.append(MemoryRegistry(model, settings))
        return opened[-1]

    yield give
    for registry in opened:
        registry.close()


@pytest.fixture
def registry(opens: Opens) -> Registry:
    return opens()


def pointer(seq: int) -> Pointer:
    return Pointer(seq=seq, active=ref(seq), reason=f"moved {seq}", held=seq % 2 == 1)


def ack(boot: str, seq: int = 1, took_ms: float = 1.0) -> Ack:
    return Ack(boot_id=boot, name=f"node-{boot}", seq=seq, version=3, took_ms=took_ms)


def note(wall_ms: int, seq: int = 0, what: str = "rollback") -> Note:
    return Note(wall_ms=wall_ms, by="ada", what=what, seq=seq, reason="why")


def known(version: int, **changed: object) -> Known:
    return Known(ref=ref(version), kind="delta", metrics={"auc": 0.5}, **changed)  # type: ignore[arg-type]


def test_an_empty_registry_has_nothing(registry: Registry) -> None:
    assert registry.pointer() is None
    assert registry.wait(0, 0) is None
    assert not any([registry.versions(), registry.nodes(), registry.acks(1), registry.notes(10)])
    assert registry.wait_acks(1, 1, 0) == []
    registry.put_versions([])
    registry.drop_versions([1])
    registry.leave("nobody")
    registry.clear()


def test_a_copy_of_the_pointer_never_goes_back(opens: Opens) -> None:
    registry, other = opens(), opens()
    assert registry.announce(pointer(5))
    assert other.pointer() == pointer(5)
    assert not other.announce(pointer(5))
    assert not other.announce(pointer(4))
    assert other.announce(pointer(10**12 - 1))
    assert registry.pointer() == pointer(10**12 - 1)


def test_of_threads_that_announce_each_move_is_newer_once(opens: Opens) -> None:
    registry = opens()
    with ThreadPoolExecutor(8) as pool:
        newer = [*pool.map(lambda seq: registry.announce(pointer(seq)), [*range(1, 30), *range(1, 30)])]
    found = registry.pointer()
    assert found is not None
    assert found.seq == 29
    assert 1 <= sum(newer) <= 29


@pytest.mark.parametrize("opens", ["sqlite", "redis"], indirect=True)
def test_of_processes_that_announce_the_newest_move_stays(opens: Opens) -> None:
    registry = opens()
    seqs = [[*range(start, 120, 3)] for start in (1, 2, 3)]
    url = str(registry.url)
    newer = race([{"what": "announce", "url": url, "model": registry.model, "seqs": mine} for mine in [*seqs, seqs[0]]])
    assert registry.pointer() == Pointer(seq=119, active=ref(119))
    won = sorted(seq for mine in newer for seq in mine)
    assert won == sorted(set(won))
    assert won[-1] == 119


def test_who_waits_is_woken_by_a_move(opens: Opens) -> None:
    registry, other = opens(), opens()
    registry.announce(pointer(1))
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(other.wait, 1, 120) for _ in range(3)]
        began_s = time.monotonic()
        registry.announce(pointer(2))
        assert [one.result(120) for one in waiting] == [pointer(2)] * 3
        assert time.monotonic() - began_s < 60
    assert other.wait(1, 20) == pointer(2)
    assert other.wait(2, 0.01) is None


def test_no_move_is_missed_by_who_waits_again_and_again(opens: Opens) -> None:
    registry, other, last = opens(), opens(), 150
    heard: list[int] = [0]

    def listen() -> None:
        while heard[-1] < last:
            found = other.wait(heard[-1], 240)
            assert found is not None
            heard.append(found.seq)

    with ThreadPoolExecutor(1) as pool:
        listening = pool.submit(listen)
        for seq in range(1, last + 1):
            registry.announce(pointer(seq))
        listening.result(240)
    assert heard == sorted(set(heard))
    assert heard[-1] == last


def test_versions_are_kept_by_number_and_dropped(opens: Opens) -> None:
    registry = opens()
    registry.put_versions(known(version) for version in range(1_200, 0, -1))
    registry.put_versions([known(7, outcome="rejected", lacks="a file")])
    found = opens().versions()
    assert [one.version for one in found] == [*range(1, 1_201)]
    assert found[6] == known(7, outcome="rejected", lacks="a file")
    registry.drop_versions(range(2, 1_300))
    assert registry.versions() == [known(1)]


def test_a_node_is_there_while_it_beats(opens: Opens) -> None:
    registry = opens(node_ttl_s=0.3)
    registry.beat(Node(boot_id="b", name="two"))
    registry.beat(Node(boot_id="a", name="two"))
    registry.beat(Node(boot_id="c", name="one", state="ready", staged=(1, 2), said="all is well"))
    found = registry.nodes()
    if len(found) == 3:  # not so slow that they were forgotten meanwhile
        assert [(one.name, one.boot_id) for one in found] == [("one", "c"), ("two", "a"), ("two", "b")]
        assert found[0].staged == (1, 2)

    def alone() -> bool:
        registry.beat(Node(boot_id="b", name="two", state="stale"))
        return [one.boot_id for one in registry.nodes()] == ["b"]

    wait_until(alone, "the others to be forgotten")
    wait_until(lambda: not registry.nodes(), "the last one to be forgotten")


def test_a_node_without_heartbeat_is_silent_for_a_while(opens: Opens) -> None:
    registry = opens(node_ttl_s=0.3, silent_s=600.0)
    silent = Node(boot_id="a", name="one", state="ready", active=4)
    registry.beat(silent)
    registry.beat(Node(boot_id="b", name="two"))
    wait_until(lambda: len(registry.silent()) == 2, "both to fall silent")
    assert registry.nodes() == []
    registry.leave("b")
    registry.beat(Node(boot_id="c", name="three"))
    # On a slow machine the third is silent too.
    assert [one for one in registry.silent() if one.boot_id != "c"] == [silent]
    registry.settings = structs.replace(registry.settings, silent_s=1.0)
    for boot_id in "ac":
        registry.beat(Node(boot_id=boot_id, name=boot_id))
    wait_until(lambda: not registry.nodes() and not registry.silent(), "all to be forgotten")


def test_a_node_says_how_it_is_reached_and_one_of_an_older_release_does_not(registry: Registry) -> None:
    door = Door("10.0.0.7:8001", "10.0.0.7:8000", True, True)
    registry.beat(Node(boot_id="a", name="n", **door._asdict()))
    (node,) = registry.nodes()
    assert (node.grpc, node.http, node.has_tls, node.has_token) == door
    old = decode(b'{"boot_id": "b", "name": "n", "state": "ready", "active": 4}', Node, "memory:")
    assert (old.grpc, old.http, old.has_tls, old.has_token) == Door()

    class Older(Struct, frozen=True):
        """As the release before declares it."""

        boot_id: str
        name: str

    assert decode(encode(node), Older, "memory:") == Older("a", "n")


def test_a_node_that_leaves_is_forgotten_at_once(registry: Registry) -> None:
    for boot in "ab":
        registry.beat(Node(boot_id=boot, name=boot))
    registry.leave("a")
    assert registry.nodes() == [Node(boot_id="b", name="b")]
    assert registry.silent() == []


def test_the_first_ack_of_a_node_counts_and_wakes_who_waits(opens: Opens) -> None:
    registry, other = opens(), opens()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.wait_acks, 4, 2, 120)
        registry.ack(ack("b", 4, took_ms=7))
        registry.ack(ack("b", 4, took_ms=8))
        registry.ack(ack("a", 3))
        registry.ack(ack("a", 4))
        assert waiting.result(120) == [ack("a", 4), ack("b", 4, took_ms=7)]
    assert other.acks(3) == [ack("a", 3)]
    assert other.wait_acks(4, 3, 0.01) == [ack("a", 4), ack("b", 4, took_ms=7)]


def test_acks_are_kept_of_the_newest_moves_and_of_so_many_nodes(opens: Opens) -> None:
    registry = opens(acks_max=3, move_acks_max=2)
    for seq in (5, 1, 2, 9, 3, 4):
        for boot in "abc":
            registry.ack(ack(boot, seq))
    assert [seq for seq in range(12) if registry.acks(seq)] == [4, 5, 9]
    assert [one.boot_id for one in registry.acks(9)] == ["a", "b"]


def test_notes_stand_in_the_order_of_their_times_each_once_and_the_last_are_kept(opens: Opens) -> None:
    registry = opens(notes_max=4)
    for one in (note(5), note(3, seq=12), note(3, seq=7), note(3, seq=7), note(3, seq=7, what="a"), note(9)):
        registry.note(one)
    assert registry.notes(10) == [note(3, seq=7, what="rollback"), note(3, seq=12), note(5), note(9)]
    registry.note(note(1))
    assert len(registry.notes(10)) == 4
    assert registry.notes(2) == [note(5), note(9)]
    assert registry.notes(0) == []


def test_a_registry_that_is_cleared_is_as_new_and_so_is_no_other(opens: Opens) -> None:
    registry = opens()
    registry.announce(pointer(3))
    registry.put_versions([known(1)])
    registry.beat(Node(boot_id="a", name="a"))
    registry.ack(ack("a"))
    registry.note(note(1))
    registry.clear()
    test_an_empty_registry_has_nothing(registry)
    assert registry.announce(pointer(1))


@pytest.mark.parametrize("opens", ["sqlite", "redis"], indirect=True)
def test_models_do_not_see_each_other(opens: Opens) -> None:
    registry = opens()
    registry.announce(pointer(3))
    registry.note(note(1))
    with open_registry(registry.url, registry.model + "-b", registry.settings) as other:
        assert other.pointer() is None
        other.put_versions([known(1)])
        registry.clear()
        assert other.versions() == [known(1)]
        other.clear()


def test_words_of_any_language_come_back(registry: Registry) -> None:
    said = Note(wall_ms=1, by='ä "quoted" \x00 {}', what="日本", reason="\U0001f642\n" * 100)
    registry.note(said)
    assert registry.notes(1) == [said]


def test_many_threads_use_one_registry(opens: Opens) -> None:
    registry = opens()

    def work(number: int) -> None:
        for step in range(10):
            registry.put_versions([known(1 + number * 10 + step)])
            registry.ack(ack(f"{number}-{step}"))
            registry.beat(Node(boot_id=f"{number}", name=f"{number:02d}"))
            registry.note(note(step, seq=number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(registry.versions()) == len(registry.acks(1)) == len(registry.notes(1_000)) == 80
    assert len(registry.nodes()) == 8


def test_an_address_that_is_none_is_refused() -> None:
    for url in ("http://x", "memory", "sqlite://x.db", "sqlite:///x/", "redis://", "redis://h:x", "redis://h/x"):
        with pytest.raises(UsageError):
            open_registry(url, "ctr")
    with pytest.raises(UsageError, match="name of a model"):
        open_registry("sqlite:///x.db", "../ctr")


def test_an_address_that_names_no_file_is_refused_without_its_login() -> None:
    with pytest.raises(UsageError, match="names no file") as refused:
        open_registry("sqlite://u:SECRET@h/x", "ctr")
    assert "SECRET" not in str(refused.value)


class Plain:
    """What a registry is to do, in the plainest way."""

    def __init__(self) -> None:
        self.pointer: Pointer | None = None
        self.versions: dict[int, Known] = {}
        self.nodes: dict[str, Node] = {}
        self.acks: list[Ack] = []
        self.notes: list[Note] = []


class Machine(RuleBasedStateMachine):
    """Does the same to all registries, and compares them with what is plain."""

    def __init__(self, registries: list[Registry]) -> None:
        super().__init__()
        self.registries, self.plain = registries, Plain()
        for registry in registries:
            registry.clear()

    @rule(seq=st.integers(1, 6))
    def announce(self, seq: int) -> None:
        is_newer = self.plain.pointer is None or self.plain.pointer.seq < seq
        assert {registry.announce(pointer(seq)) for registry in self.registries} == {is_newer}
        self.plain.pointer = pointer(seq) if is_newer else self.plain.pointer

    @rule(versions=st.lists(st.integers(1, 6), max_size=4), rows=st.integers(0, 3))
    def put(self, versions: list[int], rows: int) -> None:
        for registry in self.registries:
            registry.put_versions([known(version, rows=rows) for version in versions])
        self.plain.versions |= {version: known(version, rows=rows) for version in versions}

    @rule(versions=st.lists(st.integers(1, 6), max_size=3))
    def drop(self, versions: list[int]) -> None:
        for registry in self.registries:
            registry.drop_versions(versions)
        for version in versions:
            self.plain.versions.pop(version, None)

    @rule(boot=st.sampled_from("abc"), name=st.sampled_from("xy"), seq=st.integers(0, 2))
    def beat(self, boot: str, name: str, seq: int) -> None:
        self.plain.nodes[boot] = Node(boot_id=boot, name=name, seq=seq)
        for registry in self.registries:
            registry.beat(self.plain.nodes[boot])

    @rule(boot=st.sampled_from("abc"))
    def leave(self, boot: str) -> None:
        self.plain.nodes.pop(boot, None)
        for registry in self.registries:
            registry.leave(boot)

    @rule(boot=st.sampled_from("abcd"), seq=st.integers(1, 6), took_ms=st.integers(0, 2))
    def ack(self, boot: str, seq: int, took_ms: float) -> None:
        mine = [one for one in self.plain.acks if one.seq == seq]
        for registry in self.registries:
            registry.ack(ack(boot, seq, took_ms))
        if boot not in [one.boot_id for one in mine] and len(mine) < 3:
            self.plain.acks.append(ack(boot, seq, took_ms))
        kept = sorted({one.seq for one in self.plain.acks})[-3:]
        self.plain.acks = [one for one in self.plain.acks if one.seq in kept]

    @rule(wall_ms=st.integers(0, 5), seq=st.integers(0, 11), what=st.sampled_from(["a", "b"]))
    def note(self, wall_ms: int, seq: int, what: str) -> None:
        said = note(wall_ms, seq, what)
        for registry in self.registries:
            registry.note(said)
        kept = [*self.plain.notes, *([] if said in self.plain.notes else [said])]
        self.plain.notes = sorted(kept, key=lambda one: (one.wall_ms, one.seq, one.what))[-5:]

    @rule()
    def clear(self) -> None:
        self.plain = Plain()
        for registry in self.registries:
            registry.clear()

    @invariant()
    def they_are_alike(self) -> None:
        plain = self.plain
        for registry in self.registries:
            assert registry.pointer() == plain.pointer
            assert registry.versions() == [plain.versions[version] for version in sorted(plain.versions)]
            assert registry.nodes() == sorted(plain.nodes.values(), key=lambda one: (one.name, one.boot_id))
            assert registry.notes(3) == plain.notes[-3:]
            for seq in range(1, 7):
                assert registry.acks(seq) == sorted(
                    (one for one in plain.acks if one.seq == seq), key=lambda one: one.boot_id
                )


def test_all_registries_do_what_is_plain(redis: str, tmp_path: Path) -> None:
    limits = RegistrySettings(reach_s=60, acks_max=3, move_acks_max=3, notes_max=5, node_ttl_s=600)
    registries = [
        MemoryRegistry("machine", limits),
        open_registry(f"sqlite://{tmp_path}/registry.db", "machine", limits),
        open_registry(redis, "machine", limits),
    ]
    run_state_machine_as_test(
        lambda: Machine(registries),  # type: ignore[arg-type]
        settings=hypothesis_settings(max_examples=25, stateful_step_count=25, derandomize=True, database=None),
    )
    for registry in registries:
        registry.close()


def test_a_process_that_waits_hears_of_a_move_within_milliseconds(redis: str) -> None:
    model = f"m{uuid.uuid4().hex}"
    with open_registry(redis, model, RegistrySettings(reach_s=60.0)) as registry:
        heard: list[object] = []
        waiter = threading.Thread(
            target=lambda: heard.extend(race([{"what": "hear", "url": redis, "model": model, "upto": 40}]))
        )
        waiter.start()
        for seq in range(1, 41):
            wait_until(lambda: _subscribers(redis, model) > 0, "somebody to listen")
            registry.announce(Pointer(seq=seq, active=ref(seq), wall_ms=time.time_ns() // 1_000))
        waiter.join(300)
    took_ms = sorted(ms for _, ms in heard[0])  # type: ignore[attr-defined]
    assert len(took_ms) > 5
    # The best of them say what it costs; the others what else this machine had to do. Who is not woken hears after 1 s.
    assert took_ms[len(took_ms) // 4] < 100


def _subscribers(url: str, model: str) -> int:
    from redis import Redis

    with Redis.from_url(url) as client:
        found: list[tuple[bytes, int]] = client.pubsub_numsub(f"streamlearn:{{{model}}}:moved")
    return found[0][1]
