"""What tests of the console gather: versions, moves and nodes by a few numbers."""

from __future__ import annotations

from typing import Any

from streamlearn.console import Gathered, state_of
from streamlearn.console.trouble import LateAfter
from streamlearn.hints import Given
from streamlearn.versions import Known, Node, Pointer, VersionRef

__all__ = ["NOW_MS", "gathered", "known_of", "moved", "node_of", "ref", "said"]

NOW_MS = 1_700_000_000_000


def ref(version: int) -> VersionRef:
    return VersionRef(version=version, run=1, sha256="0" * 64)


def known_of(version: int, **changed: Any) -> Known:
    """A delta that passed, written so many seconds before now as it is versions before 10."""
    written_ms = NOW_MS - (10 - version) * 1_000
    facts: dict[str, Any] = {
        "ref": ref(version), "kind": "delta", "parent": ref(version - 1) if version > 1 else None, "outcome": "passed",
        "written_wall_ms": written_ms, "watermark_ms": written_ms - 2_000, "rows": 7, "bytes": 2_048,
        "metrics": {"auc": 0.7 + version / 1_000},
    }  # fmt: skip
    return Known(**(facts | changed))


def node_of(name: str, active: int, seq: int, **changed: Any) -> Node:
    facts: dict[str, Any] = {"state": "ready", "staged": (active,), "wall_ms": NOW_MS - 500}
    return Node(boot_id=f"boot-{name}", name=name, active=active, seq=seq, **(facts | changed))


def moved(seq: int, active: int, **changed: Any) -> Pointer:
    facts: dict[str, Any] = {"by": "publisher", "wall_ms": NOW_MS - (100 - seq) * 1_000}
    return Pointer(seq=seq, active=ref(active), **(facts | changed))


def gathered(pointer: Pointer, **changed: Any) -> Gathered:
    """Ten versions, and two nodes that stand where the pointer does, unless something else is said."""
    active = 0 if pointer.active is None else pointer.active.version
    facts: dict[str, Any] = {
        "model": "ctr", "at_ms": NOW_MS, "known": tuple(known_of(version) for version in range(1, 11)),
        "moves": (pointer,), "nodes": (node_of("a", active, pointer.seq), node_of("b", active, pointer.seq)),
    }  # fmt: skip
    return Gathered(pointer=pointer, **(facts | changed))


def said(found: Gathered, **changed: Any) -> dict[str, Any]:
    after = LateAfter(beat_s=1.0, silent_s=15.0, version_s=30.0, training_s=60.0)
    given: dict[str, Any] = {"versions_max": 100, "after": after, "given": Given()} | changed
    return state_of(found, **given)
