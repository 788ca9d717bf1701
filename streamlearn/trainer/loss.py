"""Loss: what a step's logits cost, label by label. Closed forms; it knows no model."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["TARGETS", "loss_of"]

TARGETS = ("positive", "learn", "correct", "log_rate")
"""The channels of a step's targets, (rows, labels, 4) float32.

`learn` and `correct` are weights, 0 where a label is not learned, or not corrected; `log_rate` is the logarithm of the
share of negatives that was kept.
"""


def loss_of(logits: Any, targets: Any) -> Any:
    """The sum of all labels' losses.

    Negatives were thinned by r, so the chance among samples is that of z - ln r, and z is what serving answers. A label
    that was learned as negative and is positive costs what it would have, less what it did: loss(z, 1) - loss(z, 0),
    which is ln r - z.

    Args:
        logits: (rows, labels).
        targets: See `TARGETS`.
    """
    positive, learn, correct, log_rate = tf.unstack(targets, axis=-1)
    shifted = logits - log_rate
    learned = tf.nn.sigmoid_cross_entropy_with_logits(labels=positive, logits=shifted)
    return tf.reduce_sum(learn * learned - correct * shifted)
