"""DIN: weights each item of a user's history by its relation to the candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from streamlearn.errors import SpecError
from streamlearn.features import FeatureSpec, PackColumn
from streamlearn.models.columns import Channel, channels_of
from streamlearn.models.protocol import PackedSide, Tensor
from streamlearn.models.ready import Built, DeepModel
from streamlearn.models.tower import Tower, matmul
from streamlearn.models.weights import Weight, glorot, same

__all__ = ["Din"]


@dataclass(kw_only=True, eq=False)
class Din(DeepModel):
    """The deep interest network: attention of the candidate over the user's history.

    Each position of the history has a vector h, the rows of all sequence slots side by side. A candidate's vector c
    consists of the item slots that share keys with those slots. A small perceptron over h, c and the products of their
    shared parts returns the weight of the position; the weighted sum of h goes into a perceptron with all other inputs.
    Masked positions have no effect, whatever they contain. Weights start near one, so that training starts from the
    plain sum: near zero, the loss would give hardly any gradient to the weights or to the history.

    Attributes:
        attention: The widths of the attention's layers.
        softmax: Whether the weights of a history sum to one. Without it a history that is close to the candidate
            counts for more than one that is not.
        hidden: The widths of the perceptron's layers.
    """

    attention: tuple[int, ...] = (32,)
    softmax: bool = False
    hidden: tuple[int, ...] = (256, 128)

    def __post_init__(self) -> None:
        """Check the arguments; a wrong one raises a `UsageError`."""
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
        yield glorot("out", (self.hidden[-1], built.labels), axes=("", "labels"))
        yield same("bias", (built.labels,), axes=("labels",))

    def _user(self, weights: Mapping[str, Tensor], inputs: PackedSide) -> PackedSide:
        built, flat = self._known(), None
        if built.user.flat_width:
            flat = self._tower.part(weights, "user", built.user.flat(inputs, self.dense_scale))
        rows, mask = inputs.sequence[..., :-1], inputs.sequence[..., -1:]
        known = _by_position(rows, built.user.sequence_width, lambda row: self._attention.part(weights, "history", row))
        return PackedSide(flat, tf.concat([rows, known, mask], axis=2))

    def _score(self, weights: Mapping[str, Tensor], user: PackedSide, inputs: PackedSide) -> Tensor:
        built = self._known()
        item = built.item.flat(inputs, self.dense_scale)
        history = self._history(weights, user.sequence, inputs)
        parts = self._tower.part(weights, "item", item) + self._tower.part(weights, "history", history)
        if user.flat is not None:
            parts += user.flat
        return matmul(self._tower.rest(weights, parts), weights["out"], self.compute) + weights["bias"]

    def _history(self, weights: Mapping[str, Tensor], sequence: Tensor, inputs: PackedSide) -> Tensor:
        """Return the weighted sum of each candidate's history (N, sequence_width)."""
        built = self._known()
        sizes = [built.user.sequence_width, self.attention[0], 1]
        rows, known, mask = tf.split(sequence, sizes, axis=2)
        shared = _shared(built.features)
        candidate = _cut(inputs.flat, [item for _, item in shared])
        product = _cut(rows, [sequence for sequence, _ in shared]) * candidate[:, None, :]
        hidden = known + self._attention.part(weights, "item", candidate)[:, None, :]
        hidden += _by_position(product, _width(shared), lambda row: self._attention.part(weights, "product", row))
        share = _by_position(hidden, self.attention[0], lambda row: self._position_weight(weights, row))
        if self.softmax:
            # Masked positions get almost no weight; the mask below removes an empty history altogether.
            share = tf.nn.softmax(tf.where(mask > 0, share, -1e9), axis=1)
        return tf.reduce_sum(share * mask * rows, axis=1)

    def _position_weight(self, weights: Mapping[str, Tensor], parts: Tensor) -> Tensor:
        output = self._attention.rest(weights, parts)
        return matmul(output, weights["attention_out"], self.compute) + weights["attention_out_bias"]

    def _channels(self, built: Built) -> dict[str, Sequence[Channel]]:
        history = channels_of(built.user.sequences)
        shared = [(f"{of.name} {item.name}", n) for of, item in _shared(built.features) for n in range(item.width)]
        sides = {"user": built.user.channels(sequences=False), "item": built.item.channels(sequences=False)}
        attention = {"attention_history": history, "attention_item": shared, "attention_product": shared}
        return super()._channels(built) | sides | {"history": history} | attention

    @property
    def _attention(self) -> Tower:
        return Tower("attention", self.attention, self.compute, axes="attention_")

    @property
    def _tower(self) -> Tower:
        return self._layers("mlp", self.hidden)


def _shared(features: FeatureSpec) -> list[tuple[PackColumn, PackColumn]]:
    """Return the sequence columns that share their keys with an item column, each with that column."""
    items = {column.name: column for column in features.pack.item.flat}
    pairs = []
    for column in features.pack.user.sequence:
        slot = features.slot(column.name)
        same_keys = [
            other
            for other in features.slots_of("item")
            if (other.salt_name, other.table, other.value) == (slot.salt_name, slot.table, slot.value)
        ]
        if same_keys:
            # If several share the keys, the slot that the keys are named after.
            same_keys.sort(key=lambda other: other.first_name != slot.salt_name)
            pairs.append((column, items[same_keys[0].name]))
    return pairs


def _width(shared: Sequence[tuple[PackColumn, PackColumn]]) -> int:
    return sum(item.width for _, item in shared)


def _cut(block: Tensor, columns: Sequence[PackColumn]) -> Tensor:
    """Return some columns of a block side by side, repeated ones too."""
    return tf.concat([block[..., column.at : column.at + column.width] for column in columns], axis=-1)


def _by_position(block: Tensor, width: int, of_rows: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function of rows to every position of a block (rows, positions, width)."""
    output = of_rows(tf.reshape(block, [-1, width]))
    return tf.reshape(output, [-1, tf.shape(block)[1], output.shape[1]])
