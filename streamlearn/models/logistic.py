"""Logistic regression: one number a label for each key, and one weight a label for each dense column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from streamlearn.errors import SpecError
from streamlearn.models.columns import Channel, Columns, channels_of
from streamlearn.models.protocol import PackedSide, Tensor
from streamlearn.models.ready import Built, ReadyModel
from streamlearn.models.tower import matmul
from streamlearn.models.weights import Weight, same

__all__ = ["Logistic"]


@dataclass(kw_only=True, eq=False)
class Logistic(ReadyModel):
    """Logistic regression over keys and dense columns.

    The logit of label j is the sum of channel j of each slot's pooled row (for a sequence: the mean of its rows), of
    each dense column times its weight, and of a bias. Channels beyond the labels learn nothing: declare slots whose
    `dim` is the number of labels, with `initial_range=0.0`, so that unknown keys have no effect.
    """

    @property
    def rows_have_labels(self) -> bool:
        """Whether the first channels of each row belong to the labels, in their order."""
        return True

    def _channels(self, built: Built) -> dict[str, Sequence[Channel]]:
        user, item = channels_of(built.user.dense_columns), channels_of(built.item.dense_columns)
        return super()._channels(built) | {"dense_user": user, "dense_item": item}

    def _check(self, built: Built) -> None:
        for slot in built.features.keyed:
            if slot.dim < built.labels:
                message = f"slot {slot.name!r} has dim {slot.dim}, and there are {built.labels} labels"
                help = f"logistic keeps one number per label in each row: set dim={built.labels}"
                raise SpecError(message, help=help)

    def _weights(self, built: Built) -> Iterator[Weight]:
        for side, columns in (("user", built.user), ("item", built.item)):
            if columns.dense_width:
                yield same(f"dense_{side}", (columns.dense_width, built.labels), axes=(f"dense_{side}", "labels"))
        yield same("bias", (built.labels,), axes=("labels",))

    def _user(self, weights: Mapping[str, Tensor], inputs: PackedSide) -> PackedSide:
        return PackedSide(self._sum(weights, "user", inputs), None)

    def _score(self, weights: Mapping[str, Tensor], user: PackedSide, inputs: PackedSide) -> Tensor:
        logits = self._sum(weights, "item", inputs) + weights["bias"]
        return logits if user.flat is None else logits + user.flat

    def _sum(self, weights: Mapping[str, Tensor], side: str, inputs: PackedSide) -> Tensor:
        built = self._known()
        columns: Columns = getattr(built, side)
        terms = [vector[:, : built.labels] for vector in columns.vectors(inputs)]
        if columns.dense_width:
            terms.append(matmul(columns.dense(inputs, self.dense_scale), weights[f"dense_{side}"], self.compute))
        return tf.add_n(terms)
