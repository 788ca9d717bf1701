"""Facts: versions, pointer, nodes and moves as plain values: the JSON of the commands and of the console."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from streamlearn.versions.format.manifest import Manifest
from streamlearn.versions.format.verdict import Verdict
from streamlearn.versions.format.version_note import VersionNote
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.pointer.mover import Moved
from streamlearn.versions.pointer.moves import Canary, Pointer
from streamlearn.versions.pointer.rebuild import last_not_gc
from streamlearn.versions.pointer.registry import Node

__all__ = [
    "Facts", "file_facts", "manifest_facts", "moved_facts", "node_facts", "nodes_with", "note_facts", "pointer_facts",
    "version_facts",
]  # fmt: skip

Facts: TypeAlias = dict[str, Any]

_MANIFEST_FIELDS = (
    "fingerprint", "labels", "windows", "graph", "positions", "watermark_ms", "skips", "metrics", "files", "tables",
)  # fmt: skip
_NODE_FIELDS = ("name", "boot_id", "state", "active", "seq", "staged", "said", "wall_ms")


def version_facts(entry: Known, standing: str, nodes: Sequence[Node], now_ms: int) -> Facts:
    """Describe a version: its kind, age and size, and the nodes that answer with it."""
    return {
        "version": entry.version,
        "run": entry.ref.run,
        "parent": None if entry.parent is None else entry.parent.version,
        "kind": entry.kind if entry.content_of is None else f"revert to {entry.content_of.version}",
        # If the manifest is damaged, the age is unknown.
        "age_s": max(0, now_ms - entry.written_wall_ms) // 1000 if entry.written_wall_ms else None,
        "rows": entry.rows,
        "gone": entry.gone,
        "bytes": entry.bytes,
        "samples": entry.metrics.get("samples"),
        "auc": entry.metrics.get("auc"),
        "mae": entry.metrics.get("mae"),
        "retrieval_hit_100": entry.metrics.get("retrieval_hit_100"),
        "state": standing,
        "lacks": entry.lacks,
        "nodes": [node.name for node in nodes if node.active == entry.version],
    }


def pointer_facts(pointer: Pointer, nodes: Sequence[Node], read: Callable[[int], Pointer]) -> Facts:
    """Describe the pointer: the version to serve, and who moved it last, when and why. `read` returns older moves."""
    canary, moved = pointer.canary, last_not_gc(pointer, read)
    return {
        "seq": pointer.seq,
        "active": None if pointer.active is None else pointer.active.version,
        "held": pointer.held,
        "canary": None if canary is None else canary.version.version,
        "share": None if canary is None else canary.share,
        "shadow": canary is not None and canary.shadow,
        "canary_nodes": [] if canary is None else nodes_with(nodes, canary),
        "floor": pointer.floor,
        "by": moved.by,
        "reason": moved.reason,
        "wall_ms": moved.wall_ms,
    }


def node_facts(node: Node) -> Facts:
    """Describe a node by its last heartbeat."""
    return {name: getattr(node, name) for name in _NODE_FIELDS}


def nodes_with(nodes: Sequence[Node], canary: Canary) -> list[str]:
    """Return the names of the nodes that can answer with a canary."""
    return [node.name for node in nodes if canary.version.version in node.staged]


def moved_facts(moved: Moved) -> Facts:
    """Describe the result of a move, with the milliseconds until the ack of each node arrived."""
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
            {"node": node.node, "boot_id": node.boot_id, "version": node.version, "ms": round(node.ms, 3),
             "own_ms": round(node.own_ms, 3)}
            for node in moved.acted
        ],
        "silent": [{"node": node.name, "boot_id": node.boot_id, "serves": node.active} for node in moved.silent],
        "starting": [node.name for node in moved.starting],
        "registry": moved.said,
    }  # fmt: skip


def file_facts(manifest: Manifest) -> list[Facts]:
    """Count the files of a version, their records and their bytes, by kind and table."""
    sums: dict[tuple[str, str | None], list[int]] = {}
    for file in manifest.files:
        counts = sums.get((file.kind, file.table), [0, 0, 0])
        added = (1, file.rows, file.bytes)
        sums[file.kind, file.table] = [count + more for count, more in zip(counts, added, strict=True)]
    return [
        {"kind": kind, "table": table or "", "files": files, "records": rows, "bytes": size}
        for (kind, table), (files, rows, size) in sums.items()
    ]


def note_facts(notes: Sequence[VersionNote]) -> list[Facts]:
    """Describe notes on a version."""
    return [{"text": note.text, "by": note.by, "wall_ms": note.wall_ms} for note in notes]


def manifest_facts(manifest: Manifest, verdict: Verdict | None, notes: Sequence[VersionNote] = ()) -> Facts:
    """Describe the contents of a version, its learned positions, the judge's verdict, and notes of people."""
    fields = msgspec.to_builtins(manifest)
    judged = None if verdict is None else msgspec.to_builtins(verdict)
    return {name: fields.get(name) for name in _MANIFEST_FIELDS} | {"verdict": judged, "notes": note_facts(notes)}
