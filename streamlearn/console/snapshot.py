"""Gathered: what store and registry gave at one moment, from which all that the page says follows. It reads nothing."""

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
        model: Its name.
        at_ms: When, by the wall.
        pointer: Where its pointer stood.
        known: Its history, oldest first; empty before the first version.
        moves: The newest moves of the pointer, oldest first, up to `pointer`.
        moves_left: Older moves that were not read, or are forgotten or damaged.
        nodes: The nodes that are alive.
        gone: Nodes that were seen and are not heard of any more.
        registry: Why nodes are not known; empty when they are.
        requests: What training is asked for and has not obeyed.
        refused: The newest request, if training could not obey it.
        is_live: Whether event time is that of the wall, and not a replay's.
        dead_share: The share of ingest's recent events that became dead letters, where it is more than may.
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
    """The nodes that were seen before and are not there now, for as long as they are to be shown.

    A registry forgets who is silent; people want to know who is missing. One whose name is back is not missing.

    Args:
        seen: Those seen so far, those that were gone as well.
        nodes: Those that are there.
        now_ms: When.
        gone_s: How long a node is shown as gone.
    """
    names, lives = {one.name for one in nodes}, {one.boot_id for one in nodes}
    newest: dict[str, Node] = {}
    for one in sorted(seen, key=lambda node: node.wall_ms):
        if one.boot_id not in lives and one.name not in names and now_ms - one.wall_ms < gone_s * 1000:
            newest[one.name] = one
    kept = sorted(newest.values(), key=lambda node: node.wall_ms)[-_GONE_MAX:]
    return tuple(sorted(kept, key=lambda node: (node.name, node.boot_id)))
