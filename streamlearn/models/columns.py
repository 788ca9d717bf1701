"""Columns: what stands where in one side's packed inputs, as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import tensorflow as tf

from streamlearn.features import PackColumn, PackSide
from streamlearn.models.protocol import PackedSide, Tensor

__all__ = ["Columns", "DenseScale", "columns_of"]

DenseScale: TypeAlias = Literal["log", "none"]


@dataclass(frozen=True)
class Columns:
    """One side's columns, as a model reads them.

    Attributes:
        slots: Columns of the flat matrix that are slots.
        sequences: Columns of the sequence block.
        slots_width: Channels of the slots; dense columns begin there.
        dense_width: Channels of the dense columns.
        own: Of each row the first channels, which are its key's own numbers and no part of its vector.
    """

    slots: tuple[PackColumn, ...]
    sequences: tuple[PackColumn, ...]
    slots_width: int
    dense_width: int
    own: int = 0

    @property
    def sequence_width(self) -> int:
        """Channels of the sequence block without its mask."""
        return sum(column.width for column in self.sequences)

    @property
    def flat_width(self) -> int:
        """Channels of the flat matrix."""
        return self.slots_width + self.dense_width

    @property
    def width(self) -> int:
        """Channels of `whole`."""
        return self.flat_width + self.sequence_width - self.own * (len(self.slots) + len(self.sequences))

    def vectors(self, inputs: PackedSide) -> list[Tensor]:
        """A vector of each slot, as declared, and then of each sequence slot: the mean of its rows.

        Rows that hold nothing but their key's own numbers have none.
        """
        if self.own:
            return [one for at, one in enumerate(self._parts(inputs)) if at % 2 and one.shape[1]]
        found = [inputs.flat[:, one.at : one.at + one.width] for one in self.slots]
        if self.sequences:
            means = _history_mean(inputs)
            found += [means[:, one.at : one.at + one.width] for one in self.sequences]
        return found

    def numbers(self, inputs: PackedSide) -> Tensor:
        """The sum of all keys' own numbers (rows, own)."""
        found = self._parts(inputs)[::2]
        return tf.add_n(found) if found else tf.zeros([tf.shape(inputs.flat)[0], self.own])

    def dense(self, inputs: PackedSide, scale: DenseScale) -> Tensor:
        """The dense columns (rows, dense_width); there are some."""
        plain = inputs.flat[:, self.slots_width :]
        return tf.sign(plain) * tf.math.log1p(tf.abs(plain)) if scale == "log" else plain

    def flat(self, inputs: PackedSide, scale: DenseScale) -> Tensor:
        """The flat matrix with its dense columns scaled; there is one."""
        if not self.dense_width or scale == "none":
            return inputs.flat
        return tf.concat([inputs.flat[:, : self.slots_width], self.dense(inputs, scale)], axis=1)

    def whole(self, inputs: PackedSide, scale: DenseScale) -> Tensor:
        """All there is of a row (rows, width): its slots, its dense columns scaled, the means of its sequences."""
        if self.own:
            slots, means = _cut(self.vectors(inputs), sum(one.width > self.own for one in self.slots))
            dense = [self.dense(inputs, scale)] if self.dense_width else []
            return tf.concat([*slots, *dense, *means], axis=1)
        if not self.sequences:
            return self.flat(inputs, scale)
        means = _history_mean(inputs)
        return tf.concat([self.flat(inputs, scale), means], axis=1) if self.flat_width else means

    def _parts(self, inputs: PackedSide) -> list[Tensor]:
        """Of each slot, and then of each sequence, its key's own numbers and its vector in turn."""
        # One operation for all of them, and one gradient.
        found = tf.split(inputs.flat[:, : self.slots_width], self._sizes(self.slots), axis=1) if self.slots else []
        if self.sequences:
            found = [*found, *tf.split(_history_mean(inputs), self._sizes(self.sequences), axis=1)]
        return found

    def _sizes(self, columns: tuple[PackColumn, ...]) -> list[int]:
        return [size for one in columns for size in (self.own, one.width - self.own)]


def _cut(tensors: list[Tensor], at: int) -> tuple[list[Tensor], list[Tensor]]:
    return tensors[:at], tensors[at:]


def _history_mean(inputs: PackedSide) -> Tensor:
    """The mean of each row's history (rows, sequence_width); zeros where there is none."""
    rows, mask = inputs.sequence[..., :-1], inputs.sequence[..., -1:]
    return tf.reduce_sum(rows * mask, axis=1) / tf.maximum(tf.reduce_sum(mask, axis=1), 1.0)


def columns_of(side: PackSide, own: int = 0) -> Columns:
    """The columns of one side.

    Args:
        side: What is packed.
        own: How many of each row's first channels are its key's own numbers.
    """
    slots = tuple(column for column in side.flat if column.pooling != "dense")
    slots_width = sum(column.width for column in slots)
    return Columns(slots, side.sequence, slots_width, side.flat_width - slots_width, own)
