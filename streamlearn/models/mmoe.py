"""MMoE and PLE: experts that all labels share, weighed for each label by a gate of its own, and a tower for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from streamlearn.models.columns import Channel, Columns
from streamlearn.models.protocol import PackedSide, Tensor
from streamlearn.models.ready import Built, FirstOrderModel
from streamlearn.models.tower import layer_outputs, matmul
from streamlearn.models.weights import Weight, glorot, same

__all__ = ["Mmoe", "Ple"]

COUNT_MAX = 64
_SHARED = "shared experts"
# Added to what a gate says of the experts of other labels: their weight is zero.
_CLOSED = -1e9


@dataclass(kw_only=True, eq=False)
class Mmoe(FirstOrderModel):
    """The multi-gate mixture of experts, for labels that have something in common.

    Each expert is a perceptron over all inputs. For each label, a gate over the same inputs weighs the experts'
    outputs, and a tower makes the logit from their weighted sum. All weights of a gate are equal at first.

    Attributes:
        experts: The number of experts that all labels share.
        expert: The widths of an expert's layers.
        tower: The widths of the layers of a label's tower.
        own: The number of experts of each label, which only the label's gate weighs.
        levels: The number of layers of experts. The own experts of a label take the sum of the level before by the
            label's gate, and shared ones a sum by a gate over all experts.
    """

    experts: int = 4
    expert: tuple[int, ...] = (128, 64)
    tower: tuple[int, ...] = (32,)
    own: int = 0
    levels: int = 1

    def __post_init__(self) -> None:
        """Check the arguments; a wrong one raises a `UsageError`."""
        super().__post_init__()
        for name, least in (("experts", 1), ("own", 0), ("levels", 1)):
            count = getattr(self, name)
            is_fit = isinstance(count, int) and not isinstance(count, bool) and least <= count <= COUNT_MAX
            self._require(name, is_fit, f"it is a whole number from {least} to {COUNT_MAX}")
        self._require_widths("expert")
        self._require_widths("tower")

    def _weights(self, built: Built) -> Iterator[Weight]:
        count, first, last = self._count(built), self.expert[0], self.expert[-1]
        widths = {side: columns.width for side, columns in (("user", built.user), ("item", built.item))}
        for level in range(self.levels):
            axes = ("labels" if self._is_last(level) else "gates", "experts")
            gates = self._gates(built, level)
            # The user's part of the first level is computed once a request.
            for part, width in (widths if level == 0 else {"": last}).items():
                if width:
                    yield same(f"gates_{level}_{part}".rstrip("_"), (width, gates, count), axes=(part, *axes))
            yield same(f"gates_{level}_bias", (gates, count), axes=axes)
            for part, width in widths.items():
                if level == 0 and width:
                    kernel = glorot(f"experts_0_{part}", (width, first), sum(widths.values()))
                    yield kernel._replace(shape=(width, count * first), axes=(part, "first"))
            for layer, shape in enumerate(zip((last, *self.expert), self.expert, strict=False)):
                if level or layer:
                    yield _several(f"experts_{level}_{layer}", count, shape, "experts")
                yield from self._of_outputs(f"experts_{level}_{layer}", (count, shape[1]), "experts")
        for layer, shape in enumerate(zip((last, *self.tower), self.tower, strict=False)):
            yield _several(f"tower_{layer}", built.labels, shape, "labels")
            yield from self._of_outputs(f"tower_{layer}", (built.labels, shape[1]), "labels")
        yield _several("out", built.labels, (self.tower[-1], 1), "labels")
        yield from self._first_order(built)
        yield same("bias", (built.labels,), axes=("labels",))

    def _of_outputs(self, name: str, shape: tuple[int, int], axis: str) -> Iterator[Weight]:
        if self.norm == "layer":
            yield same(f"{name}_gain", shape[::-1], 1.0, ("", axis))
        yield same(f"{name}_bias", shape, axes=(axis, ""))

    def _user(self, weights: Mapping[str, Tensor], inputs: PackedSide) -> PackedSide:
        return PackedSide(tf.concat(self._parts(weights, "user", inputs), axis=1), None)

    def _score(self, weights: Mapping[str, Tensor], user: PackedSide, inputs: PackedSide) -> Tensor:
        built, parts = self._known(), self._parts(weights, "item", inputs)
        count, first_gates = self._count(built), self._gates(built, 0)
        if user.flat is not None:
            sizes = [count * self.expert[0], first_gates * count, built.labels]
            of_user = tf.split(user.flat, sizes[: len(parts)], axis=1)
            parts = [one + other for one, other in zip(parts, of_user, strict=True)]
        hidden, gates, *numbers = parts
        hidden = tf.reshape(hidden, [-1, count, self.expert[0]])
        mixed = self._mixed(weights, 0, hidden, tf.reshape(gates, [-1, first_gates, count]))
        for level in range(1, self.levels):
            gates = self._product(mixed[:, : self._gates(built, level)], weights[f"gates_{level}"])
            hidden = self._product(tf.gather(mixed, self._sources(built), axis=1), weights[f"experts_{level}_0"])
            mixed = self._mixed(weights, level, hidden, gates)
        for layer in range(len(self.tower)):
            product = self._product(mixed, weights[f"tower_{layer}"])
            mixed = self._outputs(weights, f"tower_{layer}", product)
        return sum(numbers, self._product(mixed, weights["out"])[:, :, 0] + weights["bias"])

    def _mixed(self, weights: Mapping[str, Tensor], level: int, hidden: Tensor, gates: Tensor) -> Tensor:
        """Return (rows, gates, width): what each gate makes of a level's experts, whose first products are `hidden`."""
        hidden = self._outputs(weights, f"experts_{level}_0", hidden)
        for layer in range(1, len(self.expert)):
            product = self._product(hidden, weights[f"experts_{level}_{layer}"])
            hidden = self._outputs(weights, f"experts_{level}_{layer}", product)
        closed = self._closed(self._known(), level)
        shares = tf.nn.softmax(gates + weights[f"gates_{level}_bias"] + closed, axis=-1)
        return tf.reduce_sum(shares[..., None] * hidden[:, None], axis=2)

    def _parts(self, weights: Mapping[str, Tensor], side: str, inputs: PackedSide) -> list[Tensor]:
        """Return one side's terms of the experts' first layers, of the first gates, and of the logits."""
        columns: Columns = getattr(self._known(), side)
        whole = columns.whole(inputs, self.dense_scale)
        gates = tf.reshape(weights[f"gates_0_{side}"], [columns.width, -1])
        numbers = self._numbers(weights, columns, inputs)
        hidden = matmul(whole, weights[f"experts_0_{side}"], self.compute)
        return [hidden, matmul(whole, gates, self.compute), *numbers]

    def _channels(self, built: Built) -> dict[str, Sequence[Channel]]:
        labels, width = [f"label {label}" for label in built.label_names], self.expert[0]
        experts = [(_SHARED, number) for number in range(self.experts)]
        experts += [(label, number) for label in labels for number in range(self.own)]
        first = [(owner, number * width + channel) for owner, number in experts for channel in range(width)]
        gates = [*((label, 0) for label in labels), (_SHARED, 0)]
        return super()._channels(built) | {"experts": experts, "first": first, "gates": gates}

    def _count(self, built: Built) -> int:
        """Return the number of experts of a level."""
        return self.experts + built.labels * self.own

    def _gates(self, built: Built, level: int) -> int:
        """Return the number of gates of a level: one for each label, and one for shared experts of the next level."""
        return built.labels + (not self._is_last(level))

    def _product(self, inputs: Tensor, kernels: Tensor) -> Tensor:
        """Multiply the rows of each expert, gate or label, (rows, several, inputs), by its kernel."""
        # Several products of two matrices: on a processor one product of batches of them costs a fifth more in all.
        each = zip(tf.unstack(inputs, axis=1), tf.unstack(kernels, axis=1), strict=True)
        return tf.stack([matmul(rows, kernel, self.compute) for rows, kernel in each], axis=1)

    def _outputs(self, weights: Mapping[str, Tensor], name: str, sums: Tensor) -> Tensor:
        gain = weights.get(f"{name}_gain")
        return layer_outputs(sums, None if gain is None else tf.transpose(gain), weights[f"{name}_bias"], self.dropout)

    def _is_last(self, level: int) -> bool:
        return level == self.levels - 1

    def _sources(self, built: Built) -> list[int]:
        """Return the gate whose sum each expert of a later level takes: that of its label, or the last one."""
        return [built.labels] * self.experts + [label for label in range(built.labels) for _ in range(self.own)]

    def _closed(self, built: Built, level: int) -> npt.NDArray[np.float32]:
        """Return what keeps the gate of a label from the experts of others."""
        sources = np.array(self._sources(built))
        gates = np.arange(self._gates(built, level))[:, None]
        is_open = (sources == gates) | (sources == built.labels) | (gates == built.labels)
        return np.where(is_open, 0.0, _CLOSED).astype(np.float32)


def _several(name: str, count: int, shape: tuple[int, int], axis: str) -> Weight:
    """Return kernels of one shape, side by side: (inputs, several, outputs).

    Inputs come first in each weight: what is new there begins at zero in a changed application, and nothing else does.
    """
    return glorot(name, shape)._replace(shape=(shape[0], count, shape[1]), axes=("", axis, ""))


@dataclass(kw_only=True, eq=False)
class Ple(Mmoe):
    """Progressive layered extraction, for labels that disturb each other in `Mmoe`: it is `Mmoe` with own experts.

    The attributes are those of `Mmoe`.
    """

    experts: int = 2
    own: int = 1
    levels: int = 2
