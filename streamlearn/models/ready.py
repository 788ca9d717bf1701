"""What the ready-made models share: they remember the features they were built for, and name their weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, get_args

import tensorflow as tf

from streamlearn.errors import SpecError, UsageError
from streamlearn.features import FeatureSpec
from streamlearn.models.columns import Columns, DenseScale, columns_of
from streamlearn.models.protocol import PackedSide, Tensor
from streamlearn.models.tower import Compute
from streamlearn.models.weights import Weight, initial

__all__ = ["Built", "ReadyModel"]

WIDTH_MAX = 65_536


@dataclass(frozen=True)
class Built:
    """What a model was built for.

    Attributes:
        features: The features.
        user: What stands where in a user's inputs.
        item: What stands where in a candidate's.
        labels: How many labels there are.
        weights: The weights, in their order.
    """

    features: FeatureSpec
    user: Columns
    item: Columns
    labels: int
    weights: tuple[Weight, ...] = ()


@dataclass(kw_only=True, eq=False)
class ReadyModel(ABC):
    """A ready-made model.

    Attributes:
        dense_scale: What becomes of the numbers of dense columns: "log" brings counts and durations of any size near
            to one, sign(x) log(1 + |x|); "none" takes them as they are.
        compute: In which numbers matrices are multiplied. Weights, outputs and everything else are float32 whatever
            it is. "bfloat16" is for devices that are faster with it; "float16" has less range, and gradients that
            are too small for it vanish.
    """

    any_length: ClassVar[bool] = True

    dense_scale: DenseScale = "log"
    compute: Compute = "float32"
    _built: Built | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse arguments that are none.

        Raises:
            UsageError: With the first of them.
        """
        self._require("dense_scale", self.dense_scale in get_args(DenseScale), 'it is "log" or "none"')
        self._require("compute", self.compute in get_args(Compute), f"it is one of {', '.join(get_args(Compute))}")

    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> list[Tensor]:
        """The initial dense weights, in the order both graphs take them; the same for the same seed.

        Args:
            features: What is packed.
            labels: What is predicted.
            seed: Of the numbers weights begin with.

        Raises:
            SpecError: The model cannot work with such features.
        """
        own = len(labels) if self._has_own else 0
        built = Built(features, columns_of(features.pack.user, own), columns_of(features.pack.item, own), len(labels))
        if own:
            _check_own(built, type(self).__name__)
        self._check(built)
        self._built = replace(built, weights=tuple(self._weights(built)))
        return initial(self._built.weights, seed)

    @property
    def _has_own(self) -> bool:
        """Whether each row begins with numbers of its key's own, one a label."""
        return False

    @property
    def weight_names(self) -> tuple[str, ...]:
        """The names of the weights, in their order."""
        return tuple(weight.name for weight in self._known().weights)

    def user(self, weights: Sequence[Tensor], inputs: PackedSide) -> PackedSide:
        """Once a request: all that depends on the user alone."""
        if not self._known().user.width:
            return PackedSide(None, None)
        return self._user(self._named(weights), inputs)

    def score(self, weights: Sequence[Tensor], user: PackedSide, user_index: Tensor, inputs: PackedSide) -> Tensor:
        """Once a candidate: (N, labels) logits."""
        return self._score(self._named(weights), _rows(user, user_index), inputs)

    def _check(self, built: Built) -> None:
        """Refuse features it cannot work with; most can with all."""
        del built

    @abstractmethod
    def _weights(self, built: Built) -> Iterator[Weight]:
        """Its weights for such features."""

    @abstractmethod
    def _user(self, weights: Mapping[str, Tensor], inputs: PackedSide) -> PackedSide:
        """The user graph; there are inputs."""

    @abstractmethod
    def _score(self, weights: Mapping[str, Tensor], user: PackedSide, inputs: PackedSide) -> Tensor:
        """The score graph; `user` has a row a candidate, and no tensors where the user side has no inputs."""

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
        found: Any = getattr(self, name)
        is_fit = isinstance(found, tuple) and found and all(_is_width(one) for one in found)
        self._require(name, bool(is_fit), f"give a tuple of one or more widths, each from 1 to {WIDTH_MAX}")

    def _require_width(self, name: str) -> None:
        self._require(name, _is_width(getattr(self, name)), f"it is a whole number from 1 to {WIDTH_MAX}")


def _check_own(built: Built, model: str) -> None:
    """Refuse rows that have no place for a number a label, and a side that has nothing else."""
    for slot in built.features.slots:
        if slot.dim < built.labels:
            message = f"slot {slot.name!r} has dim {slot.dim}, and there are {built.labels} labels"
            hint = (
                f"with first_order=True, {model} keeps one number per label in each row: set dim={built.labels} or more"
            )
            raise SpecError(message, help=hint)
    for name, side in (("user", built.user), ("item", built.item)):
        if not side.width and (side.slots or side.sequences):
            message = f"every slot of the {name} side has only the {built.labels} numbers of first_order, and no vector"
            hint = f"set dim={built.labels + 8} for one of them; or use first_order=False or model='logistic'"
            raise SpecError(message, help=hint)


def _is_width(found: Any) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and 1 <= found <= WIDTH_MAX


def _rows(user: PackedSide, index: Tensor) -> PackedSide:
    return PackedSide(*(None if one is None else tf.gather(one, index) for one in user))
