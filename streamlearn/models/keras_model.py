"""KerasModel: a model of Keras networks, whose variables become weights that the graphs take as arguments."""

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
    """A model of one or two Keras networks; subclass it and return them from `networks`.

    Networks are always called as in serving, without dropout. State that changes beside the weights (moving means,
    states of dropout) is refused, and so are losses of layers, which training would ignore. Variables that are not
    trainable become constants of the graphs.
    """

    any_length: ClassVar[bool] = False

    def __init__(self) -> None:
        self._networks: dict[str, _Network] = {}
        self._variables: list[Any] = []
        self._names: tuple[str, ...] = ()

    @abstractmethod
    def networks(self, features: FeatureSpec, labels: Sequence[str]) -> tuple[keras.Model | None, keras.Model]:
        """Return the user network, or None, and the score network; both new at each call.

        The user network runs once a request. It takes the user side's inputs, `user_flat` (rows, flat_width) and
        `user_sequence` (rows, length, sequence_width), and returns one or two tensors: `user_flat` of two dimensions,
        `user_sequence` of three. The score network runs once a candidate. It takes these outputs for the candidate's
        user, and `item_flat`, and returns (rows, labels). Without a user network it takes the user side's inputs.

        Both take their inputs in that order, or by these names if the inputs are declared as a dict. `features.pack`
        describes the inputs.
        """

    @property
    def weight_names(self) -> tuple[str, ...]:
        """The names of the weights: network, number and Keras's own name."""
        self._known()
        return self._names

    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> list[Tensor]:
        """Return the initial dense weights in the order of the graphs' arguments; the same for the same seed.

        Raises:
            SpecError: The networks do not take the packed inputs, do not return scores, or have state that changes.
            UsageError: Keras does not run on TensorFlow.
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
            new = [variable for variable in network.model.trainable_variables if not _is_in(variable, self._variables)]
            names += [f"{name}_{at}_{variable.name}" for at, variable in enumerate(new)]
            self._variables += new
        self._names = tuple(names)
        return [tf.constant(variable.value.numpy(), tf.float32) for variable in self._variables]

    def user(self, weights: Sequence[Tensor], inputs: PackedSide) -> PackedSide:
        """Return the user network's outputs, or the inputs without such a network; called once a request."""
        self._known()
        if _USER not in self._networks:
            return inputs
        outputs = _sides(self._networks[_USER].outputs(self._variables, weights, _named("user", inputs)))
        return PackedSide(outputs.get("user_flat"), outputs.get("user_sequence"))

    def score(self, weights: Sequence[Tensor], user: PackedSide, user_index: Tensor, inputs: PackedSide) -> Tensor:
        """Return (N, labels) logits; called once a candidate."""
        self._known()
        rows = {name: tf.gather(block, user_index) for name, block in _named("user", user).items()}
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
        """Return the outputs for zeros, which creates the network's variables, and check the network."""
        try:
            outputs = self.model(self._arranged(inputs), training=False)
        except SpecError:
            raise
        except Exception as error:
            shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in inputs.items())
            message = f"the {self.name} network does not take {shapes}: {type(error).__name__}: {error}"
            raise SpecError(message, help="declare the inputs in the order of features.pack") from error
        self._frozen = [variable.value.numpy() for variable in self.model.non_trainable_variables]
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
        """Return the outputs with the weights in place of the variables."""
        own = [
            (variable, weight)
            for variable, weight in zip(variables, weights, strict=True)
            if _is_in(variable, self.model.trainable_variables)
        ]
        with keras.StatelessScope(state_mapping=own + self._constants()):
            return self.model(self._arranged(inputs), training=False)

    def _constants(self) -> list[tuple[Any, Tensor]]:
        return [
            (variable, tf.constant(value))
            for variable, value in zip(self.model.non_trainable_variables, self._frozen, strict=True)
        ]

    def _changing(self, inputs: Mapping[str, Tensor]) -> list[str]:
        """Return the variables that a training call changes."""
        before = self._constants()
        own = [(variable, tf.constant(variable.value.numpy())) for variable in self.model.trainable_variables]
        with keras.StatelessScope(state_mapping=own + before) as scope:
            self.model(self._arranged(inputs), training=True)
        return [variable.path for variable, value in before if scope.get_current_value(variable) is not value]

    def _arranged(self, inputs: Mapping[str, Tensor]) -> Any:
        """Return the inputs in the form that the network declares."""
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
    # Keras draws the seeds of initializers without a seed from Python's own generator.
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def _zeros(side: str, pack: PackSide) -> dict[str, Tensor]:
    inputs = {}
    if pack.flat_width:
        inputs[f"{side}_flat"] = tf.zeros([1, pack.flat_width])
    if pack.sequence_length:
        inputs[f"{side}_sequence"] = tf.zeros([1, pack.sequence_length, pack.sequence_width])
    return inputs


def _named(side: str, inputs: PackedSide) -> dict[str, Tensor]:
    return {f"{side}_{name}": block for name, block in zip(inputs._fields, inputs, strict=True) if block is not None}


def _sides(outputs: Any) -> dict[str, Tensor]:
    """Return a user network's outputs by name."""
    blocks = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    if isinstance(outputs, dict):
        blocks = list(outputs.values())
    ranks = [len(block.shape) for block in blocks]
    if ranks not in ([2], [3], [2, 3]):
        shapes = ", ".join(str(tuple(block.shape)) for block in blocks)
        message = f"the user network returns {shapes or 'nothing'}"
        raise SpecError(message, help="return (rows, width), (rows, length, width), or both in this order")
    names = {2: "user_flat", 3: "user_sequence"}
    return {names[rank]: tf.cast(block, tf.float32) for rank, block in zip(ranks, blocks, strict=True)}


def _check_scores(scores: Any, labels: int) -> None:
    shape = tuple(getattr(scores, "shape", ()))
    if shape != (1, labels):
        message = f"the score network returns {shape or type(scores).__name__} for one candidate and {labels} labels"
        raise SpecError(message, help=f"end it with a layer of {labels} outputs, as logits without a sigmoid")


def _is_in(variable: Any, variables: Sequence[Any]) -> bool:
    return any(variable is other for other in variables)
