"""A tower: layers of a perceptron, whose first layer takes its input in parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import tensorflow as tf

from streamlearn.models.protocol import Tensor
from streamlearn.models.weights import Weight, glorot, same

__all__ = ["Compute", "Tower", "matmul"]

Compute: TypeAlias = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Tower:
    """Layers of a perceptron; the user's inputs pass the first layer once a request."""

    name: str  # the prefix of its weights' names
    widths: tuple[int, ...]  # the widths of its layers
    compute: Compute  # the number format of matrix products
    axes: str = ""  # the prefix of the axes of its parts

    def weights(self, parts: Mapping[str, int]) -> Iterator[Weight]:
        """Yield the weights for the parts of the input, given as widths by name; a part of width 0 has no weight."""
        inputs = sum(parts.values())
        for part, width in parts.items():
            if width:
                yield glorot(f"{self.name}_0_{part}", (width, self.widths[0]), inputs, (f"{self.axes}{part}", ""))
        yield same(f"{self.name}_0_bias", (self.widths[0],))
        for layer, (before, width) in enumerate(zip(self.widths, self.widths[1:], strict=False), 1):
            yield glorot(f"{self.name}_{layer}", (before, width))
            yield same(f"{self.name}_{layer}_bias", (width,))

    def part(self, weights: Mapping[str, Tensor], part: str, inputs: Tensor) -> Tensor:
        """Return the term that a part of the input adds to the first layer."""
        return matmul(inputs, weights[f"{self.name}_0_{part}"], self.compute)

    def rest(self, weights: Mapping[str, Tensor], parts: Tensor) -> Tensor:
        """Return the last layer's outputs from the sum of all parts."""
        output = tf.nn.relu(parts + weights[f"{self.name}_0_bias"])
        for layer in range(1, len(self.widths)):
            product = matmul(output, weights[f"{self.name}_{layer}"], self.compute)
            output = tf.nn.relu(product + weights[f"{self.name}_{layer}_bias"])
        return output


def matmul(inputs: Tensor, kernel: Tensor, compute: Compute) -> Tensor:
    """Multiply float32 rows by a float32 kernel in a number format; the result is float32."""
    if compute == "float32":
        return tf.matmul(inputs, kernel)
    return tf.cast(tf.matmul(tf.cast(inputs, compute), tf.cast(kernel, compute)), tf.float32)
