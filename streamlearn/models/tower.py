"""A tower: layers of a perceptron, whose first layer takes its input in parts; and what a layer leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypeAlias

import tensorflow as tf

from streamlearn.models.protocol import Tensor
from streamlearn.models.weights import Weight, glorot, same

__all__ = ["RATE_MAX", "Compute", "Norm", "Tower", "dropout", "layer_outputs", "learning", "matmul"]

Compute: TypeAlias = Literal["float32", "bfloat16", "float16"]
Norm: TypeAlias = Literal["none", "layer"]

NORM_EPSILON = 1e-5
RATE_MAX = 0.95


@dataclass
class _Learning:
    seed: Tensor  # int32[2]; the same numbers leave out the same outputs
    layers: int = 0  # how many layers have left outputs out so far


_LEARNING: ContextVar[_Learning | None] = ContextVar("learning", default=None)


@contextmanager
def learning(seed: Tensor) -> Iterator[_Learning]:
    """Let `dropout` leave out outputs within the block, chosen by two int32 numbers."""
    token = _LEARNING.set(started := _Learning(seed))
    try:
        yield started
    finally:
        _LEARNING.reset(token)


def dropout(outputs: Tensor, rate: float) -> Tensor:
    """Leave out a share of a layer's outputs while the model learns, and enlarge the others by as much.

    It does nothing where scores are made: in exported graphs, and in the predictions that training is validated by.
    Which outputs are left out follows from the number of the step, `trainer.seed`, and the place in the model.
    """
    step = _LEARNING.get()
    if step is None or not rate:
        return outputs
    step.layers += 1
    # One algorithm on every device.
    chances = tf.random.stateless_uniform(tf.shape(outputs), tf.add(step.seed, [0, step.layers]), alg="philox")
    return tf.where(chances >= rate, outputs / (1.0 - rate), 0.0)


@dataclass(frozen=True)
class Tower:
    """Layers of a perceptron; the user's inputs pass the first layer once a request."""

    name: str  # the prefix of its weights' names
    widths: tuple[int, ...]  # the widths of its layers
    compute: Compute  # the number format of matrix products
    norm: Norm = "none"  # whether the inputs of each layer's nonlinearity are normalised
    dropout: float = 0.0  # the share of each layer's outputs that is left out while it learns
    axes: str = ""  # the prefix of the axes of its parts

    def weights(self, parts: Mapping[str, int], silent: Mapping[str, int] | None = None) -> Iterator[Weight]:
        """Yield the weights for the parts of the input, given as widths by name; a part of width 0 has no weight.

        Those of `silent` parts are zero at first.
        """
        inputs = sum(parts.values())
        for part, width in parts.items():
            if width:
                yield glorot(f"{self.name}_0_{part}", (width, self.widths[0]), inputs, (f"{self.axes}{part}", ""))
        for part, width in (silent or {}).items():
            yield same(f"{self.name}_0_{part}", (width, self.widths[0]), 0.0, (f"{self.axes}{part}", ""))
        yield from self._of_outputs(0)
        for layer, (before, width) in enumerate(zip(self.widths, self.widths[1:], strict=False), 1):
            yield glorot(f"{self.name}_{layer}", (before, width))
            yield from self._of_outputs(layer)

    def part(self, weights: Mapping[str, Tensor], part: str, inputs: Tensor) -> Tensor:
        """Return the term that a part of the input adds to the first layer."""
        return matmul(inputs, weights[f"{self.name}_0_{part}"], self.compute)

    def rest(self, weights: Mapping[str, Tensor], parts: Tensor) -> Tensor:
        """Return the last layer's outputs from the sum of all parts."""
        output = self._outputs(weights, 0, parts)
        for layer in range(1, len(self.widths)):
            output = self._outputs(weights, layer, matmul(output, weights[f"{self.name}_{layer}"], self.compute))
        return output

    def _of_outputs(self, layer: int) -> Iterator[Weight]:
        width = self.widths[layer]
        if self.norm == "layer":
            yield same(f"{self.name}_{layer}_gain", (width,), 1.0)
        yield same(f"{self.name}_{layer}_bias", (width,))

    def _outputs(self, weights: Mapping[str, Tensor], layer: int, sums: Tensor) -> Tensor:
        gain, bias = weights.get(f"{self.name}_{layer}_gain"), weights[f"{self.name}_{layer}_bias"]
        return layer_outputs(sums, gain, bias, self.dropout)


def layer_outputs(sums: Tensor, gain: Tensor | None, bias: Tensor, rate: float) -> Tensor:
    """Return the outputs of a layer; with a gain, those of each row are normalised before the nonlinearity."""
    if gain is not None:
        centred = sums - tf.reduce_mean(sums, axis=-1, keepdims=True)
        deviation = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
        sums = centred * tf.math.rsqrt(deviation + NORM_EPSILON) * gain
    return dropout(tf.nn.relu(sums + bias), rate)


def matmul(inputs: Tensor, kernel: Tensor, compute: Compute) -> Tensor:
    """Multiply float32 rows by a float32 kernel in a number format; the result is float32."""
    if compute == "float32":
        return tf.matmul(inputs, kernel)
    return tf.cast(tf.matmul(tf.cast(inputs, compute), tf.cast(kernel, compute)), tf.float32)
