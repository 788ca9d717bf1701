"""Version state: the state of each version in one word, as a pure function of pointer and history."""

from __future__ import annotations

from collections.abc import Sequence

from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.moves import Pointer, taints_of

__all__ = ["standings"]


def standings(pointer: Pointer, known: Sequence[Known]) -> dict[int, str]:
    """Return the state of each version of a history.

    - active, canary: it is served; shadow: it only scores requests.
    - incomplete: it cannot be read.
    - rejected: the judge rejected it. tainted: it follows a version that was rejected or rolled back.
    - accepted: an operator ended its rejection or taint.
    - waiting: the judge has not decided yet.
    - passed: it may be served. unscored: likewise, but a check had nothing to check it by.
    """
    tainted = taints_of(pointer, known)
    return {entry.version: _standing(pointer, entry, tainted.get(entry.version, 0)) for entry in known}


def _standing(pointer: Pointer, entry: Known, began: int) -> str:
    for role, ref in pointer.needed.items():
        if ref.version == entry.version and role != "previous":
            return f"{role} (held)" if role == "active" and pointer.held else role
    if not entry.is_whole:
        return "incomplete"
    if entry.outcome == "rejected" and entry.version not in pointer.accepted:
        return "rejected"
    if began:
        return f"tainted by {began}" if began != entry.version else "tainted"
    if entry.version in pointer.accepted:
        return "accepted"
    return entry.outcome or "waiting"
