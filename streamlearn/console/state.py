"""State: what the page is told, as plain values, from what was gathered. Pure: the same is said of the same.

Versions, the pointer and nodes are said as the verbs say them (`versions.facts`). Ages are not: the page counts them on
from the times given.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from streamlearn.console.snapshot import Gathered
from streamlearn.console.trouble import LEVELS, Trouble, troubles
from streamlearn.errors import MoveRefused
from streamlearn.versions import Known, Node, Pointer
from streamlearn.versions.pointer import moves as decisions
from streamlearn.versions.pointer.facts import Facts, node_facts, pointer_facts, version_facts
from streamlearn.versions.pointer.rebuild import kind_of_move
from streamlearn.versions.pointer.version_state import standings

__all__ = ["may_go_back_to", "state_of", "what_of_move"]

_FIGURES_MAX = 24
_DIGITS = 6
_RATIOS = (".auc", ".log_loss", ".calibration")


def state_of(found: Gathered, *, versions_max: int, late_s: float, beat_s: float) -> Facts:
    """Everything the page shows.

    Args:
        found: What was gathered.
        versions_max: The newest versions that are said.
        late_s: From when on training is late.
        beat_s: How often nodes say that they are alive.
    """
    shown = found.known[-versions_max:]
    wrong = troubles(found, late_s=late_s, beat_s=beat_s)
    return {
        "model": found.model,
        "at_ms": found.at_ms,
        "is_live": found.is_live,
        "late_s": late_s,
        "headline": _headline(found, wrong),
        "trouble": [vars(one) for one in wrong],
        "pointer": pointer_facts(found.pointer, found.nodes) | {"accepted": list(found.pointer.accepted)},
        "figures": (figures := _figures(shown)),
        "versions": _versions(found, shown, figures),
        "versions_left": len(found.known) - len(shown),
        "nodes": _nodes(found),
        "registry": found.registry,
        "moves": _moves(found.moves),
        "moves_left": found.moves_left,
        "requests": [
            {"seq": one.seq, "to": one.to.version, "by": one.by, "reason": one.reason, "wall_ms": one.wall_ms}
            for one in found.requests
        ],
        "may": _may(found),
    }


def what_of_move(before: Pointer | None, after: Pointer) -> str:
    """What a move of the pointer was, in a word; a rollback that leaves nothing is a hold."""
    if before is None:
        return "move"
    what = kind_of_move(before, after)
    return "hold" if what == "rollback" and before.active == after.active and not before.held else what


def may_go_back_to(found: Gathered) -> set[int]:
    """The versions that a rollback would not be refused to: a test holds them against the decision itself."""
    pointer = found.pointer
    if pointer.active is None:
        return set()
    tainted = decisions.taints_of(pointer, found.known)
    return {
        one.version
        for one in found.known
        if pointer.floor <= one.version < pointer.active.version and one.is_whole and one.version not in tainted
    }


def _headline(found: Gathered, wrong: Sequence[Trouble]) -> Facts:
    level = wrong[0].level if wrong and wrong[0].level != LEVELS[-1] else "good"
    active = found.pointer.active
    if active is None:
        return {"level": level, "said": "No version is active yet"}
    held = " and held" if found.pointer.held else ""
    if found.registry:
        return {"level": level, "said": f"The pointer names version {active.version}{held}; nodes are unknown"}
    answer = sum(one.active == active.version for one in found.nodes)
    there = len(found.nodes) + len(found.gone)
    if not there:
        return {"level": level, "said": f"Version {active.version} is active{held}; no nodes are registered"}
    by = ("the node" if there == 1 else f"all {there} nodes") if answer == there else f"{answer} of {there} nodes"
    return {"level": level, "said": f"Version {active.version} is served{held}, by {by}"}


def _versions(found: Gathered, shown: Sequence[Known], figures: Sequence[str]) -> list[Facts]:
    standing, back = standings(found.pointer, found.known), may_go_back_to(found)
    said = []
    for one in shown:
        facts = version_facts(one, standing[one.version], found.nodes, found.at_ms)
        del facts["age_s"]
        said.append(
            facts
            | {
                "standing": standing[one.version].split()[0],
                "outcome": one.outcome,
                "written_ms": one.written_wall_ms,
                "watermark_ms": one.watermark_ms,
                "figures": [_rounded(one.metrics.get(name)) for name in figures],
                "may_go_back": one.version in back,
            }
        )
    return said


def _figures(shown: Sequence[Known]) -> list[str]:
    """The judged figures that manifests hold: `auc`, then those of validation by label."""
    names = {name for one in shown for name in one.metrics if name == "auc" or name.startswith("validation.")}
    ranked = sorted(names, key=lambda name: (name != "auc", not name.endswith(_RATIOS), name))
    return ranked[:_FIGURES_MAX]


def _rounded(value: float | None) -> float | None:
    """JSON knows no NaN."""
    return None if value is None or value != value or abs(value) == float("inf") else round(value, _DIGITS)


def _nodes(found: Gathered) -> list[Facts]:
    numbers = [one.version for one in found.known]
    return [
        *(_node(one, found, numbers, is_gone=False) for one in found.nodes),
        *(_node(one, found, numbers, is_gone=True) for one in found.gone),
    ]


def _node(one: Node, found: Gathered, numbers: list[int], *, is_gone: bool) -> Facts:
    """A node, how far it is behind the pointer, and how old what it answers with is."""
    target = 0 if found.pointer.active is None else found.pointer.active.version
    at, to = bisect_right(numbers, one.active), bisect_right(numbers, target)
    mine = found.known[at - 1] if at and numbers[at - 1] == one.active else None
    return node_facts(one) | {
        "is_gone": is_gone,
        "moves_behind": max(0, found.pointer.seq - one.seq),
        "versions_behind": max(0, to - at),
        "versions_ahead": max(0, at - to),
        "written_ms": mine.written_wall_ms if mine is not None else None,
        "watermark_ms": mine.watermark_ms if mine is not None else None,
    }


def _moves(moves: Sequence[Pointer]) -> list[Facts]:
    """The moves, newest first, each told by what it changed of the one before it."""
    said = []
    for at, one in enumerate(moves):
        before: Pointer | None = moves[at - 1] if at else None
        if one.seq == 1:
            before = Pointer()
        elif before is not None and before.seq != one.seq - 1:
            before = None
        canary = one.canary
        said.append(
            {
                "seq": one.seq,
                "what": what_of_move(before, one),
                "active": None if one.active is None else one.active.version,
                "from": None if before is None or before.active is None else before.active.version,
                "canary": None if canary is None else canary.version.version,
                "share": None if canary is None else canary.share,
                "held": one.held,
                "by": one.by,
                "reason": one.reason,
                "wall_ms": one.wall_ms,
            }
        )
    return said[::-1]


def _may(found: Gathered) -> Facts:
    """What each move would come to, or why it would be refused; asked of the decisions themselves."""
    pointer, known = found.pointer, found.known

    def back() -> Pointer:
        return decisions.rollback(pointer, known, decisions.steps_back(pointer, known, 1))

    return {
        "rollback": _outcome(back),
        "hold": _outcome(lambda: decisions.hold(pointer, known)),
        "release": _outcome(lambda: decisions.release(pointer, known)),
    }


def _outcome(decide: Callable[[], Pointer]) -> Facts:
    try:
        moved = decide()
    except MoveRefused as error:
        return {"version": None, "refused": error.message, "help": error.help}
    return {"version": None if moved.active is None else moved.active.version, "refused": "", "help": ""}
