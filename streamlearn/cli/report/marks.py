"""Events of a model's versions, in event time and wall time, read from the store alone. It draws nothing."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from streamlearn.errors import FileMissing, VersionDefect
from streamlearn.versions import History, Known, Pointer, PointerLog, Store
from streamlearn.versions.pointer.rebuild import kind_of_move

__all__ = ["Activation", "Mark", "Story", "read_story"]


@dataclass(frozen=True)
class Mark:
    """An event of a version: a promote, rollback, release, canary, shadow, rejected or revert."""

    what: str
    version: int
    wall_ms: int
    event_ms: int | None  # event time of the newest version written before; None if unknown
    by: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Activation:
    """A version became the active one."""

    version: int
    wall_ms: int
    event_ms: int | None  # event time up to which it had learned; None if unknown
    age_s: float  # since it was written
    behind_s: float | None  # how far `event_ms` was behind wall time; None in a replay


@dataclass(frozen=True)
class Story:
    """The versions of a model, the events of these versions, and the activations, each oldest first."""

    known: tuple[Known, ...]
    marks: tuple[Mark, ...]
    activations: tuple[Activation, ...]
    moves: int  # moves of the pointer that were read
    moves_left: int  # older or damaged moves that were not

    def as_json(self) -> dict[str, Any]:
        """Return the story for JSON."""
        return {
            "versions": len(self.known),
            "moves": self.moves,
            "moves_left": self.moves_left,
            "marks": [vars(mark) for mark in self.marks],
            "activations": [vars(activation) for activation in self.activations],
        }


def read_story(store: Store, model: str, *, moves_max: int, is_live: bool) -> Story:
    """Read the story of a model with the newest `moves_max` moves; it is empty without versions.

    `is_live` says that event time is wall time, not that of a replay.
    """
    known = History(store, model).read()
    log = PointerLog(store, model)
    seqs = log.seqs()
    newest_seqs = seqs[-moves_max:]
    moves = [move for move in (_read_move(log, seq) for seq in newest_seqs) if move is not None]
    walls_ms = [entry.written_wall_ms for entry in known]
    marks = [_version_mark(entry) for entry in known if entry.outcome == "rejected" or entry.kind == "revert"]
    activations: list[Activation] = []
    by_number = {entry.version: entry for entry in known}
    before = Pointer() if seqs[:1] == newest_seqs[:1] else None
    for move in moves:
        if before is not None:
            newest = bisect_right(walls_ms, move.wall_ms) - 1
            marks += _move_marks(before, move, known[newest].watermark_ms if newest >= 0 else None)
        if move.active is not None and (before is None or before.active != move.active):
            active = by_number.get(move.active.version)
            activations += [] if active is None else [_activation(active, move.wall_ms, is_live)]
        before = move
    marks.sort(key=lambda mark: mark.wall_ms)
    return Story(known, tuple(marks), tuple(activations), len(moves), len(seqs) - len(moves))


def _read_move(log: PointerLog, seq: int) -> Pointer | None:
    try:
        return log.read(seq)
    except (FileMissing, VersionDefect):
        return None


def _version_mark(entry: Known) -> Mark:
    what = "rejected" if entry.outcome == "rejected" else "revert"
    return Mark(what, entry.version, entry.written_wall_ms, entry.watermark_ms)


def _move_marks(before: Pointer, after: Pointer, event_ms: int | None) -> list[Mark]:
    what = kind_of_move(before, after)
    if what == "floor" or after.active is None:
        return []
    version = after.canary.version if what in ("canary", "shadow") and after.canary is not None else after.active
    return [Mark(what, version.version, after.wall_ms, event_ms, after.by, after.reason)]


def _activation(entry: Known, wall_ms: int, is_live: bool) -> Activation:
    behind_s = (wall_ms - entry.watermark_ms) / 1000 if is_live and entry.watermark_ms is not None else None
    return Activation(entry.version, wall_ms, entry.watermark_ms, (wall_ms - entry.written_wall_ms) / 1000, behind_s)
