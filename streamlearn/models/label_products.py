"""Labels that follow others: the logit of such a label becomes that of both of them together."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from streamlearn.models.protocol import Tensor

__all__ = ["followed_logits"]


def followed_logits(logits: Tensor, followed: Sequence[int | None]) -> Tensor:
    """Return (N, labels) logits of what happens at all, from those of what a model says of each label.

    `followed` has for each label the number of the one that it follows. Of a label that follows another, the model says
    how probable it is after that one, as in ESMM; its probability at all is the product of both.
    """
    if all(number is None for number in followed):
        return logits
    own = tf.unstack(logits, axis=1)

    def whole(label: int) -> Tensor:
        number = followed[label]
        if number is None:
            return own[label]
        first, then = whole(number), own[label]
        # 1 / (product of two sigmoids) - 1 = e^-a + e^-b + e^-(a + b)
        return -tf.reduce_logsumexp(tf.stack([-first, -then, -first - then]), axis=0)

    return tf.stack([whole(label) for label in range(len(followed))], axis=1)
