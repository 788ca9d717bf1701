"""Loss: the loss of a step's logits, summed over labels, in closed form. It knows no model."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["TARGETS", "loss_of"]

TARGETS = ("positive", "learn", "correct", "log_rate")
"""The channels of a step's targets, (rows, labels, 4) float32.

`learn` and `correct` are weights, 0 for a label that is not learned or not corrected; `log_rate` is the logarithm of
the share of negatives that was kept.
"""


def loss_of(logits: Any, targets: Any) -> Any:
    """Return the sum of all labels' losses. `logits` is (rows, labels); `TARGETS` describes `targets`.

    Negatives are sampled at rate r. So the probability among samples is sigmoid(z - ln r), and serving uses z. A label
    that was learned as negative and turns positive adds the difference of the two losses:
    loss(z, 1) - loss(z, 0) = ln r - z.
    """
    positive, learn, correct, log_rate = tf.unstack(targets, axis=-1)
    shifted = logits - log_rate
    learned = tf.nn.sigmoid_cross_entropy_with_logits(labels=positive, logits=shifted)
    return tf.reduce_sum(learn * learned - correct * shifted)
