"""Trouble: the problems that an operator should know, from what was gathered. Pure.

It uses only reported and recorded facts, and never guesses: nodes that are behind or missing, versions that were
rejected.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Literal

from streamlearn.console.snapshot import Gathered
from streamlearn.errors import MoveRefused
from streamlearn.times import time_text
from streamlearn.versions import Node, Pointer
from streamlearn.versions.pointer.moves import release, rewind_targets, taints_of

__all__ = ["LEVELS", "LateAfter", "Trouble", "is_late", "troubles"]

_Level = Literal["bad", "warn", "note"]
LEVELS: tuple[_Level, ...] = ("bad", "warn", "note")
# A node follows within milliseconds; one that learns of moves only with its heartbeats gets three of them.
_BEATS = 3
_LATE_BEATS = 2
_REFUSED_SHOWN_MS = 86_400_000


@dataclass(frozen=True)
class LateAfter:
    """The ages, in seconds, from which something is late.

    Attributes:
        beat_s: How often nodes send a heartbeat: after two without one, a node or a registry is late.
        silent_s: From then on a registry without an answer is bad, as a node without a heartbeat is.
        version_s: The newest version is late.
        training_s: Training is in trouble.
    """

    beat_s: float
    silent_s: float
    version_s: float
    training_s: float


def is_late(found: Gathered, node: Node, beat_s: float) -> bool:
    """Return whether two heartbeats of a node are missing."""
    return found.at_ms - node.wall_ms > _LATE_BEATS * beat_s * 1000


@dataclass(frozen=True)
class Trouble:
    """A problem.

    Attributes:
        level: `bad`: users may get wrong answers now. `warn`: they will if it stays so. `note`: someone wanted it so.
        what: Its subject, in one word.
        said: The problem.
        help: The remedy.
        since_ms: When it began; 0 if that is unknown.
    """

    level: _Level
    what: str
    said: str
    help: str = ""
    since_ms: int = 0


def troubles(found: Gathered, after: LateAfter) -> list[Trouble]:
    """Return all problems, worst first."""
    problems = [*_of_registry(found, after), *_of_nodes(found, after.beat_s)]
    problems += [*_of_versions(found, after.training_s), *_of_pointer(found), *_of_switch(found)]
    problems += _of_workers(found, after.silent_s)
    for process in found.given_up:
        text = f"`up` gave {process.name} up ({process.how}), and it does not run"
        problems.append(Trouble("warn", "process", text, process.help, process.wall_ms))
    if found.dead_share:
        text = f"{found.dead_share:.1%} of ingest's recent events became dead letters"
        help = "see `streamlearn peek APP dead_letters` for each one and its reason"
        problems.append(Trouble("warn", "ingest", text, help))
    return sorted(problems, key=lambda problem: LEVELS.index(problem.level))


def _of_registry(found: Gathered, after: LateAfter) -> Iterator[Trouble]:
    if found.registry:
        level: _Level = "warn" if found.at_ms - found.known_ms <= after.silent_s * 1000 else "bad"
        help = 'nodes read the store meanwhile, and moves still take effect; see "The registry" in the documentation'
        yield Trouble(level, "registry", f"nodes are unknown: {found.registry}", help, found.known_ms)
        return
    is_answered = any(node.state in ("ready", "stale", "aside", "draining") for node in found.nodes)
    # A silent node is named by itself, with what to do about it.
    # A replaced application may be stopped.
    is_wanted = found.pointer.active is not None and found.answers_callers
    if is_wanted and not is_answered and (found.nodes or not found.gone):
        text = "no node answers" if found.nodes else "no nodes are registered"
        yield Trouble("bad", "nodes", text, "start some with `streamlearn serve APP`, or see why they are not ready")


def _of_nodes(found: Gathered, beat_s: float) -> Iterator[Trouble]:
    for node in found.gone:
        text = f"{node.name} sends no heartbeat; it last answered with {_active(node)}"
        help = (
            "it may still answer: take it out of the load balancer, then end it (SIGKILL, if it is stopped); `up` or "
            "systemd starts it again"
        )
        yield Trouble("bad", "node", text, help, node.wall_ms)
    for node in found.nodes:
        if is_late(found, node, beat_s):
            text = f"the heartbeat of {node.name} is late"
            yield Trouble("warn", "node", text, "see its log if it does not come back", node.wall_ms)
        if _lags(found, node, beat_s):
            moves = found.pointer.seq - node.seq
            text = f"{node.name} has not followed {'the last move' if moves == 1 else f'the last {moves} moves'}"
            help = "it follows when it is back; until then take it out of the load balancer"
            yield Trouble("bad", "node", f"{text}: it answers with {_active(node)}", help, found.pointer.wall_ms)
        if node.said or node.state == "stale":
            level: _Level = "bad" if node.state == "stale" else "warn"
            does = "is stale" if node.state == "stale" else "says"
            yield Trouble(level, "node", f"{node.name} {does}{f': {node.said}' if node.said else ''}", "see its log")
        elif node.state in ("starting", "draining"):
            yield Trouble("note", "node", f"{node.name} is {node.state}")


def _lags(found: Gathered, node: Node, beat_s: float) -> bool:
    """Return whether a node should have followed the pointer's last move by now and has not."""
    if node.state == "starting" or node.seq >= found.pointer.seq:
        return False
    return found.at_ms - found.pointer.wall_ms > _BEATS * beat_s * 1000


def _of_versions(found: Gathered, late_s: float) -> Iterator[Trouble]:
    if not found.known:
        yield Trouble("note", "versions", "no version exists yet", "start a trainer with `streamlearn train APP`")
        return
    torn = [known for known in found.known if known.lacks]
    if torn:
        served = {ref.version for ref in found.pointer.needed.values()}
        level: _Level = "bad" if any(known.version in served for known in torn) else "warn"
        text = f"{_named([known.version for known in torn])} cannot be read: {torn[-1].lacks}"
        yield Trouble(level, "versions", text, "see `streamlearn verify MODEL`")
    yield from _of_taints(found)
    newest, late_ms = found.known[-1], late_s * 1000
    if newest.written_wall_ms and found.at_ms - newest.written_wall_ms > late_ms:
        text = f"no version was published since {newest.version}"
        help = "check that the trainer and its topics are running"
        yield Trouble("warn", "training", text, help, newest.written_wall_ms)
    elif found.is_live and newest.watermark_ms is not None and found.at_ms - newest.watermark_ms > late_ms:
        text = f"the newest version, {newest.version}, has learned nothing recent"
        yield Trouble("warn", "training", text, "check whether ingest keeps up with its topics", newest.watermark_ms)


def _of_taints(found: Gathered) -> Iterator[Trouble]:
    """The newest versions, if they are tainted. Of overlapping taints, the oldest is named: there it began."""
    tainted = taints_of(found.pointer, found.known)
    versions: list[int] = []
    for known in reversed(found.known):
        if known.version not in tainted:
            break
        versions.insert(0, known.version)
    if not versions:
        return
    began = tainted[versions[0]]
    first = next((known for known in found.known if known.version == began), found.known[-1])
    why = f"the judge rejected {began}" if first.outcome == "rejected" else f"{began} was rolled back"
    text = f"{_named(versions)} {'is' if len(versions) == 1 else 'are'} tainted, and not followed: {why}"
    yield Trouble("warn", "versions", text, _way_out(found, tainted), first.written_wall_ms)


def _way_out(found: Gathered, tainted: Container[int]) -> str:
    """Return what ends the taint of the newest versions, and then the hold."""
    targets = rewind_targets(found.pointer, found.known)
    good = [known.version for known in found.known if known.version in tainted and known.is_whole]
    ways = [f"`streamlearn promote MODEL {good[-1]} --accept` if the model was good"] if good else []
    if found.requests:
        ways.insert(0, "wait until training has gone back, as it was asked to")
    elif targets:
        rewind = f"`streamlearn rewind MODEL --to {targets[-1]}`"
        ways.insert(0, f"{rewind} takes training back, with --skip past data that was wrong")
    return f"{', or '.join(ways)}{'; then `streamlearn release MODEL`' if found.pointer.held else ''}"


def _of_pointer(found: Gathered) -> Iterator[Trouble]:
    pointer = found.pointer
    if pointer.held and pointer.active is not None:
        began = _hold_began(found)
        text = f"the pointer is held at {pointer.active.version}: nodes do not follow newer versions"
        if began is not None:
            who, reason = began.by or "somebody", f": {began.reason}" if began.reason else ""
            text += f". Held by {who} since {time_text(began.wall_ms)} UTC{reason}"
        yield Trouble("note", "pointer", text, _release_help(found), 0 if began is None else began.wall_ms)
    if pointer.canary is not None:
        does = "scores" if pointer.canary.shadow else "answers"
        text = f"version {pointer.canary.version.version} {does} {pointer.canary.share:.1%} of the requests"
        yield Trouble("note", pointer.canary.kind, text, "promote it, or roll back to end it", pointer.wall_ms)
    for request in found.requests:
        text = f"{request.by or 'somebody'} asked training to go back to version {request.to.version}"
        yield Trouble("note", "request", text, "the trainer obeys at its next cut", request.wall_ms)
    refused = found.refused
    if refused is not None and found.at_ms - refused.wall_ms < _REFUSED_SHOWN_MS:
        text = f"training could not go back to version {refused.to.version} and continues: {refused.reason}"
        help = "rewind to another version; `streamlearn versions MODEL` lists them"
        yield Trouble("warn", "request", text, help, refused.wall_ms)


def _of_workers(found: Gathered, silent_s: float) -> Iterator[Trouble]:
    """Missing workers, once they had time to start again. A trainer that is away makes versions late."""
    workers = found.workers
    if workers and workers["short_since_ms"] and found.at_ms - workers["short_since_ms"] > silent_s * 1000:
        missing = workers["wanted"] - len(workers["members"])
        text = f"{missing} of {workers['wanted']} processes that learn {'is' if missing == 1 else 'are'} missing"
        help = "the others go on, but more slowly; the log of a missing worker says why it ended"
        yield Trouble("warn", "workers", text, help, workers["short_since_ms"])


def _of_switch(found: Gathered) -> Iterator[Trouble]:
    switch = found.switch
    if switch is None or not (switch.other or switch.why_aside(found.model)):
        return
    text = switch.why_aside(found.model) or f"{switch.other} stands beside this application since switch {switch.seq}"
    by = f", by {switch.by}" if switch.by else ""
    to = f"`streamlearn switch APP --to {switch.other}` lets {switch.other} answer, and --done ends the change"
    yield Trouble("note", "switch", f"{text}{by}", to if switch.other else "", switch.wall_ms)


def _release_help(found: Gathered) -> str:
    try:
        release(found.pointer, found.known)
    except MoveRefused:
        return "a release is refused until a newer version is clean"
    return "`streamlearn release MODEL` lets nodes follow new versions again"


def _hold_began(found: Gathered) -> Pointer | None:
    """Return the move that began the hold; None if it is older than the moves that are known."""
    began = None
    for move in reversed(found.moves):
        if not move.held:
            return began
        began = move
    return began if began is not None and began.seq == 1 else None


def _active(node: Node) -> str:
    return f"version {node.active}" if node.active else "no version yet"


def _named(versions: list[int]) -> str:
    if len(versions) == 1:
        return f"version {versions[0]}"
    return f"versions {versions[0]} {'to' if len(versions) > 2 else 'and'} {versions[-1]}"
