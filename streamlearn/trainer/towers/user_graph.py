"""UserGraph: the user tower as a model that is exported, so that nodes run it as any other graph."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from streamlearn.features import FeatureSpec
from streamlearn.models import PackedSide
from streamlearn.models.graph_trace import weight_notes
from streamlearn.models.protocol import Tensor
from streamlearn.trainer.towers.protocol import Towers

__all__ = ["UserGraph"]


class UserGraph:
    """A `Model` whose outputs for each candidate are the vector of its user, with the weights that this tower uses."""

    def __init__(self, towers: Towers) -> None:
        self._towers = towers
        self._used: list[int] = []
        self._shapes: list[tuple[int, ...]] = []
        self.weight_names: tuple[str, ...] = ()

    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> list[Tensor]:
        """See `Model`."""
        weights = [tf.convert_to_tensor(weight) for weight in self._towers.build(features, seed)]
        notes = weight_notes(self._towers, weights)
        self._shapes = [tuple(weight.shape) for weight in weights]
        side = features.pack.user
        flat = tf.TensorSpec((None, side.flat_width), tf.float32)
        sequence = tf.TensorSpec((None, side.sequence_length, side.sequence_width), tf.float32)

        def vectors(given: list[Tensor], flat: Tensor, sequence: Tensor) -> Tensor:
            inputs = PackedSide(flat if side.flat_width else None, sequence if side.sequence_length else None)
            return self._towers.user(given, inputs)

        traced = tf.function(vectors, autograph=False).get_concrete_function(weights, flat, sequence)
        self._used = [at for at in range(len(weights)) if traced.inputs[at].consumers()]
        self.weight_names = tuple(notes[at].name for at in self._used)
        return [weights[at] for at in self._used]

    def user(self, weights: Sequence[Tensor], inputs: PackedSide) -> PackedSide:
        """See `Model`."""
        given = dict(zip(self._used, weights, strict=True))
        unused = (tf.zeros(shape) for shape in self._shapes)
        return PackedSide(self._towers.user([given.get(at, zero) for at, zero in enumerate(unused)], inputs), None)

    def score(self, weights: Sequence[Tensor], user: PackedSide, user_index: Tensor, inputs: PackedSide) -> Tensor:
        """See `Model`."""
        del weights, inputs
        return tf.gather(user.flat, user_index)
