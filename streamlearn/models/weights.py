"""A dense weight: its name, its shape, and the numbers it begins with."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from streamlearn.models.protocol import Tensor

__all__ = ["Weight", "glorot", "initial", "same"]


class Weight(NamedTuple):
    """A dense weight before it has numbers.

    Attributes:
        name: Its name, by which versions keep it and reports speak of it.
        shape: Its shape.
        low: The least number it may begin with.
        high: Above the greatest; equal to `low`, all are that number.
    """

    name: str
    shape: tuple[int, ...]
    low: float
    high: float


def same(name: str, shape: tuple[int, ...], number: float = 0.0) -> Weight:
    """A weight that begins with one number everywhere."""
    return Weight(name, shape, number, number)


def glorot(name: str, shape: tuple[int, int], inputs: int = 0) -> Weight:
    """A kernel whose outputs begin about as large as its inputs.

    Args:
        name: Its name.
        shape: (inputs, outputs).
        inputs: Of all kernels whose outputs are summed, where it is one of several; 0 where it is alone.
    """
    half = math.sqrt(6 / ((inputs or shape[0]) + shape[1]))
    return Weight(name, shape, -half, half)


def initial(weights: Sequence[Weight], seed: int) -> list[Tensor]:
    """The numbers weights begin with.

    Each has a stream of its own, of the seed and its name: they are the same in every process, and a weight that is
    added changes no other.
    """
    # On the CPU whatever else there is, so that the bits are those of every machine.
    with tf.device("CPU:0"):
        return [_numbers(weight, seed) for weight in weights]


def _numbers(weight: Weight, seed: int) -> Tensor:
    if weight.low == weight.high:
        return tf.fill(weight.shape, tf.constant(weight.low, tf.float32))
    stream = tf.constant([seed % 2**63, zlib.crc32(weight.name.encode())], tf.int64)
    return tf.random.stateless_uniform(weight.shape, stream, weight.low, weight.high, tf.float32, alg="philox")
