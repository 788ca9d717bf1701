"""Known: the summary of a committed and judged version. It never changes, and is small enough to keep for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from streamlearn.versions.format.record import VersionRef

__all__ = ["Known", "Outcome"]

Outcome = Literal["passed", "unscored", "rejected"]


class Known(Struct, frozen=True, kw_only=True):
    """A committed version of a model's history.

    Attributes:
        kind: `delta` or `revert`; `base` for the first version.
        content_of: The version whose content a revert has, also if only the revert's base is left.
        watermark_ms: Event time up to which its samples were complete.
        rows: Rows it sets.
        gone: Keys it removes.
        outcome: The judge's outcome; null before. `unscored`: no check objected, but one could not check it.
        lacks: Why it cannot be read, such as a missing delta; empty if it can.
    """

    ref: VersionRef
    kind: Literal["base", "delta", "revert"]
    parent: VersionRef | None = None
    content_of: VersionRef | None = None
    graph: str | None = None
    written_wall_ms: int = 0
    watermark_ms: int | None = None
    rows: Annotated[int, Meta(ge=0)] = 0
    gone: Annotated[int, Meta(ge=0)] = 0
    bytes: Annotated[int, Meta(ge=0)] = 0
    metrics: dict[str, float] = {}
    outcome: Outcome | None = None
    lacks: str = ""

    @property
    def version(self) -> int:
        """Its number."""
        return self.ref.version

    @property
    def is_whole(self) -> bool:
        """Whether everything it needs exists."""
        return not self.lacks

    @property
    def is_untrained(self) -> bool:
        """Whether it has learned nothing and inherited nothing: the first version of a model."""
        return self.metrics.get("samples") == 0 and not self.rows and self.kind == "base" and self.content_of is None

    @property
    def has_passed(self) -> bool:
        """Whether the judge has judged it and no check objected."""
        return self.outcome in ("passed", "unscored")

    def is_promotable(self, accepted: Sequence[int]) -> bool:
        """Return whether it can be read, and the judge passed it or an operator accepted it."""
        return self.is_whole and (self.has_passed or self.version in accepted)
