"""Moves: what a visitor may ask of the pointer, and how it is done: by the same decisions and mover as the verbs'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from msgspec import Meta, Struct

from streamlearn.errors import UsageError
from streamlearn.versions import Known, Pointer
from streamlearn.versions.pointer import moves as decisions
from streamlearn.versions.pointer.facts import Facts, moved_facts
from streamlearn.versions.pointer.model import Model

__all__ = ["MOVES", "Hold", "Move", "Promote", "Release", "Rollback", "make_move"]

_Version = Annotated[int, Meta(ge=1, le=10**12 - 1)]
_Text = Annotated[str, Meta(max_length=1_000)]
_By = Annotated[str, Meta(max_length=100)]
_VIA = "console"


class Move(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every move has.

    Attributes:
        reason: Why; it is kept with the move.
        by: Who asks, as he calls himself: the token says that he may, not who he is.
    """

    reason: _Text = ""
    by: _By = ""

    @property
    def who(self) -> str:
        """Who moves the pointer, as its log says it."""
        return f"{self.by} ({_VIA})" if self.by.strip() else _VIA

    def decide(self, pointer: Pointer, known: Sequence[Known]) -> Pointer:
        """Where the pointer is to stand."""
        raise NotImplementedError


class Rollback(Move, frozen=True, kw_only=True):
    """Serve an older version and hold it.

    Attributes:
        to: Which version.
        steps: Or so many good versions back.
    """

    to: _Version | None = None
    steps: Annotated[int, Meta(ge=1, le=100_000)] | None = None

    def decide(self, pointer: Pointer, known: Sequence[Known]) -> Pointer:
        """See `Move`."""
        if (self.to is None) == (self.steps is None):
            message = 'give exactly one of "to" and "steps"'
            raise UsageError(message, help='for example "to": VERSION or "steps": N')
        to = self.to if self.to is not None else decisions.steps_back(pointer, known, self.steps or 1)
        return decisions.rollback(pointer, known, to)


class Hold(Move, frozen=True, kw_only=True):
    """Stay at the active version."""

    def decide(self, pointer: Pointer, known: Sequence[Known]) -> Pointer:
        """See `Move`."""
        return decisions.hold(pointer, known)


class Release(Move, frozen=True, kw_only=True):
    """Follow new versions again."""

    def decide(self, pointer: Pointer, known: Sequence[Known]) -> Pointer:
        """See `Move`."""
        return decisions.release(pointer, known)


class Promote(Move, frozen=True, kw_only=True):
    """Serve a version because somebody says so; a hold stays.

    Attributes:
        version: Which.
        accept: Though it is tainted, or the judge refused it.
    """

    version: _Version
    accept: bool = False

    def decide(self, pointer: Pointer, known: Sequence[Known]) -> Pointer:
        """See `Move`."""
        return decisions.promote(pointer, known, self.version, accept=self.accept)


MOVES: dict[str, type[Move]] = {"rollback": Rollback, "hold": Hold, "release": Release, "promote": Promote}


def make_move(model: Model, what: str, asked: Move, wait_s: float) -> Facts:
    """Move the pointer, wait until nodes have acted, and say of each how long it took.

    Args:
        model: Whose pointer.
        what: What it is called in the audit log.
        asked: The move.
        wait_s: How long nodes are waited for.

    Raises:
        MoveRefused: It may not be moved that way.
        StoreUnreachable: The store did not answer. The pointer may have moved all the same.
    """
    mine = replace(model)  # of this move alone: what watchers have open may hang or be behind
    try:
        moved, known = mine.move(asked.decide, what=what, by=asked.who, reason=asked.reason, wait_s=wait_s)
    finally:
        mine.close()
    active = 0 if moved.pointer.active is None else moved.pointer.active.version
    tainted = [version for version in decisions.taints_of(moved.pointer, known) if version > active]
    has_nodes = mine.url != ""
    return moved_facts(moved) | {
        "what": what, "by": asked.who, "tainted": tainted, "is_whole": moved.is_whole, "has_registry": has_nodes,
    }  # fmt: skip
