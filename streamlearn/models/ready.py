"""ReadyModel: the shared part of ready-made models. It keeps the features a model was built for, and names weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import tensorflow as tf

from streamlearn.errors import SpecError, UsageError
from streamlearn.features import FeatureSpec
from streamlearn.models.columns import Channel, Columns, DenseScale, Pairs, columns_of
from streamlearn.models.protocol import PackedSide, Tensor
from streamlearn.models.tower import RATE_MAX, Compute, Norm, Tower
from streamlearn.models.weights import Weight, initial, same

__all__ = ["Built", "DeepModel", "FirstOrder", "FirstOrderModel", "PairsModel", "ReadyModel"]

FirstOrder: TypeAlias = Literal["none", "shared", "labels"]
WIDTH_MAX = 65_536


@dataclass(frozen=True)
class Built:
    """The features that a model was built for, the columns of both sides, the names of the labels, and the weights."""

    features: FeatureSpec
    user: Columns
    item: Columns
    label_names: tuple[str, ...]
    weights: tuple[Weight, ...] = ()

    @property
    def labels(self) -> int:
        """The number of labels."""
        return len(self.label_names)


@dataclass(kw_only=True, eq=False)
class ReadyModel(ABC):
    """A ready-made model.

    Attributes:
        dense_scale: The scale of dense columns: "log" maps counts and durations of any size near to one with
            sign(x) log(1 + |x|); "none" keeps the values.
        compute: The number format of matrix products. Weights, outputs and everything else are always float32.
            "bfloat16" is for devices that are faster with it; "float16" has less range, and gradients too small for
            it vanish.
    """

    any_length: ClassVar[bool] = True

    dense_scale: DenseScale = "log"
    compute: Compute = "float32"
    _built: Built | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the arguments; a wrong one raises a `UsageError`."""
        self._require("dense_scale", self.dense_scale in get_args(DenseScale), 'it is "log" or "none"')
        self._require("compute", self.compute in get_args(Compute), f"it is one of {', '.join(get_args(Compute))}")

    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> list[Tensor]:
        """Return the initial dense weights in the order of the graphs' arguments; the same for the same seed."""
        own = {"labels": len(labels), "shared": 1, "none": 0}[getattr(self, "first_order", "none")]
        built = Built(features, columns_of(features.pack.user, own), columns_of(features.pack.item, own), tuple(labels))
        if own:
            _check_own(built, type(self).__name__)
        self._check(built)
        self._built = replace(built, weights=tuple(self._weights(built)))
        return initial(self._built.weights, seed)

    @property
    def weight_names(self) -> tuple[str, ...]:
        """The names of the weights, in their order."""
        return tuple(weight.name for weight in self._known().weights)

    @property
    def rows_have_labels(self) -> bool:
        """Whether the first channels of each row belong to the labels, in their order."""
        return getattr(self, "first_order", "none") == "labels"

    def weight_channels(self) -> dict[str, tuple[Sequence[Channel] | None, ...]]:
        """Return what the channels of each weight's dimensions are; None for a dimension that is the model's own.

        By this, what was learned for a feature or a label is found again in the weights of a changed application.
        """
        axes = self._channels(self._known())
        return {weight.name: tuple(axes.get(axis) for axis in weight.axes) for weight in self._known().weights}

    def _channels(self, built: Built) -> dict[str, Sequence[Channel]]:
        """Return the channels of each axis that weights name."""
        user, item = built.user.channels(), built.item.channels()
        labels = [(f"label {label}", 0) for label in built.label_names]
        return {"user": user, "item": item, "whole": [*user, *item], "labels": labels}

    def user(self, weights: Sequence[Tensor], inputs: PackedSide) -> PackedSide:
        """Return everything that depends on the user alone; called once a request."""
        if not self._known().user.width:
            return PackedSide(None, None)
        return self._user(self._named(weights), inputs)

    def score(self, weights: Sequence[Tensor], user: PackedSide, user_index: Tensor, inputs: PackedSide) -> Tensor:
        """Return (N, labels) logits; called once a candidate."""
        return self._score(self._named(weights), _rows(user, user_index), inputs)

    def _check(self, built: Built) -> None:
        """Raise a SpecError for features that the model cannot work with; most models accept all."""
        del built

    @abstractmethod
    def _weights(self, built: Built) -> Iterator[Weight]:
        """Yield the weights for these features."""

    @abstractmethod
    def _user(self, weights: Mapping[str, Tensor], inputs: PackedSide) -> PackedSide:
        """Compute the user graph; there are inputs."""

    @abstractmethod
    def _score(self, weights: Mapping[str, Tensor], user: PackedSide, inputs: PackedSide) -> Tensor:
        """Compute the score graph; `user` has a row a candidate, and no tensors if the user side has no inputs."""

    def _known(self) -> Built:
        if self._built is None:
            message = f"{type(self).__name__} has no features yet"
            raise UsageError(message, help="call build first: it takes the features and returns the weights")
        return self._built

    def _named(self, weights: Sequence[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.weight_names, weights, strict=True))

    def _require(self, name: str, holds: bool, help: str) -> None:
        if not holds:
            message = f"{type(self).__name__}: {name} is {getattr(self, name)!r}"
            raise UsageError(message, help=help)

    def _require_widths(self, name: str) -> None:
        widths: Any = getattr(self, name)
        is_fit = isinstance(widths, tuple) and widths and all(_is_width(width) for width in widths)
        self._require(name, bool(is_fit), f"give a tuple of one or more widths, each from 1 to {WIDTH_MAX}")

    def _require_width(self, name: str) -> None:
        self._require(name, _is_width(getattr(self, name)), f"it is a whole number from 1 to {WIDTH_MAX}")


@dataclass(kw_only=True, eq=False)
class DeepModel(ReadyModel):
    """A ready-made model with layers.

    Attributes:
        norm: "layer" normalises the sums of a layer, row by row, before its nonlinearity; "none" does not.
        dropout: The share of a layer's outputs that is left out at random while the model learns.
    """

    norm: Norm = "none"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        """Check the arguments; a wrong one raises a `UsageError`."""
        super().__post_init__()
        self._require("norm", self.norm in get_args(Norm), f"it is one of {', '.join(get_args(Norm))}")
        is_fit = isinstance(self.dropout, int | float) and not isinstance(self.dropout, bool)
        self._require("dropout", is_fit and 0 <= self.dropout <= RATE_MAX, f"it is a number from 0 to {RATE_MAX}")

    def _layers(self, name: str, widths: tuple[int, ...]) -> Tower:
        return Tower(name, widths, self.compute, self.norm, self.dropout)


@dataclass(kw_only=True, eq=False)
class FirstOrderModel(DeepModel):
    """A ready-made model with layers, whose rows may begin with first-order numbers of their keys.

    Attributes:
        first_order: What each row begins with, before its vector, and what is added to the logits as in `Logistic`:
            "shared", one number, times a weight of each label that begins with one; "labels", a number of each label;
            "none". A slot whose `dim` is that count has no vector.
    """

    first_order: FirstOrder = "none"

    def __post_init__(self) -> None:
        """Check the arguments; a wrong one raises a `UsageError`."""
        super().__post_init__()
        orders = get_args(FirstOrder)
        self._require("first_order", self.first_order in orders, f"it is one of {', '.join(orders)}")

    def _first_order(self, built: Built) -> Iterator[Weight]:
        """Yield the weights of first-order numbers that labels share."""
        if self.first_order == "shared" and built.user.own:
            yield same("first_order", (1, built.labels), 1.0, ("", "labels"))

    def _numbers(self, weights: Mapping[str, Tensor], columns: Columns, inputs: PackedSide) -> list[Tensor]:
        """Return what one side's first-order numbers add to the logits; nothing if rows have none."""
        if self.first_order == "none":
            return []
        numbers = columns.numbers(inputs)
        return [numbers if self.first_order == "labels" else tf.matmul(numbers, weights["first_order"])]


@dataclass(kw_only=True, eq=False)
class PairsModel(FirstOrderModel):
    """A ready-made model with a perceptron that also sees how well the vectors of slots go together.

    Attributes:
        pairs: Whether the dot products of all pairs of vectors of one length are inputs of the perceptron. Their
            weights are zero at first.
    """

    pairs: bool = True

    def __post_init__(self) -> None:
        """Check the arguments; a wrong one raises a `UsageError`."""
        super().__post_init__()
        self._require("pairs", isinstance(self.pairs, bool), "it is True or False")

    @property
    def added_weights(self) -> tuple[str, ...]:
        """The weights that versions of earlier releases do not have."""
        return tuple(f"{self._tower.name}_0_{part}" for part in self._pairs(self._known()).widths)

    @property
    @abstractmethod
    def _tower(self) -> Tower:
        """The perceptron."""

    def _pairs(self, built: Built) -> Pairs:
        none = Columns((), (), 0, ())
        return Pairs(built.user, built.item) if self.pairs else Pairs(none, none)

    def _channels(self, built: Built) -> dict[str, Sequence[Channel]]:
        return super()._channels(built) | self._pairs(built).channels()

    def _has_both(self, built: Built) -> bool:
        """Whether there are products of the user's vectors with the item's."""
        return "pairs_both" in self._pairs(built).widths

    def _hidden(self, weights: Mapping[str, Tensor], side: str, whole: Tensor) -> Tensor:
        """Return what one side's inputs, and the products of its vectors, add to the first layer."""
        hidden = self._tower.part(weights, side, whole)
        products = self._pairs(self._known()).within(side, whole)
        return hidden if products is None else hidden + self._tower.part(weights, f"pairs_{side}", products)

    def _hidden_of_both(self, weights: Mapping[str, Tensor], user: Tensor, item: Tensor) -> Tensor:
        """Return what the products of the user's vectors with the item's add to the first layer; there must be some."""
        products = self._pairs(self._known()).between(user, item)
        return self._tower.part(weights, "pairs_both", products)


def _check_own(built: Built, model: str) -> None:
    """Refuse rows without room for their first-order numbers, and a side without any vector."""
    own = built.user.own
    for slot in built.features.keyed:
        if slot.dim < own:
            message = f"slot {slot.name!r} has dim {slot.dim}, and there are {built.labels} labels"
            hint = f"{model} keeps {own} first-order numbers in each row: set dim={own} or more, or another first_order"
            raise SpecError(message, help=hint)
    for name, side in (("user", built.user), ("item", built.item)):
        if not side.width and (side.slots or side.sequences):
            message = f"every slot of the {name} side has only the {own} first-order numbers, and no vector"
            hint = f"set dim={own + 8} for one of them; or use first_order='none' or model='logistic'"
            raise SpecError(message, help=hint)


def _is_width(width: Any) -> bool:
    return isinstance(width, int) and not isinstance(width, bool) and 1 <= width <= WIDTH_MAX


def _rows(user: PackedSide, index: Tensor) -> PackedSide:
    return PackedSide(*(None if block is None else tf.gather(block, index) for block in user))
