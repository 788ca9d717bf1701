"""Facts: what a version, the pointer, nodes and a move are, as plain values that every face of a model shows. Pure.

What programs are given by `streamlearn versions --json`, by `rollback --json` and by the console is said here, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from streamlearn.versions.format.manifest import Manifest
from streamlearn.versions.format.verdict import Verdict
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.mover import Moved
from streamlearn.versions.pointer.moves import Canary, Pointer
from streamlearn.versions.pointer.registry import Node

__all__ = [
    "Facts",
    "file_facts",
    "manifest_facts",
    "moved_facts",
    "node_facts",
    "nodes_with",
    "pointer_facts",
    "version_facts",
]

Facts: TypeAlias = dict[str, Any]

_MANIFEST_FIELDS = (
    "fingerprint", "labels", "windows", "graph", "positions", "watermark_ms", "skips", "metrics", "files", "tables",
)  # fmt: skip
_NODE_FIELDS = ("name", "boot_id", "state", "active", "seq", "staged", "said", "wall_ms")


def version_facts(one: Known, standing: str, nodes: Sequence[Node], now_ms: int) -> Facts:
    """A version: what it is, how old and how large, and which nodes answer with it."""
    return {
        "version": one.version,
        "run": one.ref.run,
        "parent": None if one.parent is None else one.parent.version,
        "kind": one.kind if one.content_of is None else f"revert to {one.content_of.version}",
        # Of one whose manifest is damaged nobody knows when it was written.
        "age_s": max(0, now_ms - one.written_wall_ms) // 1000 if one.written_wall_ms else None,
        "rows": one.rows,
        "gone": one.gone,
        "bytes": one.bytes,
        "samples": one.metrics.get("samples"),
        "auc": one.metrics.get("auc"),
        "state": standing,
        "lacks": one.lacks,
        "nodes": [node.name for node in nodes if node.active == one.version],
    }


def pointer_facts(pointer: Pointer, nodes: Sequence[Node]) -> Facts:
    """The pointer: what should be served, and who moved it last, when and why."""
    canary = pointer.canary
    return {
        "seq": pointer.seq,
        "active": None if pointer.active is None else pointer.active.version,
        "held": pointer.held,
        "canary": None if canary is None else canary.version.version,
        "share": None if canary is None else canary.share,
        "shadow": canary is not None and canary.shadow,
        "canary_nodes": [] if canary is None else nodes_with(nodes, canary),
        "floor": pointer.floor,
        "by": pointer.by,
        "reason": pointer.reason,
        "wall_ms": pointer.wall_ms,
    }


def node_facts(node: Node) -> Facts:
    """A node, as it said of itself."""
    return {name: getattr(node, name) for name in _NODE_FIELDS}


def nodes_with(nodes: Sequence[Node], canary: Canary) -> list[str]:
    """The nodes that can answer with a canary."""
    return [node.name for node in nodes if canary.version.version in node.staged]


def moved_facts(moved: Moved) -> Facts:
    """What became of a move of the pointer, and of each node the milliseconds until its word was here."""
    pointer = moved.pointer
    canary = pointer.canary
    return {
        "seq": pointer.seq,
        "active": None if pointer.active is None else pointer.active.version,
        "held": pointer.held,
        "canary": None
        if canary is None
        else {"version": canary.version.version, "share": canary.share, "shadow": canary.shadow},
        "taints": list(pointer.taints),
        "accepted": list(pointer.accepted),
        "reason": pointer.reason,
        "store_ms": round(moved.store_ms, 3),
        "acted": [
            {"node": one.node, "boot_id": one.boot_id, "version": one.version, "ms": round(one.ms, 3),
             "own_ms": round(one.own_ms, 3)}
            for one in moved.acted
        ],
        "silent": [{"node": one.name, "boot_id": one.boot_id, "serves": one.active} for one in moved.silent],
        "starting": [one.name for one in moved.starting],
        "registry": moved.said,
    }  # fmt: skip


def file_facts(manifest: Manifest) -> list[Facts]:
    """The files of a version, by kind and table: how many, their records and their bytes."""
    sums: dict[tuple[str, str], list[int]] = {}
    for file in manifest.files:
        mine = sums.setdefault((file.kind, file.table or ""), [0, 0, 0])
        for at, count in enumerate((1, file.rows, file.bytes)):
            mine[at] += count
    return [
        {"kind": kind, "table": table, "files": files, "records": rows, "bytes": size}
        for (kind, table), (files, rows, size) in sums.items()
    ]


def manifest_facts(manifest: Manifest, verdict: Verdict | None) -> Facts:
    """What a version is made of, up to where it has learned, and what the judge found."""
    said = msgspec.to_builtins(manifest)
    judged = None if verdict is None else msgspec.to_builtins(verdict)
    return {name: said.get(name) for name in _MANIFEST_FIELDS} | {"verdict": judged}
