"""Registries that are away, come back, have lost what they held, or hold something else."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as Client

from streamlearn.errors import RegistryDefect, RegistryUnreachable, UsageError
from streamlearn.settings.versions import RegistrySettings
from streamlearn.testing import MemoryRegistry, wait_until
from streamlearn.versions import Known, Node, Pointer, Registry, open_registry
from streamlearn.versions.pointer.redis_url import RedisUrl
from streamlearn.versions.pointer.registry import Ack, Note
from streamlearn.versions.pointer.registry_redis import RedisRegistry
from tests.versions.racers import ref
from tools.services import Redis

REACH_S = 0.6
SOON = RegistrySettings(reach_s=REACH_S)  # nobody answers
PATIENT = RegistrySettings(reach_s=60.0)  # a Redis that is there, on a machine that may stand still
# Longer than `reach_s`, and shorter than the 120 s that a call without this bound would wait.
SLOW_MACHINE_S = 60.0
SECRET = "sesame-open-wide"

CALLS: dict[str, Callable[[Registry], object]] = {
    "announce": lambda one: one.announce(Pointer(seq=9)),
    "pointer": lambda one: one.pointer(),
    "wait": lambda one: one.wait(10**9, 120),
    "put_versions": lambda one: one.put_versions([Known(ref=ref(1), kind="base")]),
    "versions": lambda one: one.versions(),
    "drop_versions": lambda one: one.drop_versions([1]),
    "beat": lambda one: one.beat(Node(boot_id="a", name="a")),
    "leave": lambda one: one.leave("a"),
    "nodes": lambda one: one.nodes(),
    "ack": lambda one: one.ack(Ack(boot_id="a", name="a", seq=1, version=1, took_ms=1)),
    "acks": lambda one: one.acks(1),
    "wait_acks": lambda one: one.wait_acks(1, 10**6, 120),
    "note": lambda one: one.note(Note(wall_ms=1, by="a", what="b")),
    "notes": lambda one: one.notes(1),
    "clear": lambda one: one.clear(),
}


@pytest.fixture
def registry(own_redis: Redis) -> Iterator[Registry]:
    with open_registry(own_redis.url, "ctr", PATIENT) as registry:
        yield registry


def check_away(call: Callable[[], object]) -> str:
    """That a call says in time that nobody answers; gives what it says."""
    began_s = time.monotonic()
    with pytest.raises(RegistryUnreachable) as caught:
        call()
    assert time.monotonic() - began_s < REACH_S + SLOW_MACHINE_S
    return str(caught.value)


def check_answers(registry: Registry) -> None:
    """That calls work: one that this machine was too slow for is made again."""

    def answers() -> bool:
        try:
            registry.clear()
            return registry.announce(Pointer(seq=3)) and registry.wait(2, 5) == Pointer(seq=3)
        except RegistryUnreachable:
            return False

    wait_until(answers, "the registry to answer")


def test_every_call_to_a_redis_that_was_killed_says_so_and_works_again_when_it_is_back(
    own_redis: Redis, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_answers(registry)
    own_redis.kill()
    with monkeypatch.context() as patched:
        patched.setattr(registry, "settings", SOON)
        for call in CALLS.values():
            assert "does not answer" in check_away(lambda call=call: call(registry))  # type: ignore[misc]
    own_redis.restart()
    assert registry.pointer() == Pointer(seq=3)
    check_answers(registry)


def test_every_call_to_a_redis_that_hangs_says_so_in_time_and_works_again_when_it_goes_on(
    own_redis: Redis, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_answers(registry)
    own_redis.pause()
    try:
        with monkeypatch.context() as patched, ThreadPoolExecutor(len(CALLS)) as pool:
            patched.setattr(registry, "settings", SOON)
            said = list(pool.map(lambda call: check_away(lambda: call(registry)), CALLS.values()))
    finally:
        own_redis.resume()
    assert all("does not answer" in one for one in said)
    check_answers(registry)


@pytest.mark.parametrize("name", ["wait", "wait_acks"])
@pytest.mark.parametrize("trouble", ["pause", "kill"])
def test_who_waits_is_told_that_the_redis_went_away(
    own_redis: Redis, registry: Registry, monkeypatch: pytest.MonkeyPatch, name: str, trouble: str
) -> None:
    check_answers(registry)
    monkeypatch.setattr(registry, "settings", SOON)
    with ThreadPoolExecutor(1) as pool, Client.from_url(own_redis.url) as client:
        waiting = [pool.submit(CALLS[name], registry)]

        def has_begun() -> object:
            if waiting[-1].done():  # this machine was too slow for it
                waiting.append(pool.submit(CALLS[name], registry))
            return client.pubsub_channels()

        wait_until(has_begun, "the wait to begin")
        getattr(own_redis, trouble)()
        began_s = time.monotonic()
        with pytest.raises(RegistryUnreachable):
            waiting[-1].result(120)
        assert time.monotonic() - began_s < REACH_S + SLOW_MACHINE_S
    if trouble == "pause":
        own_redis.resume()


def test_a_subscription_that_is_lost_is_made_again(own_redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    made, subscribe = threading.Semaphore(0), RedisRegistry._subscribe

    def counted(*args: Any) -> None:
        subscribe(*args)
        made.release()

    # One that ends before the answer to it is read counts as a Redis that does not answer, and ends the wait.
    monkeypatch.setattr(RedisRegistry, "_subscribe", counted)
    with (
        open_registry(own_redis.url, "ctr", PATIENT) as registry,
        ThreadPoolExecutor(1) as pool,
        Client.from_url(own_redis.url) as client,
    ):
        waiting = pool.submit(registry.wait, 0, 300)
        for _ in range(3):
            assert made.acquire(timeout=60)
            assert client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        assert made.acquire(timeout=60)
        assert not waiting.done()
        registry.announce(Pointer(seq=1))
        assert waiting.result(120) == Pointer(seq=1)


def test_a_redis_that_lost_everything_is_a_new_one(own_redis: Redis, registry: Registry) -> None:
    check_answers(registry)
    with Client.from_url(own_redis.url) as client:
        client.flushall()
        assert registry.pointer() is None
        assert not any([registry.nodes(), registry.versions(), registry.notes(5)])
        assert registry.wait(0, 0.05) is None
        client.script_flush()
    check_answers(registry)


@pytest.mark.parametrize(("said", "configured"), [("read only replica", "replicaof"), ("used memory", "maxmemory")])
def test_a_redis_that_refuses_to_write_counts_as_away(
    own_redis: Redis, registry: Registry, said: str, configured: str
) -> None:
    check_answers(registry)
    with Client.from_url(own_redis.url) as client:
        if configured == "replicaof":
            client.slaveof("127.0.0.1", own_redis.ports[0])
        else:
            client.config_set("maxmemory", 1)
        assert said in check_away(lambda: registry.announce(Pointer(seq=7)))
        if configured == "replicaof":
            client.slaveof()
        else:
            client.config_set("maxmemory", 0)
    check_answers(registry)


def test_keys_of_a_model_have_one_hash_tag_and_end_with_it(own_redis: Redis, registry: Registry) -> None:
    for call in CALLS.values():
        if call is not CALLS["clear"] and call not in (CALLS["wait"], CALLS["wait_acks"], CALLS["leave"]):
            call(registry)
    with Client.from_url(own_redis.url) as client:
        names = sorted(key.decode() for key in client.scan_iter())
        assert names
        assert all(name.startswith("streamlearn:{ctr}:") for name in names)
        assert 0 < client.pttl("streamlearn:{ctr}:node:a") <= 900_000
        registry.clear()
        assert list(client.scan_iter()) == []


@pytest.mark.parametrize(
    "data", [b"\xff", b"{}", b'{"format":1,"name":' + b"[" * 400_000], ids=["text", "empty", "deep"]
)
def test_bytes_that_cannot_be_read_are_named_and_cleared(own_redis: Redis, registry: Registry, data: bytes) -> None:
    with Client.from_url(own_redis.url) as client:
        client.hset("streamlearn:{ctr}:pointer", mapping={"seq": "what", "data": data})
        client.hset("streamlearn:{ctr}:versions", "1", data)
        client.set("streamlearn:{ctr}:notes", "no list")
        client.set("streamlearn:{ctr}:nodes", "no list")
    for call in (registry.pointer, registry.versions, registry.nodes, lambda: registry.notes(1)):
        with pytest.raises(RegistryDefect, match="rebuild it from the store"):
            call()
    assert registry.announce(Pointer(seq=1))
    registry.clear()
    assert not any([registry.nodes(), registry.versions(), registry.notes(5)])
    check_answers(registry)


def test_no_more_connections_are_made_than_the_setting_says(own_redis: Redis) -> None:
    limits = RegistrySettings(reach_s=60.0, connections_max=2)
    with (
        open_registry(own_redis.url, "ctr", limits) as registry,
        open_registry(own_redis.url, "ctr", PATIENT) as other,
        ThreadPoolExecutor(4) as pool,
    ):
        registry._redis.connection_pool.timeout = REACH_S  # type: ignore[attr-defined]
        # A wait holds a connection for as long as it lasts, and two are all there are.
        waiting = [pool.submit(registry.wait, 0, 120) for _ in range(4)]
        wait_until(lambda: sum(one.done() for one in waiting) >= 2, "two waits to be refused")
        said = [str(one.exception()) for one in waiting if one.done()]
        assert all("does not answer: No connection available" in one for one in said), said
        other.announce(Pointer(seq=1))
        # Who was not refused hears of the move; of two that wait both may have been.
        heard = [one.result(120) for one in waiting if one.exception(120) is None]
        assert heard == [Pointer(seq=1)] * len(heard)


def test_a_password_is_asked_for_and_is_nowhere_to_be_seen(own_redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client.from_url(own_redis.url) as client:
        client.config_set("requirepass", SECRET)
    with open_registry(own_redis.url, "ctr", PATIENT) as registry:
        assert "STREAMLEARN_REGISTRY_PASSWORD" in check_away(registry.pointer)
    with open_registry(own_redis.url.replace("//", f"//:{SECRET}@"), "ctr", PATIENT) as registry:
        check_answers(registry)
        own_redis.kill()
        assert SECRET not in check_away(registry.pointer) + repr(registry) + registry.url
        own_redis.restart()
    monkeypatch.setenv("STREAMLEARN_REGISTRY_PASSWORD", "wrong" + SECRET)
    with Client.from_url(own_redis.url) as client:
        client.config_set("requirepass", SECRET)
    with open_registry(own_redis.url, "ctr", PATIENT) as registry:
        said = check_away(registry.pointer)
        assert "STREAMLEARN_REGISTRY_PASSWORD" in said
        assert SECRET not in said
    monkeypatch.setenv("STREAMLEARN_REGISTRY_PASSWORD", SECRET)
    with open_registry(own_redis.url, "ctr", PATIENT) as registry:
        assert registry.pointer() == Pointer(seq=3)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h", "redis://h:6379/0"),
        (f"redis://ada:{SECRET}@h:7/3", "redis://h:7/3"),
        (f"rediss://:{SECRET}@[::1]:7?ssl_ca_certs=/ca.pem", "rediss://[::1]:7/0"),
        (f"unix://ada:{SECRET}@/run/redis.sock?db=2", "unix:///run/redis.sock?db=2"),
    ],
)
def test_a_url_shows_no_secret(url: str, shown: str) -> None:
    parsed = RedisUrl.parse(url)
    assert parsed.shown == shown
    assert SECRET not in repr(parsed)
    assert parsed.options.get("password", SECRET) == SECRET


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@h:port",
        f"redis://:{SECRET}@h/none",
        f"redis://:{SECRET}@h?socket_timeout=900",
        f"redis://:{SECRET}@",
        f"redis://h?password={SECRET}",
        f"unix://:{SECRET}@",
        f"rediss://h?{SECRET}",
    ],
)
def test_a_url_that_is_refused_is_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_registry(url, "ctr")
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_unix_socket_is_spoken_to(own_redis: Redis, tmp_path: Path) -> None:
    # The service has no socket of its own: what comes in at one goes on to its port.
    import socket

    path = tmp_path / "s"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def pump() -> None:
        near, _ = listener.accept()
        far = socket.create_connection(("127.0.0.1", own_redis.ports[0]))
        back = threading.Thread(target=_copied, args=(far, near))
        back.start()
        _copied(near, far)
        back.join()
        near.close()
        far.close()

    thread = threading.Thread(target=pump)
    thread.start()
    with open_registry(f"unix://{path}?db=1", "ctr", PATIENT) as registry:
        assert registry.announce(Pointer(seq=1))
        with Client.from_url(own_redis.url[:-1] + "1") as client:
            assert list(client.scan_iter()) == [b"streamlearn:{ctr}:pointer"]
    thread.join(120)
    listener.close()
    with open_registry(f"unix://{tmp_path}/none", "ctr", SOON) as registry:
        check_away(registry.pointer)


def _copied(source: object, sink: object) -> None:
    import socket

    assert isinstance(source, socket.socket)
    assert isinstance(sink, socket.socket)
    while data := source.recv(65_536):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)


def test_a_registry_in_memory_can_be_taken_away_from_under_who_waits() -> None:
    registry = MemoryRegistry("ctr")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(registry.wait, 0, 240)
        registry.is_away = True
        with pytest.raises(RegistryUnreachable):
            waiting.result(120)
    for call in CALLS.values():
        with pytest.raises(RegistryUnreachable):
            call(registry)
    registry.is_away = False
    check_answers(registry)


def sqlite_of(path: Path, reach_s: float = REACH_S) -> Registry:
    return open_registry(f"sqlite://{path}", "ctr", RegistrySettings(reach_s=reach_s, poll_ms=2))


def test_a_file_is_made_with_its_folder_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "registry.db"
    with sqlite_of(path) as registry:
        assert not path.exists()
        check_answers(registry)
        assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def test_a_file_that_others_hold_is_waited_for_and_then_away(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    with sqlite_of(path) as registry:
        check_answers(registry)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert registry.pointer() == Pointer(seq=3)
        assert "locked" in check_away(lambda: registry.announce(Pointer(seq=4)))
        other.execute("COMMIT")
        other.close()
        assert registry.announce(Pointer(seq=4))


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    with sqlite_of(path) as registry:
        check_answers(registry)
        for file in tmp_path.iterdir():
            file.unlink()
        assert registry.pointer() is None
        check_answers(registry)
        with sqlite_of(path) as other:
            assert other.pointer() == Pointer(seq=3)


@pytest.mark.parametrize("what", ["garbage", "schema", "foreign", "folder"])
def test_a_file_that_is_no_registry_is_left_alone(tmp_path: Path, what: str) -> None:
    path = tmp_path / "registry.db"
    if what == "folder":
        path.mkdir()
    elif what == "garbage":
        path.write_bytes(b"not a database at all" * 200)
    else:
        with sqlite3.connect(path) as made:
            made.execute("CREATE TABLE mine (a)") if what == "foreign" else made.execute("PRAGMA user_version = 7")
        made.close()
    before = path.read_bytes() if path.is_file() else b""
    with sqlite_of(path) as registry:
        said = check_away(registry.pointer)
        assert "away" in said
        assert ("schema 7" in said) == (what == "schema")
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_rows_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    with sqlite_of(path) as registry:
        registry.announce(Pointer(seq=1))
        with sqlite3.connect(path) as other:
            other.execute("UPDATE pointers SET data = 'x'")
        other.close()
        with pytest.raises(RegistryDefect):
            registry.pointer()
        assert registry.announce(Pointer(seq=2))


def test_a_process_that_was_forked_off_has_connections_of_its_own(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from streamlearn.versions import Pointer, open_registry\n"
        "registry = open_registry(sys.argv[1], 'ctr')\n"
        "registry.announce(Pointer(seq=1))\n"
        "pid = os.fork()\n"
        "registry.announce(Pointer(seq=2 if pid else 3))\n"
        "if not pid: os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "print(registry.pointer().seq)\n"
    )
    url = f"sqlite://{tmp_path}/registry.db"
    command = [sys.executable, "-c", script, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=dict(os.environ))
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_a_second_connection_of_a_process_does_not_end_the_locks_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    script = (
        "import sys\n"
        "from streamlearn.versions import open_registry\n"
        "with open_registry(sys.argv[1], 'ctr') as registry:\n"
        "    print(registry.pointer().seq)\n"
    )

    def seen_by_another() -> int:
        command = [sys.executable, "-c", script, f"sqlite://{path}"]
        return int(
            subprocess.run(command, stdout=subprocess.PIPE, timeout=600, check=True, env=dict(os.environ)).stdout
        )

    with sqlite_of(path) as first, sqlite_of(path) as second:
        for seq, registry in enumerate((first, second, first, second), start=1):
            registry.announce(Pointer(seq=seq))
            # It closes the file after this; as the last, as it believes when our locks have ended.
            assert seen_by_another() == seq


def test_many_processes_may_make_the_file_at_once(tmp_path: Path) -> None:
    registries = [sqlite_of(tmp_path / "registry.db", reach_s=120) for _ in range(12)]
    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(lambda one: one.announce(Pointer(seq=1)), registries)) == 1
    for one in registries:
        one.close()


def test_the_rights_that_the_documentation_gives_are_enough(own_redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "operating" / "registry.md").read_text()
    _, _, after = page.partition("- **Rights**")
    rights = next(line for line in after.splitlines() if line.startswith("        ~")).split()
    with Client.from_url(own_redis.url) as client:
        client.execute_command("ACL", "SETUSER", "ada", "on", f">{SECRET}", *rights)
        client.execute_command("ACL", "SETUSER", "default", "off")
    monkeypatch.setenv("STREAMLEARN_REGISTRY_PASSWORD", SECRET)
    with open_registry(own_redis.url.replace("//", "//ada@"), "ctr", PATIENT) as registry:
        for name, call in CALLS.items():
            if not name.startswith("wait"):
                call(registry)
        registry.announce(Pointer(seq=10**6))
        assert registry.wait(1, 5) == Pointer(seq=10**6)
