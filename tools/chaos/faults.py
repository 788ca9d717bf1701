"""Faults: what may happen to a loop that runs. Each strikes, and leaves it to others to see that all is well again."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

from streamlearn.errors import ServiceError, StreamlearnError
from tools.chaos.ground import PROCESSES, Ground
from tools.chaos.heard import ask, differ
from tools.chaos.late import LateNode
from tools.services import Kafka, KafkaCluster, Redis

__all__ = ["QUICK", "faults_of"]

Strike = Callable[[Ground], None]

_STOPPED_S, _LONG_S = (1.0, 6.0), 30.0
_FULL_S, _ROOM_BYTES = 10.0, 4_096
_TURN_WALL_S = (5.0, 10.0)
_STRIKE_S_MAX, _HELD_S = 60.0, 4.0
# Replies to requests that were sent before a rollback returned may arrive for this long.
_IN_FLIGHT_S = 2.0
_PAIRS = (("trainer", "shard-1"), ("node-1", "node-2"), ("ingest", "trainer"), ("shard-0", "shard-1"))
QUICK = ("kill trainer", "kill node-1", "kill shard-0", "kill ingest")
"""Faults that a short run draws from."""


def faults_of(ground: Ground, away_s: float) -> dict[str, Strike]:
    """All that may happen there, by name, of which services are away for some seconds."""
    found: dict[str, Strike] = {f"kill {name}": partial(_kill, names=(name,)) for name in PROCESSES}
    found |= {f"kill {' and '.join(names)}": partial(_kill, names=names) for names in _PAIRS}
    found |= {f"stop {name} for seconds": partial(_stop, name=name) for name in PROCESSES}
    found |= {
        "kill the trainer while a version is written": _kill_mid_write,
        "kill a node when a version comes": _kill_staging,
        "drain a node": _drain,
        "a file of a version is damaged while a node starts": _damage,
        "a node joins late": _late,
        f"stop the trainer for {_LONG_S:.0f} s": _stop_long,
        "what people did is told the wrong way round": _turn,
        "the trainer can write no large file, as on a full disk": _fill,
        "roll back, then put training back": _roll_back_and_rewind,
        "roll back, then accept what was left": _roll_back_and_accept,
        "roll back past a revert": _roll_back_past_a_revert,
        "put training back": _rewind,
    }
    found |= {f"stop {name} for {away_s:.0f} s": partial(_away, name=name, away_s=away_s) for name in ground.services}
    if isinstance(redis := ground.services.get("redis"), Redis):
        found["flush redis"] = partial(_flush, redis=redis)
    if isinstance(kafka := ground.services.get("kafka"), KafkaCluster):
        found |= {f"kill broker {node}": partial(_kill_broker, broker=kafka.brokers[node]) for node in kafka.brokers}
        found["a broker that is not in sync leads the samples"] = partial(_elect, kafka=kafka)
    return found


def _kill(ground: Ground, names: tuple[str, ...]) -> None:
    for name in names:
        ground.loop.kill(name)


def _stop(ground: Ground, name: str) -> None:
    ground.loop.signal(name, signal.SIGSTOP)
    time.sleep(ground.chance.uniform(*_STOPPED_S))
    ground.loop.signal(name, signal.SIGCONT)


def _stop_long(ground: Ground) -> None:
    """Longer than shards and the registry wait for anybody."""
    ground.loop.signal("trainer", signal.SIGSTOP)
    time.sleep(_LONG_S)
    ground.loop.signal("trainer", signal.SIGCONT)


def _turn(ground: Ground) -> None:
    """Some seconds of data are told the wrong way round; they are learned as they are told."""
    begin_ms, end_ms = (ground.feed.event_ms + round(wall_s * 1_000 * ground.speed) for wall_s in _TURN_WALL_S)
    ground.turning.turn(begin_ms, end_ms)
    ground.loop.wait(lambda: ground.feed.event_ms >= end_ms, "the stretch to be over", _STRIKE_S_MAX)


def _fill(ground: Ground) -> None:
    """Writes of the trainer beyond the first few bytes of a file fail, as with a disk that is full.

    The error is EFBIG, not ENOSPC, and small files still find room; no disk is filled, and nobody has to be root.
    """
    pid, before = ground.loop.pid("trainer"), ground.newest.version
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (_ROOM_BYTES, hard))
    try:
        time.sleep(_FULL_S)
        # One may have been all but written.
        if ground.newest.version > before + 1 and ground.loop.pid("trainer") == pid:
            message = f"version {ground.newest.version} was published where there was no room, after {before}"
            raise ServiceError(message, help="see what it wrote")
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


def _drain(ground: Ground) -> None:
    ground.loop.signal("node-1", signal.SIGTERM)


def _kill_mid_write(ground: Ground) -> None:
    """Kill the trainer when a version's folder is there, and its manifest is not."""
    until_s = time.monotonic() + _STRIKE_S_MAX
    while time.monotonic() < until_s:
        for folder in ground.store.glob("deltas/*"):
            if not (folder / "manifest.json").exists():
                ground.loop.kill("trainer")
                return
        time.sleep(0.001)
    message = f"no version was met while it was written within {_STRIKE_S_MAX:.0f} s"
    raise ServiceError(message, help="see whether training goes on")


def _kill_staging(ground: Ground) -> None:
    ground.wait_newer(ground.newest.version)
    ground.loop.kill("node-2")


def _damage(ground: Ground) -> None:
    """A node that starts meets a file that is torn: it must not serve it, and must be well once it is mended."""
    newest = max(ground.store.glob("deltas/*/manifest.json")).parent
    files = sorted(one for one in (newest / "rows").glob("*") if one.is_file())
    if not files:
        message = f"version {newest.name} has no rows"
        raise ServiceError(message, help="see whether training goes on")
    file = ground.chance.choice(files)
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    file.write_bytes(ground.chance.choice((bytes(flipped), whole[: len(whole) // 2])))
    try:
        ground.loop.kill("node-2")
        ground.loop.wait(
            lambda: any(file.name in one.said for one in ground.loop.model.nodes()[0]),
            "a node to name the file that is damaged",
            _STRIKE_S_MAX,
        )
    finally:
        mended = file.with_suffix(".mended")
        mended.write_bytes(whole)
        mended.replace(file)


def _late(ground: Ground) -> None:
    """A node that joins late answers as the others do, and ends in order."""
    with closing(LateNode(ground)) as late:
        message = next(one for version in reversed(ground.heard.versions) for one, _ in ground.heard.of(version))
        answer = ask(late.address, message)
        # Versions come all the while: the others retain the one that it has begun with.
        for address in ground.loop.nodes:
            differ(answer, ask(address, message, version=int(answer.version)), address)


def _roll_back(ground: Ground) -> int:
    # A node that was killed is waited for, and named as silent, until another is in its place for a while.
    ground.loop.wait(
        lambda: len(ground.loop.served()) == len(ground.loop.nodes), "dead nodes to be forgotten", _STRIKE_S_MAX
    )
    good = ground.active
    ground.loop.wait(lambda: ground.active > good, "a version to roll back from", _STRIKE_S_MAX)
    _roll_back_to(ground, good)
    return good


def _roll_back_to(ground: Ground, good: int) -> None:
    """Roll back to a version, and check that it alone is served while newer ones come."""
    ground.loop.verb("rollback", "--to", str(good), "--reason", "chaos")
    returned_s = time.monotonic()
    # Versions come, and are not followed.
    ground.wait_newer(ground.newest.version)
    time.sleep(_HELD_S)
    if ground.active != good or any(one != good for one in ground.loop.served()):
        message = f"version {good} is held, and {ground.active} is active, {ground.loop.served()} are served"
        raise ServiceError(message, help="see `streamlearn versions`")
    ground.check_clean(ground.heard.since(returned_s + _IN_FLIGHT_S))


def _roll_back_past_a_revert(ground: Ground) -> None:
    """A second incident: roll back to a version older than the revert that ended the first one."""
    good = _roll_back(ground)
    _rewind_to(ground, good)
    ground.loop.verb("release", "--reason", "chaos")
    revert = ground.newest.version
    ground.loop.wait(lambda: ground.active > revert, "a version after the revert to be served", _STRIKE_S_MAX)
    _roll_back_to(ground, good)
    try:
        ground.loop.verb("release", "--reason", "chaos")
    except StreamlearnError:
        pass  # all that was served after the target is tainted, so there is nothing to follow
    else:
        message = f"release follows version {ground.active}, which a rollback to {good} left"
        raise ServiceError(message, help="see `streamlearn versions`")
    _rewind_to(ground, good)
    ground.loop.verb("release", "--reason", "chaos")


def _flush(ground: Ground, redis: Redis) -> None:
    """The registry loses everything; a rollback must still reach every node."""
    redis.flush()
    _roll_back_and_rewind(ground)


def _roll_back_and_rewind(ground: Ground) -> None:
    good = _roll_back(ground)
    _rewind_to(ground, good)
    ground.loop.verb("release", "--reason", "chaos")


def _roll_back_and_accept(ground: Ground) -> None:
    _roll_back(ground)
    ground.loop.verb("promote", str(ground.newest.version), "--accept", "--reason", "chaos")
    ground.loop.verb("release", "--reason", "chaos")


def _rewind(ground: Ground) -> None:
    _rewind_to(ground, ground.active)


def _rewind_to(ground: Ground, version: int) -> None:
    before = ground.newest.version
    ground.loop.verb("rewind", "--to", str(version), "--reason", "chaos")

    def reverted() -> bool:
        return any(
            one.content_of is not None and one.outcome == "passed"
            for one in ground.loop.versions()
            if one.version > before
        )

    ground.loop.wait(reverted, "training to go back", _STRIKE_S_MAX)


def _kill_broker(ground: Ground, broker: Kafka) -> None:
    broker.kill()
    time.sleep(ground.chance.uniform(*_STOPPED_S))
    broker.launch()


def _elect(ground: Ground, kafka: KafkaCluster) -> None:
    """An unclean election where nothing was lost: with two replicas in sync, what one alone has is not acknowledged."""
    name = ground.folder.topic_url("samples").rpartition("/")[2]
    kafka.elect_unclean(name, lambda: None)
    kafka.set_topic(name, {"unclean.leader.election.enable": "false"})


def _away(ground: Ground, name: str, away_s: float) -> None:
    service = ground.services[name]
    service.pause()
    time.sleep(away_s)
    service.resume()
