"""A dense weight: its name, its shape and its initial values."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from streamlearn.models.protocol import Tensor

__all__ = ["Weight", "glorot", "initial", "same"]


class Weight(NamedTuple):
    """A dense weight without values, named as in versions and reports.

    Initial values are uniform from `low` to below `high`; if both are equal, all have that value. `axes` names what the
    channels of each dimension are, such as "user" or "labels"; an empty name says that they are the model's own.
    """

    name: str
    shape: tuple[int, ...]
    low: float
    high: float
    axes: tuple[str, ...] = ()


def same(name: str, shape: tuple[int, ...], number: float = 0.0, axes: tuple[str, ...] = ()) -> Weight:
    """Return a weight with one initial value everywhere."""
    return Weight(name, shape, number, number, axes)


def glorot(name: str, shape: tuple[int, int], inputs: int = 0, axes: tuple[str, ...] = ()) -> Weight:
    """Return a kernel, (inputs, outputs), whose outputs are initially about as large as its inputs.

    If the outputs of several kernels are summed, `inputs` counts the inputs of all of them.
    """
    half = math.sqrt(6 / ((inputs or shape[0]) + shape[1]))
    return Weight(name, shape, -half, half, axes)


def initial(weights: Sequence[Weight], seed: int) -> list[Tensor]:
    """Return the initial values of weights.

    Each weight has a random stream of its own, from the seed and its name: values are the same in every process, and a
    new weight does not change others.
    """
    # Always on the CPU, so that the bits are the same on every machine.
    with tf.device("CPU:0"):
        return [_numbers(weight, seed) for weight in weights]


def _numbers(weight: Weight, seed: int) -> Tensor:
    if weight.low == weight.high:
        return tf.fill(weight.shape, tf.constant(weight.low, tf.float32))
    stream = tf.constant([seed % 2**63, zlib.crc32(weight.name.encode())], tf.int64)
    # The numbers of `tf.random.stateless_uniform(alg="philox")`, which first calls dozens of operations for its seed.
    shares = tf.raw_ops.StatelessRandomUniform(shape=weight.shape, seed=stream, dtype=tf.float32)
    low, high = tf.constant(weight.low, tf.float32), tf.constant(weight.high, tf.float32)
    return shares * (high - low) + low
