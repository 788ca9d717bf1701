"""A Keras model as a model: its variables become weights, which the graphs take as arguments."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import keras
import tensorflow as tf

from streamlearn.errors import SpecError, UsageError
from streamlearn.features import FeatureSpec, PackSide
from streamlearn.models.protocol import PackedSide, Tensor

__all__ = ["KerasModel"]

_USER, _SCORE = "user", "score"


class KerasModel(ABC):
    """A model of one or two Keras networks; inherit from it and say which in `networks`.

    Networks are called as they are when they serve, without dropout. What would change from step to step beside the
    weights (moving means, states of dropout) is refused, and so are losses of layers, which nobody would add. Variables
    that are not trainable are constants of the graphs.
    """

    any_length: ClassVar[bool] = False

    def __init__(self) -> None:
        self._networks: dict[str, _Network] = {}
        self._variables: list[Any] = []
        self._names: tuple[str, ...] = ()

    @abstractmethod
    def networks(self, features: FeatureSpec, labels: Sequence[str]) -> tuple[keras.Model | None, keras.Model]:
        """The network of a user, or None, and the network that scores; both new at each call.

        The first is called once a request. It takes what the user side has, `user_flat` (rows, flat_width) and
        `user_sequence` (rows, length, sequence_width), and gives one tensor or two: `user_flat` of two dimensions,
        `user_sequence` of three. The second is called once a candidate. It takes what the first gave, each candidate
        its user's, and `item_flat`, and gives (rows, labels). Without the first it takes what the user side has.

        Both take their inputs in that order, or, where they are declared as a dict, by these names.

        Args:
            features: What is packed, and where it stands (`features.pack`).
            labels: What is predicted.
        """

    @property
    def weight_names(self) -> tuple[str, ...]:
        """The names of the weights: network, number and Keras's own name."""
        self._known()
        return self._names

    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> list[Tensor]:
        """The initial dense weights, in the order both graphs take them; the same for the same seed.

        Raises:
            SpecError: The networks do not take what is packed, do not give scores, or have state that changes.
            UsageError: Keras runs on something else than TensorFlow.
        """
        if keras.backend.backend() != "tensorflow":
            message = f"Keras runs on {keras.backend.backend()}"
            raise UsageError(message, help="set KERAS_BACKEND=tensorflow")
        inputs = _zeros("user", features.pack.user)
        with _seeded(seed):
            user, score = self.networks(features, labels)
            networks = {}
            if user is not None and inputs:
                networks[_USER] = _Network(_USER, user)
                inputs = _sides(networks[_USER].first_call(inputs))
            networks[_SCORE] = _Network(_SCORE, score)
            scores = networks[_SCORE].first_call(inputs | _zeros("item", features.pack.item))
        _check_scores(scores, len(labels))
        self._networks, self._variables, names = networks, [], []
        for name, network in networks.items():
            new = [one for one in network.model.trainable_variables if not _among(one, self._variables)]
            names += [f"{name}_{at}_{one.name}" for at, one in enumerate(new)]
            self._variables += new
        self._names = tuple(names)
        return [tf.constant(one.value.numpy(), tf.float32) for one in self._variables]

    def user(self, weights: Sequence[Tensor], inputs: PackedSide) -> PackedSide:
        """Once a request: what the first network gives, or the inputs themselves where there is none."""
        self._known()
        if _USER not in self._networks:
            return inputs
        found = _sides(self._networks[_USER].outputs(self._variables, weights, _named("user", inputs)))
        return PackedSide(found.get("user_flat"), found.get("user_sequence"))

    def score(self, weights: Sequence[Tensor], user: PackedSide, user_index: Tensor, inputs: PackedSide) -> Tensor:
        """Once a candidate: (N, labels) logits."""
        self._known()
        rows = {name: tf.gather(one, user_index) for name, one in _named("user", user).items()}
        scores = self._networks[_SCORE].outputs(self._variables, weights, rows | _named("item", inputs))
        return tf.cast(scores, tf.float32)

    def _known(self) -> None:
        if not self._networks:
            message = f"{type(self).__name__} has no networks yet"
            raise UsageError(message, help="call build first: it takes the features and returns the weights")


class _Network:
    """A Keras model as a function of its variables."""

    def __init__(self, name: str, model: keras.Model) -> None:
        self.name, self.model = name, model
        self._frozen: list[Any] = []

    def first_call(self, inputs: Mapping[str, Tensor]) -> Any:
        """Outputs for zeros, which give a network its variables; it is looked at then."""
        try:
            outputs = self.model(self._arranged(inputs), training=False)
        except SpecError:
            raise
        except Exception as error:
            shapes = ", ".join(f"{name} {tuple(one.shape)}" for name, one in inputs.items())
            message = f"the {self.name} network does not take {shapes}: {type(error).__name__}: {error}"
            raise SpecError(message, help="declare the inputs in the order of features.pack") from error
        self._frozen = [one.value.numpy() for one in self.model.non_trainable_variables]
        if self.model.losses:
            message = f"layers of the {self.name} network add {len(self.model.losses)} losses"
            raise SpecError(message, help="remove regularizers and add_loss: training ignores the losses of layers")
        changing = self._changing(inputs)
        if changing:
            message = f"the {self.name} network has state that changes during training: {', '.join(changing)}"
            hint = "remove layers such as BatchNormalization and Dropout; LayerNormalization has no such state"
            raise SpecError(message, help=hint)
        return outputs

    def outputs(self, variables: Sequence[Any], weights: Sequence[Tensor], inputs: Mapping[str, Tensor]) -> Any:
        """Outputs with the weights in the place of the variables."""
        own = [
            (variable, weight)
            for variable, weight in zip(variables, weights, strict=True)
            if _among(variable, self.model.trainable_variables)
        ]
        with keras.StatelessScope(state_mapping=own + self._constants()):
            return self.model(self._arranged(inputs), training=False)

    def _constants(self) -> list[tuple[Any, Tensor]]:
        return [
            (variable, tf.constant(value))
            for variable, value in zip(self.model.non_trainable_variables, self._frozen, strict=True)
        ]

    def _changing(self, inputs: Mapping[str, Tensor]) -> list[str]:
        before = self._constants()
        own = [(one, tf.constant(one.value.numpy())) for one in self.model.trainable_variables]
        with keras.StatelessScope(state_mapping=own + before) as scope:
            self.model(self._arranged(inputs), training=True)
        return [one.path for one, value in before if scope.get_current_value(one) is not value]

    def _arranged(self, inputs: Mapping[str, Tensor]) -> Any:
        """Inputs as the network was declared to take them."""
        declared = getattr(self.model, "input", None) if isinstance(self.model, keras.Model) else None
        if isinstance(declared, dict):
            missing = sorted(set(declared) - set(inputs))
            if missing:
                message = f"the {self.name} network has an input {missing[0]!r} that the features lack"
                raise SpecError(message, help=f"the inputs are {', '.join(inputs)}")
            return {name: inputs[name] for name in declared}
        given = list(inputs.values())
        return given if len(given) > 1 or isinstance(declared, list | tuple) else given[0]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    # Keras draws the seeds of initialisers that were given none from Python's own generator.
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def _zeros(side: str, pack: PackSide) -> dict[str, Tensor]:
    found = {}
    if pack.flat_width:
        found[f"{side}_flat"] = tf.zeros([1, pack.flat_width])
    if pack.sequence_length:
        found[f"{side}_sequence"] = tf.zeros([1, pack.sequence_length, pack.sequence_width])
    return found


def _named(side: str, inputs: PackedSide) -> dict[str, Tensor]:
    return {f"{side}_{name}": one for name, one in zip(inputs._fields, inputs, strict=True) if one is not None}


def _sides(outputs: Any) -> dict[str, Tensor]:
    """What a user network gave, by name."""
    found = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    if isinstance(outputs, dict):
        found = list(outputs.values())
    ranks = [len(one.shape) for one in found]
    if ranks not in ([2], [3], [2, 3]):
        shapes = ", ".join(str(tuple(one.shape)) for one in found)
        message = f"the user network gives {shapes or 'nothing'}"
        raise SpecError(message, help="return (rows, width), (rows, length, width), or both in this order")
    names = {2: "user_flat", 3: "user_sequence"}
    return {names[rank]: tf.cast(one, tf.float32) for rank, one in zip(ranks, found, strict=True)}


def _check_scores(scores: Any, labels: int) -> None:
    shape = tuple(getattr(scores, "shape", ()))
    if shape != (1, labels):
        message = f"the score network gives {shape or type(scores).__name__} for one candidate and {labels} labels"
        raise SpecError(message, help=f"end it with a layer of {labels} outputs, as logits without a sigmoid")


def _among(variable: Any, variables: Sequence[Any]) -> bool:
    return any(variable is other for other in variables)
