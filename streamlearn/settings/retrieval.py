"""Settings of retrieval."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["RetrievalSettings"]


class RetrievalSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How a node finds items for users, if `App.retrieval` is declared."""

    lanes: Annotated[int, Meta(ge=1, le=64)] = 1
    """Number of searches in parallel on a node. Each is a thread, and takes one core of the CPU. They are apart from
    the lanes that score candidates."""
    k_max: Annotated[int, Meta(ge=1, le=16_384)] = 1_000
    """Most items of one answer. Requests that ask for more are refused."""
