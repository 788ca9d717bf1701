"""Standing: what each version is at the moment, in one word for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.moves import Pointer, taints_of

__all__ = ["standings"]


def standings(pointer: Pointer, known: Sequence[Known]) -> dict[int, str]:
    """For each version of the history what it is.

    - active, canary: it is served; shadow: it scores what is served.
    - incomplete: it cannot be read.
    - rejected: the judge refused it. tainted: it comes after a version that was refused or left.
    - accepted: it was, and somebody serves it all the same.
    - waiting: the judge has not said anything yet.
    - passed: it may be served.

    Args:
        pointer: The pointer.
        known: The history, oldest first.
    """
    tainted = taints_of(pointer, known)
    return {one.version: _standing(pointer, one, tainted.get(one.version, 0)) for one in known}


def _standing(pointer: Pointer, one: Known, began: int) -> str:
    served = {name: ref.version for name, ref in pointer.needed.items() if name != "previous"}
    for name, version in served.items():
        if version == one.version:
            return f"{name} (held)" if name == "active" and pointer.held else name
    if not one.is_whole:
        return "incomplete"
    if one.outcome == "rejected" and one.version not in pointer.accepted:
        return "rejected"
    if began:
        return f"tainted by {began}" if began != one.version else "tainted"
    if one.version in pointer.accepted:
        return "accepted"
    return one.outcome or "waiting"
