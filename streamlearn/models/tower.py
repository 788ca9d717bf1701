"""A tower: layers of a perceptron, the first of which takes its input in parts."""

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
    """Layers of a perceptron; what is known of a user goes through the first one once a request.

    Attributes:
        name: What its weights' names begin with.
        widths: Of its layers.
        compute: In which numbers matrices are multiplied.
    """

    name: str
    widths: tuple[int, ...]
    compute: Compute

    def weights(self, parts: Mapping[str, int]) -> Iterator[Weight]:
        """Its weights.

        Args:
            parts: The parts of its input by name, and how wide they are; those of no width have no weight.
        """
        inputs = sum(parts.values())
        for part, width in parts.items():
            if width:
                yield glorot(f"{self.name}_0_{part}", (width, self.widths[0]), inputs)
        yield same(f"{self.name}_0_bias", (self.widths[0],))
        for layer, (before, width) in enumerate(zip(self.widths, self.widths[1:], strict=False), 1):
            yield glorot(f"{self.name}_{layer}", (before, width))
            yield same(f"{self.name}_{layer}_bias", (width,))

    def part(self, weights: Mapping[str, Tensor], part: str, inputs: Tensor) -> Tensor:
        """What a part of the input adds to the first layer."""
        return matmul(inputs, weights[f"{self.name}_0_{part}"], self.compute)

    def rest(self, weights: Mapping[str, Tensor], parts: Tensor) -> Tensor:
        """The last layer's outputs, of the sum of all parts."""
        found = tf.nn.relu(parts + weights[f"{self.name}_0_bias"])
        for layer in range(1, len(self.widths)):
            product = matmul(found, weights[f"{self.name}_{layer}"], self.compute)
            found = tf.nn.relu(product + weights[f"{self.name}_{layer}_bias"])
        return found


def matmul(inputs: Tensor, kernel: Tensor, compute: Compute) -> Tensor:
    """Rows times a kernel, multiplied in other numbers, float32 before and after."""
    if compute == "float32":
        return tf.matmul(inputs, kernel)
    return tf.cast(tf.matmul(tf.cast(inputs, compute), tf.cast(kernel, compute)), tf.float32)
