"""Gathered: the state of store and registry at one moment; the whole page follows from it. It reads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamlearn.versions import Known, Node, Pointer, Request
from streamlearn.versions.pointer.request import Refusal

__all__ = ["Gathered", "gone_nodes"]

_GONE_MAX = 1_000


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """A model at one moment.

    Attributes:
        model: The model's name.
        at_ms: The wall time.
        pointer: The pointer.
        known: The versions, oldest first.
        moves: The newest moves of the pointer, oldest first, up to `pointer`.
        moves_left: The number of older moves that were not read, or are deleted or damaged.
        nodes: The nodes that send heartbeats.
        gone: Nodes that sent heartbeats before and no longer do.
        registry: Why the nodes are unknown; empty if they are known.
        requests: Requests to training that it has not carried out.
        refused: The newest request, if training could not carry it out.
        is_live: Whether event time follows wall time, as it does outside a replay.
        dead_share: The share of ingest's recent events that became dead letters, if it is above its limit; else 0.
    """

    model: str
    at_ms: int
    pointer: Pointer
    known: tuple[Known, ...] = ()
    moves: tuple[Pointer, ...] = ()
    moves_left: int = 0
    nodes: tuple[Node, ...] = ()
    gone: tuple[Node, ...] = ()
    registry: str = ""
    requests: tuple[Request, ...] = ()
    refused: Refusal | None = None
    is_live: bool = True
    dead_share: float = 0.0


def gone_nodes(seen: Sequence[Node], nodes: Sequence[Node], now_ms: int, gone_s: float) -> tuple[Node, ...]:
    """Return the nodes in `seen` that are missing in `nodes`, for `gone_s` after their last heartbeat.

    A registry forgets silent nodes, but operators need to see which are missing. If another node has the same name, the
    node is not missing.
    """
    names, boots = {node.name for node in nodes}, {node.boot_id for node in nodes}
    newest: dict[str, Node] = {}
    for node in sorted(seen, key=lambda node: node.wall_ms):
        if node.boot_id not in boots and node.name not in names and now_ms - node.wall_ms < gone_s * 1000:
            newest[node.name] = node
    gone = sorted(newest.values(), key=lambda node: node.wall_ms)[-_GONE_MAX:]
    return tuple(sorted(gone, key=lambda node: (node.name, node.boot_id)))
