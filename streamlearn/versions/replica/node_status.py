"""NodeStatus: how a node that follows versions is, as it says itself."""

from __future__ import annotations

from dataclasses import dataclass

from streamlearn.versions.format.record import VersionRef
from streamlearn.versions.pointer.registry import NodeState

__all__ = ["NodeStatus"]


@dataclass(frozen=True)
class NodeStatus:
    """How a node is.

    Attributes:
        state: Whether it answers, and with what.
        boot_id: Of this life of it.
        seq: Of the pointer it has acted on.
        heard_seq: Of the newest pointer it has heard of.
        active: The version it answers with.
        staged: Versions it could answer with at once, oldest first.
        behind_s: Since when it is behind the pointer; 0 when it is not.
        error: What is wrong, for people; empty when nothing is.
    """

    state: NodeState
    boot_id: str
    seq: int
    heard_seq: int
    active: VersionRef | None
    staged: tuple[VersionRef, ...]
    behind_s: float
    error: str
