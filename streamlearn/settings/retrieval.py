"""Settings of retrieval."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from streamlearn.settings.constant import Fixed

__all__ = ["RetrievalSettings"]


class RetrievalSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How the towers of `App.retrieval` learn and find items. `tables.rates` has the rate of their table, `towers`."""

    negatives: Annotated[int, Meta(ge=0, le=1 << 14)] = 256
    """Items that are drawn from the library for each step, and compete with the step's positives. More items help with
    those that are rarely shown, and cost time in each step."""
    rate: Annotated[float, Meta(gt=0, le=1_000)] = 0.001
    """The learning rate of the weights of both towers, by Adam."""
    lanes: Annotated[int, Meta(ge=1, le=64)] = 1
    """Number of searches in parallel on a node. Each is a thread, and takes one core of the CPU. They are apart from
    the lanes that score candidates."""
    k_max: Annotated[int, Meta(ge=1, le=16_384)] = 1_000
    """Most items of one answer. Requests that ask for more are refused."""
    probes: Annotated[int, Meta(ge=0, le=16_384)] = 0
    """A node divides many items into cells of similar ones. This is how many cells it searches for a user; some of the
    best items are then missed. 0 searches all items. Libraries of fewer than 65,536 items are never divided."""
    nearline: Literal["off", "found", "ranked"] = "off"
    """Whether `streamlearn nearline` keeps lists of items for users who just acted, and nodes answer with them.
    "found": a list has the `k_max` items that a search finds. "ranked": the ranking model then orders them. An item
    takes 10 bytes in the store of feature states."""
    settle_ms: Fixed[int] = 1_000
    """How long after a user's first action its list is refreshed, once for all actions until then. It is above the time
    until an action counts in computed features, about half a second."""
    cache_versions: Annotated[int, Meta(ge=0, le=1_000)] = 60
    """How many versions a list may be behind the active one; nodes do not answer with older lists. 0 allows lists of
    the active version alone. Lower it if vectors change much from version to version."""
