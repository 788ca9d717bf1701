"""Moves: the moves of the pointer that the page offers, and rewinds. The commands use the same decisions and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta, Struct

from streamlearn.errors import UsageError
from streamlearn.versions import Known, Pointer
from streamlearn.versions.pointer import moves as decisions
from streamlearn.versions.pointer.facts import Facts, moved_facts
from streamlearn.versions.pointer.model import Model
from streamlearn.versions.pointer.request import ask_rewind, parse_skip, request_lines

__all__ = ["MOVES", "Hold", "Move", "Promote", "Release", "Rewind", "Rollback", "make_move"]

_Version = Annotated[int, Meta(ge=1, le=10**12 - 1)]
_Text = Annotated[str, Meta(max_length=1_000)]
_By = Annotated[str, Meta(max_length=100)]
_VIA = "console"


class Move(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of every move, stored with it.

    `by` is the name that the caller gives: the token proves that they may move the pointer, not who they are.
    """

    reason: _Text = ""
    by: _By = ""

    @property
    def who(self) -> str:
        """The author of the move for the pointer's log."""
        return f"{self.by} ({_VIA})" if self.by.strip() else _VIA

    def decide(self, pointer: Pointer, known: Sequence[Known]) -> Pointer:
        """Return the pointer after the move; a rewind has none."""
        raise NotImplementedError


class Rollback(Move, frozen=True, kw_only=True):
    """Serve an older version and hold it: the version `to`, or the one `steps` clean versions back."""

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
    """Serve a version; a hold stays. With `accept`, even if it is tainted or was rejected."""

    version: _Version
    accept: bool = False

    def decide(self, pointer: Pointer, known: Sequence[Known]) -> Pointer:
        """See `Move`."""
        return decisions.promote(pointer, known, self.version, accept=self.accept)


class Rewind(Move, frozen=True, kw_only=True):
    """Ask training to go back to the version `to`, and never to learn from the ranges in `skip`; no pointer moves."""

    to: _Version
    skip: Annotated[tuple[_Text, ...], Meta(max_length=100)] = ()


MOVES: dict[str, type[Move]] = {
    "rollback": Rollback, "hold": Hold, "release": Release, "promote": Promote, "rewind": Rewind,
}  # fmt: skip


def make_move(model: Model, what: str, move: Move, wait_s: float) -> Facts:
    """Make a move: move the pointer, wait up to `wait_s` for the nodes to follow, and return how long each took.

    `what` names the move in the audit log.

    Raises:
        MoveRefused: The move is not allowed.
        StoreUnreachable: The store did not answer. The pointer may have moved anyway.
    """
    own = replace(model)  # with its own connections: those of the watch may hang or be behind
    try:
        if isinstance(move, Rewind):
            return _rewind(own, move)
        moved, known = own.move(move.decide, what=what, by=move.who, reason=move.reason, wait_s=wait_s)
    finally:
        own.close()
    active = 0 if moved.pointer.active is None else moved.pointer.active.version
    tainted = [version for version in decisions.taints_of(moved.pointer, known) if version > active]
    return moved_facts(moved) | {
        "what": what, "by": move.who, "tainted": tainted, "is_whole": moved.is_whole, "has_registry": own.url != "",
    }  # fmt: skip


def _rewind(model: Model, move: Rewind) -> Facts:
    now = datetime.now(UTC)
    skips = [parse_skip(text, now) for text in move.skip]
    request = ask_rewind(model, move.to, skips, by=move.who, reason=move.reason)
    return {"what": "rewind", "seq": request.seq, "to": move.to, "lines": request_lines(model.name, request)}
