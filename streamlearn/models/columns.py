"""Columns: the layout of one side's packed inputs, as tensors; and the products of vectors, two by two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import tensorflow as tf

from streamlearn.features import PackColumn, PackSide
from streamlearn.models.protocol import PackedSide, Tensor

__all__ = ["Channel", "Columns", "DenseScale", "Pairs", "channels_of", "columns_of"]

DenseScale: TypeAlias = Literal["log", "none"]
Channel: TypeAlias = "tuple[str, int]"
"""A channel: the name of its slot, dense column or label, and the number within it."""


@dataclass(frozen=True)
class Columns:
    """The columns of one side, as a model reads them."""

    slots: tuple[PackColumn, ...]  # the slots in the flat matrix
    sequences: tuple[PackColumn, ...]  # the slots in the sequence block
    slots_width: int  # the channels of the slots; dense columns begin after them
    dense_columns: tuple[PackColumn, ...]
    own: int = 0  # the first channels of each row: its key's first-order numbers, which are not part of its vector

    @property
    def dense_width(self) -> int:
        """The channels of the dense columns."""
        return sum(column.width for column in self.dense_columns)

    @property
    def sequence_width(self) -> int:
        """The channels of the sequence block without its mask."""
        return sum(column.width for column in self.sequences)

    @property
    def flat_width(self) -> int:
        """The channels of the flat matrix."""
        return self.slots_width + self.dense_width

    @property
    def width(self) -> int:
        """The channels of `whole`."""
        return self.flat_width + self.sequence_width - self.own * (len(self.slots) + len(self.sequences))

    @property
    def with_vectors(self) -> tuple[PackColumn, ...]:
        """The slots, and then the sequences, whose rows have a vector beside their first-order numbers."""
        return tuple(column for column in (*self.slots, *self.sequences) if column.width > self.own)

    def channels(self, *, sequences: bool = True) -> list[Channel]:
        """Return the channels of `whole`; without `sequences`, of `flat`."""
        slots, dense = channels_of(self.slots, self.own), channels_of(self.dense_columns)
        return [*slots, *dense, *(channels_of(self.sequences, self.own) if sequences else ())]

    def vectors(self, inputs: PackedSide) -> list[Tensor]:
        """Return the vector of each slot in their order, then of each sequence slot, which is the mean of its rows.

        Rows that hold only first-order numbers have no vector.
        """
        if self.own:
            return [part for at, part in enumerate(self._parts(inputs)) if at % 2 and part.shape[1]]
        vectors = [inputs.flat[:, column.at : column.at + column.width] for column in self.slots]
        if self.sequences:
            means = _history_mean(inputs)
            vectors += [means[:, column.at : column.at + column.width] for column in self.sequences]
        return vectors

    def numbers(self, inputs: PackedSide) -> Tensor:
        """Return the sum of all keys' first-order numbers (rows, own)."""
        numbers = self._parts(inputs)[::2]
        return tf.add_n(numbers) if numbers else tf.zeros([tf.shape(inputs.flat)[0], self.own])

    def dense(self, inputs: PackedSide, scale: DenseScale) -> Tensor:
        """Return the dense columns (rows, dense_width); there must be some."""
        plain = inputs.flat[:, self.slots_width :]
        return tf.sign(plain) * tf.math.log1p(tf.abs(plain)) if scale == "log" else plain

    def flat(self, inputs: PackedSide, scale: DenseScale) -> Tensor:
        """Return the flat matrix with scaled dense columns; there must be one."""
        if not self.dense_width or scale == "none":
            return inputs.flat
        return tf.concat([inputs.flat[:, : self.slots_width], self.dense(inputs, scale)], axis=1)

    def whole(self, inputs: PackedSide, scale: DenseScale) -> Tensor:
        """Return all inputs of each row (rows, width): slots, scaled dense columns, the means of sequences."""
        if self.own:
            vectors, count = self.vectors(inputs), sum(column.width > self.own for column in self.slots)
            dense = [self.dense(inputs, scale)] if self.dense_width else []
            return tf.concat([*vectors[:count], *dense, *vectors[count:]], axis=1)
        if not self.sequences:
            return self.flat(inputs, scale)
        means = _history_mean(inputs)
        return tf.concat([self.flat(inputs, scale), means], axis=1) if self.flat_width else means

    def _parts(self, inputs: PackedSide) -> list[Tensor]:
        """Return the first-order numbers and the vector of each slot, then of each sequence, in turn."""
        # One split for all of them, so that there is one gradient.
        parts = tf.split(inputs.flat[:, : self.slots_width], self._sizes(self.slots), axis=1) if self.slots else []
        if self.sequences:
            parts = [*parts, *tf.split(_history_mean(inputs), self._sizes(self.sequences), axis=1)]
        return parts

    def _sizes(self, columns: tuple[PackColumn, ...]) -> list[int]:
        return [size for column in columns for size in (self.own, column.width - self.own)]


def _history_mean(inputs: PackedSide) -> Tensor:
    """Return the mean of each row's history (rows, sequence_width); zeros for an empty one."""
    rows, mask = inputs.sequence[..., :-1], inputs.sequence[..., -1:]
    return tf.reduce_sum(rows * mask, axis=1) / tf.maximum(tf.reduce_sum(mask, axis=1), 1.0)


def channels_of(columns: Iterable[PackColumn], begin: int = 0) -> list[Channel]:
    """Return the channels of some columns side by side, each from a number on."""
    return [(column.name, number) for column in columns for number in range(begin, column.width)]


def columns_of(side: PackSide, own: int = 0) -> Columns:
    """Return the columns of one side, with `own` first-order numbers in each row."""
    slots = tuple(column for column in side.flat if column.pooling != "dense")
    dense = tuple(column for column in side.flat if column.pooling == "dense")
    return Columns(slots, side.sequence, sum(column.width for column in slots), dense, own)


@dataclass(frozen=True)
class Pairs:
    """The pairs of slots whose vectors have one length: of the user, of the item, and of both."""

    user: Columns
    item: Columns

    @property
    def widths(self) -> dict[str, int]:
        """The number of products, by what they depend on."""
        return {part: len(channels) for part, channels in self.channels().items() if channels}

    def channels(self) -> dict[str, list[Channel]]:
        """Return the channels of the products, in their order."""
        user, item = _groups(self.user), _groups(self.item)
        within = {
            f"pairs_{side}": _named((names, names) for names in groups.values() if len(names) > 1)
            for side, groups in (("user", user), ("item", item))
        }
        return within | {"pairs_both": _named((user[length], item[length]) for length in user if length in item)}

    def within(self, side: str, whole: Tensor) -> Tensor | None:
        """Return the products of one side's vectors, from all of its inputs; None if there are none."""
        stacks = _stacks(getattr(self, side), whole).values()
        return _flat([tf.matmul(one, one, transpose_b=True) for one in stacks if one.shape[1] > 1])

    def between(self, user: Tensor, item: Tensor) -> Tensor | None:
        """Return the products of the user's vectors with the item's, from all inputs of both; None without products."""
        left, right = _stacks(self.user, user), _stacks(self.item, item)
        return _flat([tf.matmul(left[length], right[length], transpose_b=True) for length in left if length in right])


def _named(groups: Iterable[tuple[Sequence[str], Sequence[str]]]) -> list[Channel]:
    return [(f"{one} * {other}", 0) for left, right in groups for one in left for other in right]


def _flat(products: Sequence[Tensor]) -> Tensor | None:
    parts = [tf.reshape(one, [-1, one.shape[1] * one.shape[2]]) for one in products]
    return tf.concat(parts, axis=1) if parts else None


def _groups(columns: Columns) -> dict[int, list[str]]:
    """Return the names of the slots that have vectors, by the length of the vectors."""
    groups: dict[int, list[str]] = {}
    for column in columns.with_vectors:
        groups.setdefault(column.width - columns.own, []).append(column.name)
    return groups


def _stacks(columns: Columns, whole: Tensor) -> dict[int, Tensor]:
    """Return the vectors by their length, each (rows, slots, length)."""
    groups = _groups(columns)
    if not groups:
        return {}
    if len(groups) == 1 and not columns.sequences:
        # They are side by side: one operation, with one gradient.
        ((length, names),) = groups.items()
        return {length: tf.reshape(whole[:, : length * len(names)], [-1, len(names), length])}
    lengths = [column.width - columns.own for column in columns.with_vectors]
    dense_at = sum(column.width > columns.own for column in columns.slots)  # dense columns stand before sequences
    vectors = tf.split(whole, [*lengths[:dense_at], columns.dense_width, *lengths[dense_at:]], axis=1)
    del vectors[dense_at]
    return {length: tf.stack([one for one in vectors if one.shape[1] == length], axis=1) for length in groups}
