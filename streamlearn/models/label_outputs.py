"""Label outputs: turns what a model says of each label into what it predicts, a logit or a number."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from streamlearn.features import Number
from streamlearn.features.labels import Output
from streamlearn.models.protocol import Tensor

__all__ = ["predictions_of"]


def predictions_of(said: Tensor, outputs: Sequence[Output]) -> Tensor:
    """Return (N, labels) predictions, from what a model says of each label.

    Of a label that follows another, it says how probable it is after that one, as in ESMM: its probability at all is
    the product of both. Of a label that is a number, it says the number in its own unit, or the logarithm of that.
    """
    if all(output == Output() for output in outputs):
        return said
    own = tf.unstack(said, axis=1)

    def whole(label: int) -> Tensor:
        output = outputs[label]
        if output.number is not None:
            return _number_of(own[label], output.number)
        if output.followed is None:
            return own[label]
        first, then = whole(output.followed), own[label]
        # 1 / (product of two sigmoids) - 1 = e^-a + e^-b + e^-(a + b)
        return -tf.reduce_logsumexp(tf.stack([-first, -then, -first - then]), axis=0)

    return tf.stack([whole(label) for label in range(len(outputs))], axis=1)


def _number_of(said: Tensor, number: Number) -> Tensor:
    scaled = number.scale * (tf.exp(said) if number.is_logarithm else said) + number.center
    return tf.clip_by_value(scaled, *number.bounds)
