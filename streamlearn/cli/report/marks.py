"""Marks: what happened to versions, in event time and in wall time, from the store alone. It draws nothing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streamlearn.errors import FileMissing, VersionDefect
from streamlearn.versions import History, Known, Pointer, PointerLog, Store
from streamlearn.versions.pointer.rebuild import kind_of_move

__all__ = ["Activation", "Mark", "Story", "read_story"]


@dataclass(frozen=True)
class Mark:
    """Something that happened.

    Attributes:
        what: `promote`, `rollback`, `release`, `canary`, `shadow`, `rejected` or `revert`.
        version: The version it is about.
        wall_ms: When.
        event_ms: How far event time was then, by the newest version written before; None where that is not known.
        by: Its author.
        reason: Why.
    """

    what: str
    version: int
    wall_ms: int
    event_ms: int | None
    by: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Activation:
    """A version became the one that is served.

    Attributes:
        version: Which.
        wall_ms: When.
        event_ms: Event time up to which it had learned; None where that is not known.
        age_s: How long ago it was written.
        behind_s: How far what it had learned was behind the wall; None where event time is not the wall's.
    """

    version: int
    wall_ms: int
    event_ms: int | None
    age_s: float
    behind_s: float | None


@dataclass(frozen=True)
class Story:
    """The events in the life of a model's versions.

    Attributes:
        known: The versions, oldest first.
        marks: These events, oldest first.
        activations: The versions that were served, one after the other.
        moves: Moves of the pointer that were read.
        moves_left: Older ones, and damaged ones, that were not.
    """

    known: tuple[Known, ...]
    marks: tuple[Mark, ...]
    activations: tuple[Activation, ...]
    moves: int
    moves_left: int

    def event_times(self, *whats: str) -> list[tuple[int, Mark]]:
        """The marks of some kinds whose event time is known."""
        return [(one.event_ms, one) for one in self.marks if one.what in whats and one.event_ms is not None]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "versions": len(self.known),
            "moves": self.moves,
            "moves_left": self.moves_left,
            "marks": [vars(one) for one in self.marks],
            "activations": [vars(one) for one in self.activations],
        }


def read_story(store: Store, model: str, *, moves_max: int, is_live: bool) -> Story:
    """Read the events of a model's versions; an empty story without versions.

    Args:
        store: Where they are.
        model: Its name.
        moves_max: The newest moves of the pointer that are read.
        is_live: Whether event time is that of the wall, and not a replay's.
    """
    known = History(store, model).read()
    log = PointerLog(store, model)
    seqs = log.seqs()
    chosen = seqs[-moves_max:]
    moves = [one for one in (_read(log, seq) for seq in chosen) if one is not None]
    walls = [one.written_wall_ms for one in known]
    marks = [_of_version(one) for one in known if one.outcome == "rejected" or one.kind == "revert"]
    activations: list[Activation] = []
    by_number = {one.version: one for one in known}
    before = Pointer() if seqs[:1] == chosen[:1] else None
    for move in moves:
        if before is not None:
            marks += _of_move(before, move, _event_ms(known, walls, move.wall_ms))
        is_other = move.active is not None and (before is None or before.active != move.active)
        served = by_number.get(move.active.version) if is_other and move.active is not None else None
        if served is not None:
            activations.append(_activation(served, move.wall_ms, is_live))
        before = move
    marks.sort(key=lambda one: one.wall_ms)
    return Story(known, tuple(marks), tuple(activations), len(moves), len(seqs) - len(moves))


def _read(log: PointerLog, seq: int) -> Pointer | None:
    try:
        return log.read(seq)
    except (FileMissing, VersionDefect):
        return None


def _of_version(one: Known) -> Mark:
    what = "rejected" if one.outcome == "rejected" else "revert"
    return Mark(what, one.version, one.written_wall_ms, one.watermark_ms)


def _of_move(before: Pointer, after: Pointer, event_ms: int | None) -> list[Mark]:
    what = kind_of_move(before, after)
    if what == "floor" or after.active is None:
        return []
    version = after.canary.version if what in ("canary", "shadow") and after.canary is not None else after.active
    return [Mark(what, version.version, after.wall_ms, event_ms, after.by, after.reason)]


def _event_ms(known: Sequence[Known], walls: Sequence[int], wall_ms: int) -> int | None:
    at = bisect_right(walls, wall_ms)
    return known[at - 1].watermark_ms if at else None


def _activation(one: Known, wall_ms: int, is_live: bool) -> Activation:
    behind = (wall_ms - one.watermark_ms) / 1000 if is_live and one.watermark_ms is not None else None
    return Activation(one.version, wall_ms, one.watermark_ms, (wall_ms - one.written_wall_ms) / 1000, behind)
