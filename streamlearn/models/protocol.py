"""The protocol of a model: two graphs over packed inputs, with the weights as arguments. Types only, no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from streamlearn.features import FeatureSpec

__all__ = ["Model", "PackedSide", "Tensor"]

# A symbolic or eager tensor of TensorFlow, typed without importing it.
Tensor: TypeAlias = Any


class PackedSide(NamedTuple):
    """The inputs of one side in the layout of its `PackSide`; an absent block is None.

    Attributes:
        flat: (rows, flat_width) float32.
        sequence: (rows, sequence_length, sequence_width) float32, the mask as the last channel.
    """

    flat: Tensor
    sequence: Tensor


@runtime_checkable
class Model(Protocol):
    """Two graphs and the weights they take.

    Guaranteed to a model: the spec's `PackPlan` packs the inputs; `user` runs once a request and `score` once a
    candidate; the same two graphs run in training and serving, on CPU or GPU, compiled whole by XLA.
    Required of a model: every dimension but the first is static; weights are used only as arguments; no state, no
    Python side effects, no operation that XLA refuses.

    Two attributes are optional. `weight_names`, available after `build`, names the weights in their order, for versions
    and reports. `any_length = True` states that the graphs accept histories shorter than the pack plan's, for which
    serving has buckets; exported graphs of other models accept that length only.

    The classic mistake is to close over a variable instead of taking it from `weights`: the graph then keeps the value
    that it was exported with, and later versions have no effect.
    """

    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> Sequence[Tensor]:
        """Return the initial dense weights in the order of the graphs' arguments; the same for the same seed."""
        ...

    def user(self, weights: Sequence[Tensor], inputs: PackedSide) -> PackedSide:
        """Return up to two tensors of U rows, which `score` takes unchanged; called once a request."""
        ...

    def score(self, weights: Sequence[Tensor], user: PackedSide, user_index: Tensor, inputs: PackedSide) -> Tensor:
        """Return (N, labels) logits, where row i belongs to user row `user_index[i]`; called once a candidate."""
        ...
