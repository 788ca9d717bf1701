"""Loss: the loss of what a model says in a step, summed over labels, in closed form. It knows no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from streamlearn.features import Number
from streamlearn.features.labels import Output

__all__ = ["TARGETS", "loss_of"]

TARGETS = ("target", "learn", "correct", "learned_as")
"""The channels of a step's targets, (rows, labels, 4) float32.

`target` is 1 for a positive, or a number; `learn` and `correct` are weights, 0 for a label that is not learned or not
corrected; `learned_as` is the number that is corrected, and of other labels the logarithm of the share of negatives
that was kept.
"""


def loss_of(said: Any, targets: Any, outputs: Sequence[Output]) -> Any:
    """Return the sum of all labels' losses. `said` is (rows, labels); `TARGETS` describes `targets`.

    Negatives are sampled at rate r. So the probability among samples is sigmoid(z - ln r), and serving uses z. A label
    that was learned as negative and turns positive adds the difference of the two losses:
    loss(z, 1) - loss(z, 0) = ln r - z. So does a number that was learned as another one.
    """
    target, learn, correct, learned_as = tf.unstack(targets, axis=-1)
    shifted = said - learned_as
    numbers = [output.number for output in outputs]
    if all(number is None for number in numbers):
        learned = tf.nn.sigmoid_cross_entropy_with_logits(labels=target, logits=shifted)
        return tf.reduce_sum(learn * learned - correct * shifted)
    total = tf.constant(0.0)
    for at, number in enumerate(numbers):
        z, aim = shifted[:, at], target[:, at]
        if number is not None:
            now, before = (_number_losses(said[:, at], one, number) for one in (aim, learned_as[:, at]))
            total += tf.reduce_sum((learn[:, at] + correct[:, at]) * now - correct[:, at] * before)
            continue
        learned = tf.nn.sigmoid_cross_entropy_with_logits(labels=aim, logits=z)
        total += tf.reduce_sum(learn[:, at] * learned - correct[:, at] * z)
    return total


def _number_losses(said: Any, actual: Any, number: Number) -> Any:
    """Return the losses of `Number.losses`, of what the model says and with gradients where predictions are bounded."""
    truth = (actual - number.center) / number.scale
    if number.loss == "poisson":
        return tf.exp(said) - truth * said
    if number.loss == "weighted_logistic":
        # Each row is a negative once and a positive as often as its number says: the odds become the number.
        return truth * tf.nn.softplus(-said) + tf.nn.softplus(said)
    error = truth - said
    if number.loss == "huber":
        size = tf.abs(error)
        near = tf.minimum(size, number.delta)
        return near * near / 2 + number.delta * (size - near)
    if number.loss == "quantile":
        return tf.maximum(number.quantile * error, (number.quantile - 1) * error)
    return error * error / 2
