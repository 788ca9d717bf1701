"""DIN: how much a candidate has to do with each thing of a user's history decides what of it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from streamlearn.errors import SpecError
from streamlearn.features import FeatureSpec, PackColumn
from streamlearn.models.protocol import PackedSide, Tensor
from streamlearn.models.ready import Built, ReadyModel
from streamlearn.models.tower import Tower, matmul
from streamlearn.models.weights import Weight, glorot, same

__all__ = ["Din"]


@dataclass(kw_only=True, eq=False)
class Din(ReadyModel):
    """The deep interest network: attention of the candidate over the user's history.

    Each place of the history has a vector h, the rows of all sequence slots side by side. A candidate's vector c is
    made of the item slots whose keys those slots share. A small perceptron over h, c and the products of what the two
    share gives the place's weight; the sum of the weighed h goes into a perceptron with everything else. Places the
    mask leaves out count nothing, whatever stands there. Weights begin near one, so that what is learned begins with
    the plain sum: near nothing, neither the weights nor what they weigh would be told much by the loss.

    Attributes:
        attention: Widths of the attention's layers.
        softmax: Whether the weights of a history are brought to a sum of one. Without it a history that has much to
            do with the candidate counts for more than one that has little.
        hidden: Widths of the perceptron's layers.
    """

    attention: tuple[int, ...] = (32,)
    softmax: bool = False
    hidden: tuple[int, ...] = (256, 128)

    def __post_init__(self) -> None:
        """Refuse arguments that are none.

        Raises:
            UsageError: With the first of them.
        """
        super().__post_init__()
        self._require_widths("attention")
        self._require("softmax", isinstance(self.softmax, bool), "it is True or False")
        self._require_widths("hidden")

    def _check(self, built: Built) -> None:
        if not built.user.sequences:
            message = "din needs a history, but no slot is a sequence"
            hint = 'declare one: Slot("watched", "user", multi=True, pooling="sequence", length=50, keys_of=...)'
            raise SpecError(message, help=f"{hint}; or choose dcn_v2 or deepfm")
        if not _shared(built.features):
            names = ", ".join(repr(column.name) for column in built.user.sequences)
            message = f"no item slot shares its keys with {names}"
            raise SpecError(message, help="name the slot of the candidate, as in Slot(..., keys_of='video_id')")

    def _weights(self, built: Built) -> Iterator[Weight]:
        history, candidate = built.user.sequence_width, _width(_shared(built.features))
        yield from self._attention.weights({"history": history, "item": candidate, "product": candidate})
        yield glorot("attention_out", (self.attention[-1], 1))
        yield same("attention_out_bias", (1,), 1.0)
        parts = {"user": built.user.flat_width, "item": built.item.flat_width, "history": history}
        yield from self._tower.weights(parts)
        yield glorot("out", (self.hidden[-1], built.labels))
        yield same("bias", (built.labels,))

    def _user(self, weights: Mapping[str, Tensor], inputs: PackedSide) -> PackedSide:
        built, flat = self._known(), None
        if built.user.flat_width:
            flat = self._tower.part(weights, "user", built.user.flat(inputs, self.dense_scale))
        rows, mask = inputs.sequence[..., :-1], inputs.sequence[..., -1:]
        known = _places(rows, built.user.sequence_width, lambda one: self._attention.part(weights, "history", one))
        return PackedSide(flat, tf.concat([rows, known, mask], axis=2))

    def _score(self, weights: Mapping[str, Tensor], user: PackedSide, inputs: PackedSide) -> Tensor:
        built = self._known()
        item = built.item.flat(inputs, self.dense_scale)
        history = self._history(weights, user.sequence, inputs)
        parts = self._tower.part(weights, "item", item) + self._tower.part(weights, "history", history)
        if user.flat is not None:
            parts += user.flat
        return matmul(self._tower.rest(weights, parts), weights["out"], self.compute) + weights["bias"]

    def _history(self, weights: Mapping[str, Tensor], places: Tensor, inputs: PackedSide) -> Tensor:
        """The weighed sum of each candidate's history (N, sequence_width)."""
        built = self._known()
        sizes = [built.user.sequence_width, self.attention[0], 1]
        rows, known, mask = tf.split(places, sizes, axis=2)
        shared = _shared(built.features)
        candidate = _cut(inputs.flat, [item for _, item in shared])
        product = _cut(rows, [sequence for sequence, _ in shared]) * candidate[:, None, :]
        found = known + self._attention.part(weights, "item", candidate)[:, None, :]
        found += _places(product, _width(shared), lambda one: self._attention.part(weights, "product", one))
        share = _places(found, self.attention[0], lambda one: self._place_weight(weights, one))
        if self.softmax:
            # Least of all where there is nothing; a history of nothing is taken out by the mask.
            share = tf.nn.softmax(tf.where(mask > 0, share, -1e9), axis=1)
        return tf.reduce_sum(share * mask * rows, axis=1)

    def _place_weight(self, weights: Mapping[str, Tensor], parts: Tensor) -> Tensor:
        found = self._attention.rest(weights, parts)
        return matmul(found, weights["attention_out"], self.compute) + weights["attention_out_bias"]

    @property
    def _attention(self) -> Tower:
        return Tower("attention", self.attention, self.compute)

    @property
    def _tower(self) -> Tower:
        return Tower("mlp", self.hidden, self.compute)


def _shared(features: FeatureSpec) -> list[tuple[PackColumn, PackColumn]]:
    """Sequence columns, each with the item's column whose keys it shares; those without one are left out."""
    items = {column.name: column for column in features.pack.item.flat}
    found = []
    for column in features.pack.user.sequence:
        slot = features.slot(column.name)
        same_keys = [
            other.name
            for other in features.slots_of("item")
            if (other.salt_name, other.table, other.value) == (slot.salt_name, slot.table, slot.value)
        ]
        if same_keys:
            # The one the keys are named after, where others share them too.
            name = slot.salt_name if slot.salt_name in same_keys else same_keys[0]
            found.append((column, items[name]))
    return found


def _width(shared: Sequence[tuple[PackColumn, PackColumn]]) -> int:
    return sum(item.width for _, item in shared)


def _cut(block: Tensor, columns: Sequence[PackColumn]) -> Tensor:
    """Some columns of a block side by side; a column that stands twice is there twice."""
    return tf.concat([block[..., column.at : column.at + column.width] for column in columns], axis=-1)


def _places(block: Tensor, width: int, of_rows: Callable[[Tensor], Tensor]) -> Tensor:
    """What a function of rows makes of every place of a block (rows, places, width)."""
    found = of_rows(tf.reshape(block, [-1, width]))
    return tf.reshape(found, [-1, tf.shape(block)[1], found.shape[1]])
