"""DCN-v2: layers that cross all inputs with each other, in parallel with a perceptron."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import tensorflow as tf

from streamlearn.models.columns import Columns
from streamlearn.models.protocol import PackedSide, Tensor
from streamlearn.models.ready import Built, PairsModel
from streamlearn.models.tower import Tower, matmul
from streamlearn.models.weights import Weight, glorot, same

__all__ = ["DcnV2"]

LAYERS_MAX = 64


@dataclass(kw_only=True, eq=False)
class DcnV2(PairsModel):
    """The deep and cross network, version 2, with its two parts in parallel.

    A cross layer computes x0 * (x K + b) + x from x, where x0 is the whole input of user and candidate: slots, dense
    columns, means of sequences. K is a square matrix, or the product of a matrix to `rank` channels and one back.

    Attributes:
        cross: The number of cross layers.
        rank: The channels between the two matrices of a cross layer. None uses square matrices, and so does a rank
            that would not save weights.
        hidden: The widths of the perceptron's layers.
    """

    cross: int = 3
    rank: int | None = 64
    hidden: tuple[int, ...] = (256, 128)

    def __post_init__(self) -> None:
        """Check the arguments; a wrong one raises a `UsageError`."""
        super().__post_init__()
        is_fit = isinstance(self.cross, int) and not isinstance(self.cross, bool) and 1 <= self.cross <= LAYERS_MAX
        self._require("cross", is_fit, f"it is a whole number from 1 to {LAYERS_MAX}")
        if self.rank is not None:
            self._require_width("rank")
        self._require_widths("hidden")

    def _weights(self, built: Built) -> Iterator[Weight]:
        widths = {"user": built.user.width, "item": built.item.width}
        whole, between = sum(widths.values()), self._between(built)
        for layer in range(self.cross):
            # The user's part of the first layer is computed once a request, before the candidates.
            parts = {f"cross_0_{side}": width for side, width in widths.items() if width}
            for name, width in (parts if layer == 0 else {f"cross_{layer}": whole}).items():
                side = name.removeprefix("cross_0_") if layer == 0 else "whole"
                yield glorot(name, (width, between), whole, (side, "whole" if between == whole else ""))
            if between != whole:
                yield glorot(f"cross_{layer}_back", (between, whole), axes=("", "whole"))
            yield same(f"cross_{layer}_bias", (whole,), axes=("whole",))
        yield from self._tower.weights(widths, silent=self._pairs(built).widths)
        yield glorot("out_cross", (whole, built.labels), whole + self.hidden[-1], ("whole", "labels"))
        yield glorot("out_mlp", (self.hidden[-1], built.labels), whole + self.hidden[-1], ("", "labels"))
        yield from self._first_order(built)
        yield same("bias", (built.labels,), axes=("labels",))

    def _user(self, weights: Mapping[str, Tensor], inputs: PackedSide) -> PackedSide:
        return PackedSide(tf.concat(self._parts(weights, "user", inputs), axis=1), None)

    def _score(self, weights: Mapping[str, Tensor], user: PackedSide, inputs: PackedSide) -> Tensor:
        built = self._known()
        whole, *sums = self._parts(weights, "item", inputs)
        if user.flat is not None:
            sizes = [built.user.width, self._between(built), self.hidden[0], built.labels]
            whole_user, *others = tf.split(user.flat, sizes[: 1 + len(sums)], axis=1)
            sums = [of_item + of_user for of_item, of_user in zip(sums, others, strict=True)]
            if self._has_both(built):
                sums[1] += self._hidden_of_both(weights, whole_user, whole)
            whole = tf.concat([whole_user, whole], axis=1)
        crossed, hidden, *numbers = sums
        cross = self._crossed(weights, whole, crossed)
        deep = self._tower.rest(weights, hidden)
        logits = matmul(cross, weights["out_cross"], self.compute) + matmul(deep, weights["out_mlp"], self.compute)
        return sum(numbers, logits + weights["bias"])

    def _crossed(self, weights: Mapping[str, Tensor], whole: Tensor, crossed: Tensor) -> Tensor:
        """Return the last cross layer's outputs from the product of the first layer's first matrix."""
        output = whole
        for layer in range(self.cross):
            if layer:
                crossed = matmul(output, weights[f"cross_{layer}"], self.compute)
            back = weights.get(f"cross_{layer}_back")
            product = crossed if back is None else matmul(crossed, back, self.compute)
            output = whole * (product + weights[f"cross_{layer}_bias"]) + output
        return output

    def _parts(self, weights: Mapping[str, Tensor], side: str, inputs: PackedSide) -> list[Tensor]:
        """Return one side's inputs, and its terms of the first cross layer, the perceptron and the logits."""
        columns: Columns = getattr(self._known(), side)
        whole = columns.whole(inputs, self.dense_scale)
        crossed = matmul(whole, weights[f"cross_0_{side}"], self.compute)
        numbers = self._numbers(weights, columns, inputs)
        return [whole, crossed, self._hidden(weights, side, whole), *numbers]

    @property
    def _tower(self) -> Tower:
        return self._layers("mlp", self.hidden)

    def _between(self, built: Built) -> int:
        """Return the number of channels after a cross layer's first matrix."""
        whole = built.user.width + built.item.width
        return whole if self.rank is None or 2 * self.rank >= whole else self.rank
