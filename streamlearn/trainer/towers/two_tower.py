"""TwoTower: the ready-made towers. An item is the sum of its rows, a user a layer more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import tensorflow as tf

from streamlearn.errors import SpecError
from streamlearn.features import FeatureSpec
from streamlearn.models import PackedSide
from streamlearn.models.columns import Columns, columns_of
from streamlearn.models.protocol import Tensor
from streamlearn.models.weights import Weight, glorot, initial, same

__all__ = ["TwoTower"]

# Initial logits are within plus and minus this: the reciprocal of the temperature, which is learned.
_SCALE = 6.0
_EPSILON = 1e-12


class TwoTower:
    """Both vectors have length one; the user's is then multiplied by the reciprocal of the temperature.

    An item's vector has no weights, so that it changes only when its rows do. A user's is the sum of its rows, of the
    means of its histories, and of a projection of its dense columns, through a residual layer.
    """

    item_has_weights: ClassVar[bool] = False

    def __init__(self, hidden: int = 64) -> None:
        self._hidden = hidden
        self._sides: tuple[Columns, Columns] | None = None
        self._weights: tuple[Weight, ...] = ()

    def build(self, features: FeatureSpec, seed: int) -> list[Tensor]:
        """See `Towers`."""
        if columns := features.dense_of("item"):
            message = f"two_tower has no weights for items, and retrieval names the dense column {columns[0].name!r}"
            raise SpecError(message, help="leave it out, make a slot of its ranges, or write towers of your own")
        user, item = columns_of(features.pack.user), columns_of(features.pack.item)
        self._sides, dim = (user, item), features.slots[0].dim
        dense = (glorot("user_dense", (user.dense_width, dim)),) if user.dense_width else ()
        self._weights = (
            same("scale", (1,), math.log(_SCALE)),
            glorot("user_0", (dim, self._hidden)),
            same("user_0_bias", (self._hidden,)),
            same("user_1", (self._hidden, dim)),
            *dense,
        )
        return initial(self._weights, seed)

    @property
    def weight_names(self) -> tuple[str, ...]:
        """The names of the weights, in their order."""
        return tuple(weight.name for weight in self._weights)

    def user(self, weights: Sequence[Tensor], inputs: PackedSide) -> Tensor:
        """See `Towers`."""
        assert self._sides is not None
        columns, (scale, first, bias, last, *of_dense) = self._sides[0], weights
        rows = tf.add_n([_sum(columns, inputs), *(tf.matmul(columns.dense(inputs, "log"), one) for one in of_dense)])
        return _of_length_one(rows + tf.matmul(tf.nn.relu(tf.matmul(rows, first) + bias), last)) * tf.exp(scale)

    def item(self, weights: Sequence[Tensor], inputs: PackedSide) -> Tensor:
        """See `Towers`."""
        del weights
        assert self._sides is not None
        return _of_length_one(_sum(self._sides[1], inputs))


def _sum(columns: Columns, inputs: PackedSide) -> Tensor:
    """Return the sum of all rows of a side, and of the means of its histories."""
    means = columns.vectors(inputs)[len(columns.slots) :]
    if not columns.slots:
        return tf.add_n(means)
    # One sum, as the gradient of each slot's slice would be as wide as all of them.
    rows = inputs.flat[:, : columns.slots_width] if columns.dense_width else inputs.flat
    return tf.add_n([tf.reduce_sum(tf.reshape(rows, [-1, len(columns.slots), columns.slots[0].width]), 1), *means])


def _of_length_one(vectors: Tensor) -> Tensor:
    squares = tf.reduce_sum(tf.square(vectors), axis=1, keepdims=True)
    return vectors * tf.math.rsqrt(squares + _EPSILON)
