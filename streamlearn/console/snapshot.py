"""Gathered: the state of store and registry at one moment; the whole page follows from it. It reads nothing."""

from __future__ import annotations

from dataclasses import dataclass

from streamlearn.given_up import GivenUpProcess
from streamlearn.versions import Known, Node, Pointer, Request
from streamlearn.versions.pointer.facts import Facts
from streamlearn.versions.pointer.request import Refusal
from streamlearn.versions.pointer.switch_log import Switch

__all__ = ["Gathered"]


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
        gone: Nodes that sent heartbeats lately, did not leave, and no longer do.
        registry: Why the nodes are unknown; empty if they are known.
        known_ms: When the nodes were last known; 0 if never.
        requests: Requests to training that it has not carried out.
        refused: The newest request, if training could not carry it out.
        is_live: Whether event time follows wall time, as it does outside a replay.
        switch: Which application answers the callers of this one; None if no other has its served name.
        dead_share: The share of ingest's recent events that became dead letters, if it is above its limit; else 0.
        given_up: The processes of this machine that `up` gave up.
        features: How far computed features are folded; None if the application has none.
        workers: Who learns the model, or why that is unknown; None if one process does.
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
    known_ms: int = 0
    requests: tuple[Request, ...] = ()
    refused: Refusal | None = None
    is_live: bool = True
    switch: Switch | None = None
    dead_share: float = 0.0
    given_up: tuple[GivenUpProcess, ...] = ()
    features: Facts | None = None
    workers: Facts | None = None

    @property
    def answers_callers(self) -> bool:
        """Whether no other application answers the callers of this one."""
        return self.switch is None or self.switch.current == self.model
