"""DeepFM: a linear part, products of all pairs of slots, and a perceptron, over the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import tensorflow as tf

from streamlearn.features import PackColumn
from streamlearn.models.columns import Channel, Columns, channels_of
from streamlearn.models.protocol import PackedSide, Tensor
from streamlearn.models.ready import Built, PairsModel
from streamlearn.models.tower import Tower, matmul
from streamlearn.models.weights import Weight, glorot, same

__all__ = ["DeepFm"]


@dataclass(kw_only=True, eq=False)
class DeepFm(PairsModel):
    """DeepFM: slots alone, in pairs, and all together.

    The pairs are a factorisation machine over the slots' vectors, with the mean of its rows for a sequence: channel by
    channel the sum of the products of all pairs, weighted by label. Without `pairs` the weights start at one, so that
    each pair starts as the dot product of its vectors; with them the machine starts as the mean of all pairs, as the
    perceptron sees those of one length. A vector of another length than `fm_dim` is first multiplied by a matrix of
    its slot.

    Attributes:
        hidden: The widths of the perceptron's layers.
        fm_dim: The length of the vectors of the factorisation machine; None uses the longest vector of all slots.
    """

    hidden: tuple[int, ...] = (256, 128)
    fm_dim: int | None = None

    def __post_init__(self) -> None:
        """Check the arguments; a wrong one raises a `UsageError`."""
        super().__post_init__()
        self._require_widths("hidden")
        if self.fm_dim is not None:
            self._require_width("fm_dim")

    def _weights(self, built: Built) -> Iterator[Weight]:
        inputs, dim = built.user.width + built.item.width, self._dim(built)
        for side, columns in (("user", built.user), ("item", built.item)):
            if columns.width:
                yield glorot(f"linear_{side}", (columns.width, built.labels), inputs, (side, "labels"))
        for column in _slots(built.user, built.item):
            if column.width - built.user.own != dim:
                name = f"fm_{column.name}"
                yield glorot(name, (column.width - built.user.own, dim), axes=(name, ""))
        slots = len(_slots(built.user, built.item))
        first = 1.0 / max(1, slots * (slots - 1) // 2) if self.pairs else 1.0
        yield same("fm", (dim, built.labels), first, ("", "labels"))
        sides = {"user": built.user.width, "item": built.item.width}
        yield from self._tower.weights(sides, silent=self._pairs(built).widths)
        yield glorot("out", (self.hidden[-1], built.labels), axes=("", "labels"))
        yield from self._first_order(built)
        yield same("bias", (built.labels,), axes=("labels",))

    def _user(self, weights: Mapping[str, Tensor], inputs: PackedSide) -> PackedSide:
        *sums, whole = self._sums(weights, "user", inputs)
        return PackedSide(tf.concat([*sums, whole] if self._has_both(self._known()) else sums, axis=1), None)

    def _score(self, weights: Mapping[str, Tensor], user: PackedSide, inputs: PackedSide) -> Tensor:
        built = self._known()
        linear, hidden, sums, squares, whole = self._sums(weights, "item", inputs)
        if user.flat is not None:
            dim = self._dim(built)
            sizes = [built.labels, self.hidden[0], dim, dim, *([built.user.width] if self._has_both(built) else [])]
            parts = tf.split(user.flat, sizes, axis=1)
            linear, hidden, sums, squares = linear + parts[0], hidden + parts[1], sums + parts[2], squares + parts[3]
            if self._has_both(built):
                hidden = hidden + self._hidden_of_both(weights, parts[-1], whole)
        # (a + b + c)^2 - a^2 - b^2 - c^2 = 2 (ab + ac + bc)
        pairs = 0.5 * (tf.square(sums) - squares)
        deep = matmul(self._tower.rest(weights, hidden), weights["out"], self.compute)
        return linear + matmul(pairs, weights["fm"], "float32") + deep + weights["bias"]

    def _sums(self, weights: Mapping[str, Tensor], side: str, inputs: PackedSide) -> tuple[Tensor, ...]:
        """Return one side's terms of the linear part, the first layer, the sum of vectors and the sum of squares."""
        columns: Columns = getattr(self._known(), side)
        whole = columns.whole(inputs, self.dense_scale)
        linear = matmul(whole, weights[f"linear_{side}"], self.compute)
        linear = sum(self._numbers(weights, columns, inputs), linear)
        sums, squares = self._summed(weights, columns, inputs, whole)
        if sums is None:
            sums = squares = tf.zeros_like(whole[:, :1]) * weights["fm"][:, 0]
        return linear, self._hidden(weights, side, whole), sums, squares, whole

    def _summed(
        self, weights: Mapping[str, Tensor], columns: Columns, inputs: PackedSide, whole: Tensor
    ) -> tuple[Any, Any]:
        """Return the sum of one side's vectors and of their squares; None for both without vectors."""
        slots = _slots(columns)
        if slots and not columns.sequences and not any(f"fm_{column.name}" in weights for column in slots):
            # Adjacent vectors of one length need one operation, instead of one a slot with a gradient of full width.
            width = slots[0].width - columns.own
            side = tf.reshape(whole[:, : width * len(slots)], [-1, len(slots), width])
            return tf.reduce_sum(side, axis=1), tf.reduce_sum(tf.square(side), axis=1)
        vectors = [
            matmul(vector, weights[f"fm_{column.name}"], self.compute) if f"fm_{column.name}" in weights else vector
            for column, vector in zip(slots, columns.vectors(inputs), strict=True)
        ]
        return (tf.add_n(vectors), tf.add_n([tf.square(vector) for vector in vectors])) if vectors else (None, None)

    def _channels(self, built: Built) -> dict[str, Sequence[Channel]]:
        slots = _slots(built.user, built.item)
        return super()._channels(built) | {f"fm_{slot.name}": channels_of([slot], built.user.own) for slot in slots}

    @property
    def _tower(self) -> Tower:
        return self._layers("mlp", self.hidden)

    def _dim(self, built: Built) -> int:
        own = built.user.own
        return self.fm_dim or max((column.width - own for column in _slots(built.user, built.item)), default=1)


def _slots(*sides: Columns) -> tuple[PackColumn, ...]:
    """Return the columns that have vectors."""
    return tuple(chain.from_iterable(side.with_vectors for side in sides))
