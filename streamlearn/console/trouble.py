"""Trouble: what an operator should know of first, from what was gathered. Pure.

It goes by what is said and by what is recorded, never by a guess: who is behind, who is missing, what was refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from streamlearn.console.snapshot import Gathered
from streamlearn.versions import Node, Pointer
from streamlearn.versions.pointer.moves import taints_of

__all__ = ["LEVELS", "Level", "Trouble", "troubles"]

Level = Literal["bad", "warn", "note"]
LEVELS: tuple[Level, ...] = ("bad", "warn", "note")
# A node acts within milliseconds; one that hears of moves by its beat alone is given three.
_BEATS = 3
_REFUSED_SHOWN_MS = 86_400_000


@dataclass(frozen=True)
class Trouble:
    """Something an operator should know.

    Attributes:
        level: `bad`: people are answered wrongly, or might be. `warn`: they will be if it stays so. `note`: it is so
            because somebody wanted it.
        what: What it is about, in a word.
        said: What it is.
        help: What to do.
        since_ms: Since when; 0 where that is not known.
    """

    level: Level
    what: str
    said: str
    help: str = ""
    since_ms: int = 0


def troubles(found: Gathered, *, late_s: float, beat_s: float) -> list[Trouble]:
    """All there is, worst first.

    Args:
        found: What was gathered.
        late_s: From when on training is late.
        beat_s: How often nodes say that they are alive.
    """
    every = [*_of_registry(found), *_of_nodes(found, beat_s), *_of_versions(found, late_s), *_of_pointer(found)]
    every += _of_ingest(found)
    return sorted(every, key=lambda one: LEVELS.index(one.level))


def _of_registry(found: Gathered) -> Iterator[Trouble]:
    if found.registry:
        help = "nodes read the store meanwhile, and moves still take effect; see docs/operating/registry.md"
        yield Trouble("bad", "registry", f"nodes are unknown: {found.registry}", help)
        return
    answer = [one for one in found.nodes if one.state in ("ready", "stale", "draining")]
    if found.pointer.active is not None and not answer:
        said = "no node answers" if found.nodes else "no nodes are registered"
        yield Trouble("bad", "nodes", said, "start some with `streamlearn serve`, or see why they are not ready")


def _of_nodes(found: Gathered, beat_s: float) -> Iterator[Trouble]:
    for one in found.gone:
        help = "see its log; a node that was stopped on purpose disappears after a while"
        yield Trouble(
            "bad", "node", f"{one.name} sends no heartbeat; it last answered with {_at(one)}", help, one.wall_ms
        )
    for one in found.nodes:
        if _lags(found, one, beat_s):
            moves = found.pointer.seq - one.seq
            said = f"{one.name} has not followed {'the last move' if moves == 1 else f'the last {moves} moves'}"
            help = "it follows when it is back; until then take it out of the load balancer"
            yield Trouble("bad", "node", f"{said}: it answers with {_at(one)}", help, found.pointer.wall_ms)
        if one.said or one.state == "stale":
            level: Level = "bad" if one.state == "stale" else "warn"
            does = "is stale" if one.state == "stale" else "says"
            yield Trouble(level, "node", f"{one.name} {does}{f': {one.said}' if one.said else ''}", "see its log")
        elif one.state in ("starting", "draining"):
            yield Trouble("note", "node", f"{one.name} is {one.state}")


def _of_ingest(found: Gathered) -> Iterator[Trouble]:
    if found.dead_share:
        said = f"{found.dead_share:.1%} of ingest's recent events became dead letters"
        yield Trouble("warn", "ingest", said, "see `streamlearn peek APP dead_letters` for each one and its reason")


def _lags(found: Gathered, one: Node, beat_s: float) -> bool:
    """Whether a node should have acted on the pointer's last move by now."""
    if one.state == "starting" or one.seq >= found.pointer.seq:
        return False
    return found.at_ms - found.pointer.wall_ms > _BEATS * beat_s * 1000


def _of_versions(found: Gathered, late_s: float) -> Iterator[Trouble]:
    if not found.known:
        yield Trouble("note", "versions", "no version exists yet", "start a trainer with `streamlearn train`")
        return
    newest = found.known[-1]
    torn = [one for one in found.known if one.lacks]
    if torn:
        is_served = any(ref.version == one.version for ref in found.pointer.needed.values() for one in torn)
        said = f"{_named([one.version for one in torn])} cannot be read: {torn[-1].lacks}"
        yield Trouble("bad" if is_served else "warn", "versions", said, f"see `streamlearn verify {found.model}`")
    tainted = taints_of(found.pointer, found.known)
    if newest.version in tainted:
        # Several taints may have been laid one before the other: people want to know where all of it began.
        count = next(
            (at for at, one in enumerate(reversed(found.known)) if one.version not in tainted), len(found.known)
        )
        mine = [one.version for one in found.known[-count:]]
        began = tainted[mine[0]]
        first = next((one for one in found.known if one.version == began), newest)
        why = f"the judge rejected {began}" if first.outcome == "rejected" else f"{began} was rolled back"
        said = f"{_named(mine)} {'is' if len(mine) == 1 else 'are'} tainted, and not followed: {why}"
        help = (
            f"`streamlearn rewind {found.model} --to VERSION` takes training back; `promote --accept` serves it anyway"
        )
        yield Trouble("warn", "versions", said, help, first.written_wall_ms)
    late_ms = late_s * 1000
    if newest.written_wall_ms and found.at_ms - newest.written_wall_ms > late_ms:
        said = f"no version was published since {newest.version}"
        yield Trouble(
            "warn", "training", said, "check that the trainer and its topics are running", newest.written_wall_ms
        )
    elif found.is_live and newest.watermark_ms is not None and found.at_ms - newest.watermark_ms > late_ms:
        said = f"the newest version, {newest.version}, has learned nothing recent"
        yield Trouble("warn", "training", said, "check whether ingest keeps up with its topics", newest.watermark_ms)


def _of_pointer(found: Gathered) -> Iterator[Trouble]:
    pointer = found.pointer
    if pointer.held and pointer.active is not None:
        said = f"the pointer is held at {pointer.active.version}: nodes do not follow newer versions"
        since_ms = next((one.wall_ms for one in _held(found)), pointer.wall_ms)
        yield Trouble("note", "pointer", said, "release it to follow new versions again", since_ms)
    if pointer.canary is not None:
        does = "scores" if pointer.canary.shadow else "answers"
        said = f"version {pointer.canary.version.version} {does} {pointer.canary.share:.1%} of the requests"
        yield Trouble("note", pointer.canary.kind, said, "promote it, or roll back to end it", pointer.wall_ms)
    for one in found.requests:
        said = f"{one.by or 'somebody'} asked training to go back to version {one.to.version}"
        yield Trouble("note", "request", said, "the trainer obeys at its next cut", one.wall_ms)
    refused = found.refused
    if refused is not None and found.at_ms - refused.wall_ms < _REFUSED_SHOWN_MS:
        said = f"training could not go back to version {refused.to.version} and continues: {refused.reason}"
        help = f"`streamlearn rewind {found.model} --to VERSION` asks for another version"
        yield Trouble("warn", "request", said, help, refused.wall_ms)


def _held(found: Gathered) -> Iterator[Pointer]:
    """The moves since the one that laid the hold, that one first."""
    began = len(found.moves)
    while began and found.moves[began - 1].held:
        began -= 1
    yield from found.moves[began:]


def _at(one: Node) -> str:
    return f"version {one.active}" if one.active else "no version yet"


def _named(versions: list[int]) -> str:
    if len(versions) == 1:
        return f"version {versions[0]}"
    return (
        f"versions {versions[0]} to {versions[-1]}"
        if len(versions) > 2
        else f"versions {versions[0]} and {versions[1]}"
    )
