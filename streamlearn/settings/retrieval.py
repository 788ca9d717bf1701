"""Settings of retrieval."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["RetrievalSettings"]


class RetrievalSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How the towers of `App.retrieval` learn. Their rows are the table `towers`, whose rate `tables.rates` sets."""

    negatives: Annotated[int, Meta(ge=0, le=1 << 14)] = 256
    """Items that are drawn from the library for each step, and compete with the step's positives. More items help with
    those that are rarely shown, and cost time in each step."""
    rate: Annotated[float, Meta(gt=0, le=1_000)] = 0.001
    """The learning rate of the weights of both towers, by Adam."""
