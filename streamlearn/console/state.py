"""State: the page's state as plain values, computed from what was gathered. Pure.

Versions, the pointer and nodes have the same fields as in the commands (`versions.facts`). Ages are left out: the page
computes them from the times.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

from streamlearn.console.snapshot import Gathered
from streamlearn.console.trouble import LEVELS, LateAfter, Trouble, is_late, troubles
from streamlearn.errors import MoveRefused
from streamlearn.hints import Given, completed
from streamlearn.versions import Known, Node, Pointer
from streamlearn.versions.pointer import moves as decisions
from streamlearn.versions.pointer.facts import Facts, node_facts, pointer_facts, version_facts
from streamlearn.versions.pointer.rebuild import kind_of_move

__all__ = ["may_go_back_to", "state_of"]

_FIGURES_MAX = 24
_DIGITS = 6
_RETRIEVAL = ("retrieval_hit_100", "retrieval_popular_100", "vectors_changed", "library_items")
_FIRST = ("auc", "mae", *_RETRIEVAL)
_RATIOS = (".auc", ".log_loss", ".mae", ".rmse", ".calibration")
_SIZES = ("rows", "bytes")
_COUNTS = ("labels_learned", "samples", *_SIZES)


def state_of(
    found: Gathered,
    *,
    versions_max: int,
    after: LateAfter,
    given: Given,
    first_window: Callable[[Sequence[int]], str] = lambda _: "",
) -> Facts:
    """Return the whole state of the page, with the newest `versions_max` versions.

    `given` completes the commands that the page shows. `first_window` says, from the watermarks of versions, when they
    will have a figure of validation.
    """
    shown = found.known[-versions_max:]
    problems = troubles(found, after)
    figures, watermarks = _figures(shown), [known.watermark_ms for known in shown if known.watermark_ms is not None]
    return {
        "model": found.model,
        "place": given.place or found.model,
        "options": given.tail,
        "at_ms": found.at_ms,
        "is_live": found.is_live,
        "late": _late(found, after),
        "headline": _headline(found, problems),
        "trouble": [vars(problem) | {"help": completed(problem.help, given)} for problem in problems],
        "pointer": pointer_facts(found.pointer, found.nodes, {move.seq: move for move in found.moves}.__getitem__)
        | {"accepted": list(found.pointer.accepted)},
        "figures": figures,
        "first_window": "" if {*figures} - {*_COUNTS, *_RETRIEVAL} else first_window(watermarks),
        "versions": _versions(found, shown, figures),
        "versions_left": len(found.known) - len(shown),
        "nodes": _nodes(found, after.beat_s),
        "registry": found.registry,
        "moves": _moves(found.moves),
        "moves_left": found.moves_left,
        "features": found.features,
        "workers": found.workers and found.workers | {"help": completed(found.workers["help"], given)},
        "requests": [
            {name: getattr(request, name) for name in ("seq", "by", "reason", "wall_ms")} | {"to": request.to.version}
            for request in found.requests
        ],
        "may": _may(found, given),
    }


def may_go_back_to(found: Gathered) -> set[int]:
    """Return the versions to which a rollback is allowed; a test compares them with the decision itself."""
    pointer = found.pointer
    if pointer.active is None:
        return set()
    tainted = decisions.taints_of(pointer, found.known)
    return {
        known.version
        for known in found.known
        if pointer.floor <= known.version < pointer.active.version and known.is_whole and known.version not in tainted
    }


def _late(found: Gathered, after: LateAfter) -> Facts:
    """Return whether the active version, by what it has learned, and the newest one are old."""
    versions = {known.version: known for known in found.known}
    active, newest = versions.get(found.pointer.active_version), found.known[-1] if found.known else None
    learned_ms = 0 if active is None else (found.is_live and active.watermark_ms) or active.written_wall_ms
    written_ms = 0 if newest is None else newest.written_wall_ms
    return {
        "active": bool(learned_ms) and found.at_ms - learned_ms > after.training_s * 1000,
        "newest": bool(written_ms) and found.at_ms - written_ms > after.version_s * 1000,
    }


def _headline(found: Gathered, problems: Sequence[Trouble]) -> Facts:
    level = problems[0].level if problems and problems[0].level != LEVELS[-1] else "good"
    return {"level": level, "said": _headline_text(found)}


def _headline_text(found: Gathered) -> str:
    active = found.pointer.active
    if found.switch is not None and not found.answers_callers:
        return f"{found.switch.current} answers the callers of this model"
    if active is None:
        return "No version is active yet"
    held = " and held" if found.pointer.held else ""
    if found.registry:
        return f"The pointer names version {active.version}{held}; nodes are unknown"
    answer = sum(node.active == active.version for node in found.nodes)
    total = len(found.nodes) + len(found.gone)
    if not total:
        return f"Version {active.version} is active{held}; no nodes are registered"
    by = ("the node" if total == 1 else f"all {total} nodes") if answer == total else f"{answer} of {total} nodes"
    return f"Version {active.version} is served{held}, by {by}"


def _versions(found: Gathered, shown: Sequence[Known], figures: Sequence[str]) -> list[Facts]:
    standing, back = decisions.standings(found.pointer, found.known), may_go_back_to(found)
    targets = set(decisions.rewind_targets(found.pointer, found.known))
    rows = []
    for known in shown:
        facts = version_facts(known, standing[known.version], found.nodes, found.at_ms)
        del facts["age_s"]
        more = {
            "standing": standing[known.version].split()[0],
            "outcome": known.outcome,
            "written_ms": known.written_wall_ms,
            "watermark_ms": known.watermark_ms,
            "figures": [_figure(known, name) for name in figures],
            "may_go_back": known.version in back,
            "may_rewind": known.version in targets,
        }
        rows.append(facts | more)
    return rows


def _figures(shown: Sequence[Known]) -> list[str]:
    """Return the names of figures: `auc`, `mae`, those of retrieval, of validation by label, the counts of versions."""
    names = {name for known in shown for name in known.metrics if name in _FIRST or name.startswith("validation.")}
    ranked = [name for name in _FIRST if name in names]
    ranked += sorted(names - {*_FIRST}, key=lambda name: (not name.endswith(_RATIOS), name))
    return ranked[:_FIGURES_MAX] + [
        name for name in _COUNTS if any(_figure(known, name) is not None for known in shown) or name in _SIZES
    ]


def _figure(known: Known, name: str) -> float | None:
    return getattr(known, name) if name in _SIZES else _rounded(known.metrics.get(name))


def _rounded(value: float | None) -> float | None:
    """Round a figure; JSON has no NaN and no infinity."""
    return round(value, _DIGITS) if value is not None and math.isfinite(value) else None


def _nodes(found: Gathered, beat_s: float) -> list[Facts]:
    versions = [known.version for known in found.known]
    return [
        *(
            _node(node, found, versions) | {"is_gone": False, "is_late": is_late(found, node, beat_s)}
            for node in found.nodes
        ),
        *(_node(node, found, versions) | {"is_gone": True, "is_late": False} for node in found.gone),
    ]


def _node(node: Node, found: Gathered, versions: list[int]) -> Facts:
    """Return a node, how far it is behind the pointer, and the age of the version that it serves."""
    target = 0 if found.pointer.active is None else found.pointer.active.version
    at, to = bisect_right(versions, node.active), bisect_right(versions, target)
    active = found.known[at - 1] if at and versions[at - 1] == node.active else None
    return node_facts(node) | {
        "moves_behind": max(0, found.pointer.seq - node.seq),
        "versions_behind": max(0, to - at),
        "versions_ahead": max(0, at - to),
        "written_ms": None if active is None else active.written_wall_ms,
        "watermark_ms": None if active is None else active.watermark_ms,
    }


def _moves(moves: Sequence[Pointer]) -> list[Facts]:
    """Return the moves, newest first, each described by its difference from the previous one."""
    rows = []
    for index, move in enumerate(moves):
        before: Pointer | None = moves[index - 1] if index else None
        if move.seq == 1:
            before = Pointer()
        elif before is not None and before.seq != move.seq - 1:
            before = None
        canary = move.canary
        rows.append(
            {
                "seq": move.seq,
                "what": _kind_of_move(before, move),
                "active": None if move.active is None else move.active.version,
                "from": None if before is None or before.active is None else before.active.version,
                "canary": None if canary is None else canary.version.version,
                "share": None if canary is None else canary.share,
                "held": move.held,
                "by": move.by,
                "reason": move.reason,
                "wall_ms": move.wall_ms,
            }
        )
    return rows[::-1]


def _kind_of_move(before: Pointer | None, after: Pointer) -> str:
    """Name a move of the pointer. A rollback that stays at the active version is a hold."""
    if before is None:
        return "move"
    kind = kind_of_move(before, after)
    return "hold" if kind == "rollback" and before.active == after.active and not before.held else kind


def _may(found: Gathered, given: Given) -> Facts:
    """Return the result of each move, or why it would be refused, by making the decision."""
    pointer, known = found.pointer, found.known
    moves: dict[str, Callable[[], Pointer]] = {
        "rollback": lambda: decisions.rollback(pointer, known, decisions.steps_back(pointer, known, 1)),
        "hold": lambda: decisions.hold(pointer, known),
        "release": lambda: decisions.release(pointer, known),
    }
    targets = decisions.rewind_targets(pointer, known)
    version, refused = (targets[-1], "") if targets else (None, "no version is complete and clean")
    rewind = {"version": version, "refused": refused, "help": ""}
    return {name: _outcome(decide, given) for name, decide in moves.items()} | {"rewind": rewind}


def _outcome(decide: Callable[[], Pointer], given: Given) -> Facts:
    try:
        moved = decide()
    except MoveRefused as error:
        return {"version": None, "refused": error.message, "help": completed(error.help, given)}
    return {"version": None if moved.active is None else moved.active.version, "refused": "", "help": ""}
