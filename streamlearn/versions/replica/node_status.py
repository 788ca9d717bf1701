"""NodeStatus: the state of a node that follows versions."""

from __future__ import annotations

from dataclasses import dataclass

from streamlearn.versions.format.record import VersionRef
from streamlearn.versions.pointer.registry import NodeState

__all__ = ["NodeStatus"]


@dataclass(frozen=True)
class NodeStatus:
    """The state of a node.

    Attributes:
        boot_id: Identifies this start of the node.
        seq: The pointer move that it has acted on.
        heard_seq: The newest pointer move that it knows.
        staged: Versions it could answer with at once, oldest first.
        behind_s: How long it has been behind the pointer; 0 when it is not.
        error: Its current problems, for people; empty when there are none.
    """

    state: NodeState
    boot_id: str
    seq: int
    heard_seq: int
    active: VersionRef | None
    staged: tuple[VersionRef, ...]
    behind_s: float
    error: str
