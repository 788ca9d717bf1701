"""DCN-v2 and DeepFM for categories as most write them in Keras: embeddings of fixed size, Adam, batches of 1,024."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

__all__ = ["keras_logits"]

_DIM, _CROSS, _RANK, _HIDDEN, _BATCH = 16, 3, 64, (256, 128), 1_024


def keras_logits(
    name: str, sizes: Sequence[int], learned: tuple[npt.NDArray[Any], npt.NDArray[Any]], passes: Sequence[int],
    asked: npt.NDArray[Any],
) -> dict[int, npt.NDArray[np.float32]]:  # fmt: skip
    """Return the logits of rows after numbers of passes over others, which are shuffled for each pass.

    Args:
        name: `dcn_v2` or `deepfm`.
        sizes: The number of categories of each column.
        learned: int64[n, columns] categories and float32[n] labels.
        passes: The numbers of passes, increasing.
        asked: int64[m, columns] categories to predict.
    """
    keras.utils.set_random_seed(1)
    inputs = keras.Input((len(sizes),), dtype="int32")
    vectors = [_column(inputs, at, size, _DIM) for at, size in enumerate(sizes)]
    whole = keras.layers.Concatenate()(vectors)
    deep = whole
    for width in _HIDDEN:
        deep = keras.layers.Dense(width, activation="relu")(deep)
    if name == "dcn_v2":
        crossed = whole
        for _ in range(_CROSS):
            product = keras.layers.Dense(whole.shape[1])(keras.layers.Dense(_RANK, use_bias=False)(crossed))
            crossed = keras.layers.Add()([keras.layers.Multiply()([whole, product]), crossed])
        logit = keras.layers.Dense(1)(keras.layers.Concatenate()([crossed, deep]))
    else:
        biases = [_column(inputs, at, size, 1) for at, size in enumerate(sizes)]
        pairs = keras.layers.Lambda(_pairs, output_shape=(1,))(vectors)
        logit = keras.layers.Add()([keras.layers.Dense(1)(deep), pairs, *biases])
    model = keras.Model(inputs, logit)
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.BinaryCrossentropy(from_logits=True))
    done, found = 0, {}
    for number in passes:
        model.fit(*learned, batch_size=_BATCH, epochs=number - done, shuffle=True, verbose=0)
        done = number
        found[number] = model.predict(asked, batch_size=8_192, verbose=0)[:, 0]
    return found


def _column(inputs: Any, at: int, size: int, width: int) -> Any:
    """Return the vectors of one column."""
    vectors = keras.layers.Embedding(size, width, embeddings_initializer=keras.initializers.RandomUniform(-0.05, 0.05))
    return vectors(inputs[:, at])


def _pairs(vectors: Sequence[Any]) -> Any:
    """Return the sum of the products of all pairs of vectors: half the square of the sum less the sum of squares."""
    stacked = keras.ops.stack(vectors, axis=1)
    square = keras.ops.square(keras.ops.sum(stacked, axis=1)) - keras.ops.sum(keras.ops.square(stacked), axis=1)
    return keras.ops.sum(square, axis=1, keepdims=True) / 2
