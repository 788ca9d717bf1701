"""Known: what never changes of a version once it is committed and judged, small enough to keep for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from streamlearn.versions.format.record import VersionRef

__all__ = ["Known", "Outcome"]

Outcome = Literal["passed", "rejected"]


class Known(Struct, frozen=True, kw_only=True):
    """A committed version of a model's history.

    Attributes:
        ref: What names it.
        kind: Whether its delta is a plain one or a revert; `base` when it is the first.
        parent: The version before it.
        content_of: For a revert, also where only its base is left: the version whose content it has.
        graph: Id of its graph.
        written_wall_ms: When it was written.
        watermark_ms: Event time up to which its samples were complete.
        rows: Rows it sets.
        gone: Keys it takes away.
        bytes: Of its files.
        metrics: Numbers by name.
        outcome: What the judge said; null before.
        lacks: Why it cannot be read, such as a delta that is gone; empty when it can.
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
        """Whether all that it needs is there."""
        return not self.lacks

    def is_promotable(self, accepted: Sequence[int]) -> bool:
        """Whether it passed, or was accepted all the same, and can be read."""
        return self.is_whole and (self.outcome == "passed" or self.version in accepted)
