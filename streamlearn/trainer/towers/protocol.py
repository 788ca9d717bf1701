"""The protocol of towers: two graphs over packed inputs, with the weights as arguments. Types only, no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from streamlearn.features import FeatureSpec
from streamlearn.models import PackedSide
from streamlearn.models.protocol import Tensor

__all__ = ["Towers"]


@runtime_checkable
class Towers(Protocol):
    """A user tower and an item tower. The product of their vectors is the logit by which items compete for a user.

    What `streamlearn.models.Model` guarantees and requires holds here, too. `features` are those of the towers, whose
    slots all have rows of one length, `dim`.

    Two attributes are optional. `weight_names` is as for models. `item_has_weights = False` states that the vector of
    an item depends on its rows alone: it then changes only when they do, and a version writes only such vectors.
    """

    def build(self, features: FeatureSpec, seed: int) -> Sequence[Tensor]:
        """Return the initial weights in the order of the graphs' arguments; the same for the same seed."""
        ...

    def user(self, weights: Sequence[Tensor], inputs: PackedSide) -> Tensor:
        """Return the vectors of users, float32 (U, dim)."""
        ...

    def item(self, weights: Sequence[Tensor], inputs: PackedSide) -> Tensor:
        """Return the vectors of items, float32 (N, dim)."""
        ...
