"""What a model is: two graphs over packed inputs, the weights as arguments. Types only, no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from streamlearn.features import FeatureSpec

__all__ = ["Model", "PackedSide", "Tensor"]

# A symbolic or eager tensor of TensorFlow; named without importing it.
Tensor: TypeAlias = Any


class PackedSide(NamedTuple):
    """One side's inputs as its `PackSide` lays them out; an absent block is None.

    Attributes:
        flat: (rows, flat_width) float32.
        sequence: (rows, sequence_length, sequence_width) float32, the mask as the last channel.
    """

    flat: Tensor
    sequence: Tensor


@runtime_checkable
class Model(Protocol):
    """Two graphs and the weights they take.

    Guaranteed to a model: inputs are packed by the spec's `PackPlan`; `user` runs once a request and `score`
    once a candidate; the same two graphs run in training and serving, on CPU or GPU, compiled whole by XLA.
    Asked of a model: every shape but the leading one is static; weights are used only as arguments; no state,
    no Python side effects, no operation XLA refuses.

    Two attributes are read where a model has them. `weight_names`, once it is built, names its weights in their order,
    for versions and reports. `any_length = True` says that the graphs take histories of fewer places than the pack
    plan's, which serving has buckets for; exported graphs of other models take histories of that length alone.

    The classic mistake is to close over a variable instead of taking it from `weights`: the graph then
    freezes the value it was exported with, and no later version is ever served.
    """

    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> Sequence[Tensor]:
        """The initial dense weights, in the order both graphs take them; the same for the same seed."""
        ...

    def user(self, weights: Sequence[Tensor], inputs: PackedSide) -> PackedSide:
        """Once a request: up to two tensors of U rows, passed to `score` as they are."""
        ...

    def score(self, weights: Sequence[Tensor], user: PackedSide, user_index: Tensor, inputs: PackedSide) -> Tensor:
        """Once a candidate: (N, labels) logits; row i belongs to user row `user_index[i]`."""
        ...
