"""Faults: functions that damage a running loop. The caller checks that the loop recovers."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

from streamlearn.errors import ServiceError, StreamlearnError
from tools.chaos.answer_log import ask, check_equal
from tools.chaos.late_node import LateNode
from tools.chaos.target import PROCESSES, WORKERS, Target
from tools.demo import Change
from tools.demo.states import unusable_states
from tools.services import Kafka, KafkaCluster, Redis

__all__ = ["LONG_S", "QUICK", "Fault", "faults_of"]

Fault = Callable[[Target], None]

_STOPPED_S, _LONG_S = (1.0, 6.0), 30.0
_FULL_S, _FILE_BYTES_MAX = 10.0, 4_096
_INVERTED_WALL_S = (5.0, 10.0)
_WAIT_S_MAX, _HELD_S = 60.0, 4.0
# Replies to requests that were sent before a rollback returned may arrive for this long.
_IN_FLIGHT_S = 2.0
_PAIRS = (
    ("trainer", "shard-1"),
    ("node-1", "node-2"),
    ("ingest", "trainer"),
    ("shard-0", "shard-1"),
    ("trainer", "worker-1"),
    ("shard-0", "worker-2"),
    WORKERS,
)
QUICK = ("kill trainer", "kill node-1", "kill shard-0", "kill ingest", "kill worker-1")
"""The faults of a short run."""
_CHANGE = "a changed application takes over, and gives back"
LONG_S = {_CHANGE: 150.0}
"""How long faults may take, if that is more than seconds."""


def faults_of(target: Target, away_s: float) -> dict[str, Fault]:
    """Return all faults for this target by name. Those that stop a service stop it for `away_s`.

    A name contains "node" if and only if the fault hits a node: other faults must leave no request unanswered.
    """
    faults: dict[str, Fault] = {f"kill {name}": partial(_kill, names=(name,)) for name in PROCESSES}
    faults |= {f"kill {' and '.join(names)}": partial(_kill, names=names) for names in _PAIRS}
    faults |= {f"stop {name} for seconds": partial(_stop, name=name) for name in PROCESSES}
    faults |= {
        "kill the trainer while it writes a version": _kill_trainer_writing,
        "kill a node while a version arrives": _kill_node_staging,
        "drain a node": _drain,
        "a file of a version is damaged while a node starts": _damage,
        "a node joins late": _join_late,
        f"stop the trainer for {_LONG_S:.0f} s": _stop_long,
        "stop a worker for longer than the trainer waits": _stop_worker_long,
        "the events report the opposite actions": _invert,
        "the trainer cannot write large files, as on a full disk": _limit_file_size,
        "roll back, then rewind": _roll_back_and_rewind,
        "roll back, then accept the newest version": _roll_back_and_accept,
        "roll back past a revert": _roll_back_past_a_revert,
        "rewind": _rewind,
        "the store of computed columns is unusable": _take_states_away,
        _CHANGE: _change,
    }
    faults |= {f"stop {name} for {away_s:.0f} s": partial(_pause, name=name, away_s=away_s) for name in target.services}
    if isinstance(redis := target.services.get("redis"), Redis):
        faults["flush redis"] = partial(_flush, redis=redis)
    if isinstance(kafka := target.services.get("kafka"), KafkaCluster):
        faults |= {
            f"kill broker {number}": partial(_kill_broker, broker=broker) for number, broker in kafka.brokers.items()
        }
        faults["a broker that is not in sync leads the samples"] = partial(_elect, kafka=kafka)
    return faults


def _kill(target: Target, names: tuple[str, ...]) -> None:
    for name in names:
        target.loop.kill(name)


def _stop(target: Target, name: str) -> None:
    target.loop.signal(name, signal.SIGSTOP)
    time.sleep(target.chance.uniform(*_STOPPED_S))
    target.loop.signal(name, signal.SIGCONT)


def _take_states_away(target: Target) -> None:
    with unusable_states(target.folder):
        time.sleep(target.chance.uniform(*_STOPPED_S))


def _stop_long(target: Target) -> None:
    """Stop the trainer for longer than shards and the registry wait for a client."""
    target.loop.signal("trainer", signal.SIGSTOP)
    time.sleep(_LONG_S)
    target.loop.signal("trainer", signal.SIGCONT)


def _stop_worker_long(target: Target) -> None:
    """Stop a worker until others learn its slices; it must find its way back, and what it held must count once."""
    name = target.chance.choice(WORKERS)
    target.loop.signal(name, signal.SIGSTOP)
    time.sleep(target.folder.settings.workers.worker_wait_s_max + target.chance.uniform(*_STOPPED_S))
    target.loop.signal(name, signal.SIGCONT)


def _invert(target: Target) -> None:
    """Replay some seconds with inverted actions. The loop must learn what the events report."""
    begin_ms, end_ms = (target.feed.event_ms + round(wall_s * 1_000 * target.speed) for wall_s in _INVERTED_WALL_S)
    target.history.invert(begin_ms, end_ms)
    target.loop.wait(lambda: target.feed.event_ms >= end_ms, "the end of the inverted period", _WAIT_S_MAX)


def _limit_file_size(target: Target) -> None:
    """Let the trainer's writes beyond the first 4 KiB of a file fail, as on a full disk.

    The error is EFBIG, not ENOSPC, and small files still succeed. This fills no disk and needs no root.
    """
    pid, before = target.loop.pid("trainer"), target.newest.version
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (_FILE_BYTES_MAX, hard))
    try:
        time.sleep(_FULL_S)
        # One version may have been almost complete.
        if target.newest.version > before + 1 and target.loop.pid("trainer") == pid:
            message = f"version {target.newest.version} was published after {before} without room for its files"
            raise ServiceError(message, help="see the files of that version")
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


def _drain(target: Target) -> None:
    target.loop.signal("node-1", signal.SIGTERM)


def _kill_trainer_writing(target: Target) -> None:
    """Kill the trainer when a version's folder exists and its manifest does not."""
    until_s = time.monotonic() + _WAIT_S_MAX
    while time.monotonic() < until_s:
        for folder in target.store.glob("deltas/*"):
            if not (folder / "manifest.json").exists():
                target.loop.kill("trainer")
                return
        time.sleep(0.001)
    message = f"found no half-written version within {_WAIT_S_MAX:.0f} s"
    raise ServiceError(message, help="check that training continues")


def _kill_node_staging(target: Target) -> None:
    target.wait_newer(target.newest.version)
    target.loop.kill("node-2")


def _damage(target: Target) -> None:
    """Start a node on a damaged file: it must refuse the file by name, and recover when the file is repaired."""
    newest = max(target.store.glob("deltas/*/manifest.json")).parent
    files = sorted(path for path in (newest / "rows").glob("*") if path.is_file())
    if not files:
        message = f"version {newest.name} has no rows"
        raise ServiceError(message, help="check that training continues")
    file = target.chance.choice(files)
    content = file.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 0xFF
    file.write_bytes(target.chance.choice((bytes(flipped), content[: len(content) // 2])))
    try:
        target.loop.kill("node-2")
        target.loop.wait(
            lambda: any(file.name in node.said for node in target.loop.model.nodes()[0]),
            "a node to name the damaged file",
            _WAIT_S_MAX,
        )
    finally:
        repaired = file.with_suffix(".repaired")
        repaired.write_bytes(content)
        repaired.replace(file)


def _join_late(target: Target) -> None:
    """Start one more node: it must answer as the others do, and end without an error."""
    with closing(LateNode(target)) as late_node:
        message = next(
            request for version in reversed(target.answer_log.versions) for request, _ in target.answer_log.of(version)
        )
        answer = ask(late_node.address, message)
        # New versions arrive meanwhile, but the other nodes retain the version of this answer.
        for address in target.loop.nodes:
            check_equal(answer, ask(address, message, version=int(answer.version)), address)


def _roll_back(target: Target) -> int:
    """Roll back to the version active now, and return its number."""
    # The rollback would wait for a killed node until its registration has expired.
    target.loop.wait(
        lambda: len(target.loop.served()) == len(target.loop.nodes),
        "dead nodes to expire",
        _WAIT_S_MAX,
    )
    good = target.active
    target.loop.wait(lambda: target.active > good, "a version to roll back from", _WAIT_S_MAX)
    _roll_back_to(target, good)
    return good


def _roll_back_to(target: Target, good: int) -> None:
    """Roll back to a version, and check that nodes serve only this one while newer versions arrive."""
    target.loop.verb("rollback", "--to", str(good), "--reason", "chaos")
    returned_s = time.monotonic()
    target.wait_newer(target.newest.version)
    time.sleep(_HELD_S)
    if target.active != good or any(version != good for version in target.loop.served()):
        message = f"version {good} is held, but {target.active} is active and nodes serve {target.loop.served()}"
        raise ServiceError(message, help="see `streamlearn versions`")
    target.check_clean(target.answer_log.since(returned_s + _IN_FLIGHT_S))


def _roll_back_past_a_revert(target: Target) -> None:
    """Roll back a second time, to a version older than the revert that ended the first rollback."""
    good = _roll_back(target)
    _rewind_to(target, good)
    target.loop.verb("release", "--reason", "chaos")
    revert = target.newest.version
    target.loop.wait(lambda: target.active > revert, "a version after the revert to be served", _WAIT_S_MAX)
    _roll_back_to(target, good)
    try:
        target.loop.verb("release", "--reason", "chaos")
    except StreamlearnError:
        pass  # all versions after the target are tainted, so release finds none to follow
    else:
        message = f"release follows version {target.active}, which the rollback to {good} had tainted"
        raise ServiceError(message, help="see `streamlearn versions`")
    _rewind_to(target, good)
    target.loop.verb("release", "--reason", "chaos")


def _flush(target: Target, redis: Redis) -> None:
    """Delete all keys of the registry; a rollback must still reach every node."""
    redis.flush()
    _roll_back_and_rewind(target)


def _roll_back_and_rewind(target: Target) -> None:
    good = _roll_back(target)
    _rewind_to(target, good)
    target.loop.verb("release", "--reason", "chaos")


def _roll_back_and_accept(target: Target) -> None:
    _roll_back(target)
    target.loop.verb("promote", str(target.newest.version), "--accept", "--reason", "chaos")
    target.loop.verb("release", "--reason", "chaos")


def _rewind(target: Target) -> None:
    _rewind_to(target, target.active)


def _rewind_to(target: Target, version: int) -> None:
    before = target.newest.version
    target.loop.verb("rewind", "--to", str(version), "--reason", "chaos")

    def has_reverted() -> bool:
        return any(
            known.content_of is not None and known.has_passed
            for known in target.loop.versions()
            if known.version > before
        )

    target.loop.wait(has_reverted, "the revert to be published", _WAIT_S_MAX)


def _change(target: Target) -> None:
    """Let a changed application answer all callers for some seconds: no request may be lost, there and back."""
    own = target.folder.app.name
    name = f"{own}_{target.newest.version}"
    with closing(Change(target.loop, target.folder, target.place / name, name)) as change:
        target.answer_log.is_paused = True

        def answers() -> bool:  # its versions have lower numbers
            return max(target.feed.last) <= change.loop.versions()[-1].version

        try:
            change.switch(name)
            target.loop.wait(answers, f"{name} to answer", _WAIT_S_MAX)
            change.switch(own)
            target.loop.wait(lambda: not answers(), f"{own} to answer again", _WAIT_S_MAX)
            time.sleep(_IN_FLIGHT_S)
        finally:
            target.answer_log.is_paused = False


def _kill_broker(target: Target, broker: Kafka) -> None:
    broker.kill()
    time.sleep(target.chance.uniform(*_STOPPED_S))
    broker.launch()


def _elect(target: Target, kafka: KafkaCluster) -> None:
    """Hold an unclean election that loses nothing: records on one replica alone were never acknowledged."""
    name = target.folder.topic_url("samples").rpartition("/")[2]
    kafka.elect_unclean(name, lambda: None)
    kafka.set_topic(name, {"unclean.leader.election.enable": "false"})


def _pause(target: Target, name: str, away_s: float) -> None:
    service = target.services[name]
    service.pause()
    time.sleep(away_s)
    service.resume()
