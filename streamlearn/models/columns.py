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
    """

    slots: tuple[PackColumn, ...]
    sequences: tuple[PackColumn, ...]
    slots_width: int
    dense_width: int

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
        return self.flat_width + self.sequence_width

    def vectors(self, inputs: PackedSide) -> list[Tensor]:
        """A vector of each slot, as declared, and then of each sequence slot: the mean of its rows."""
        found = [inputs.flat[:, one.at : one.at + one.width] for one in self.slots]
        if self.sequences:
            means = _history_mean(inputs)
            found += [means[:, one.at : one.at + one.width] for one in self.sequences]
        return found

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
        if not self.sequences:
            return self.flat(inputs, scale)
        means = _history_mean(inputs)
        return tf.concat([self.flat(inputs, scale), means], axis=1) if self.flat_width else means


def _history_mean(inputs: PackedSide) -> Tensor:
    """The mean of each row's history (rows, sequence_width); zeros where there is none."""
    rows, mask = inputs.sequence[..., :-1], inputs.sequence[..., -1:]
    return tf.reduce_sum(rows * mask, axis=1) / tf.maximum(tf.reduce_sum(mask, axis=1), 1.0)


def columns_of(side: PackSide) -> Columns:
    """The columns of one side."""
    slots = tuple(column for column in side.flat if column.pooling != "dense")
    slots_width = sum(column.width for column in slots)
    return Columns(slots, side.sequence, slots_width, side.flat_width - slots_width)
