"""Learner: a model's dense weights, how they learn, and what packed inputs are to learn. It knows no table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from streamlearn.apps import App
from streamlearn.errors import UsageError
from streamlearn.models import Model, PackedSide
from streamlearn.models.graph_trace import weight_notes
from streamlearn.models.model_errors import told_of
from streamlearn.settings.trainer import TrainerSettings
from streamlearn.trainer.device import device_of, is_compiled
from streamlearn.trainer.loss import loss_of

__all__ = ["Learned", "Learner", "Packed"]

Float32s = npt.NDArray[np.float32]

_BETA1, _BETA2, _ADAM_EPSILON = 0.9, 0.999, 1e-8
_INITIAL_ACCUMULATOR, _ADAGRAD_EPSILON = 0.1, 1e-10
# Of rows: gradients beyond it are a blow-up. Sums of a step's squares stay numbers, and shards take them.
_GRADIENT_MAX = 1e12
# How many arrays of the weights' size each optimizer keeps beside them.
_SLOTS = {"adam": 2, "adagrad": 1, "sgd": 0}


@dataclass(frozen=True, eq=False)
class Packed:
    """A step as the model takes it; rows beyond the step's are of zeros.

    Attributes:
        user_flat: float32[U, width]
        user_sequence: float32[U, length, width]
        item_flat: float32[N, width]
        item_sequence: float32[N, length, width]
        user_index: int32[N]
        targets: float32[N, labels, 4], see `TARGETS`.
        rows: How many rows the step has.
    """

    user_flat: Float32s
    user_sequence: Float32s
    item_flat: Float32s
    item_sequence: Float32s
    user_index: npt.NDArray[np.int32]
    targets: Float32s
    rows: int

    @property
    def sides(self) -> tuple[Float32s, ...]:
        """The inputs that have gradients."""
        return (self.user_flat, self.user_sequence, self.item_flat, self.item_sequence)


@dataclass(frozen=True, eq=False)
class Learned:
    """What a step gave.

    Attributes:
        logits: float32[N, labels], before anything of the step was learned.
        loss: The sum over its rows.
        gradients: Of `Packed.sides`, in their order; of the sum of losses.
        is_finite: Whether all of it are numbers; where not, nothing was learned.
    """

    logits: Float32s
    loss: float
    gradients: tuple[Float32s, ...]
    is_finite: bool


class Learner:
    """Dense weights that learn step by step.

    All weights are one vector, so that an optimizer's update is one operation whatever the model is. A step whose loss
    or gradients are no numbers changes nothing.

    Not for two threads at once, but for `score`.

    Args:
        app: Whose labels and features.
        model: Its model.
        settings: How.
    """

    def __init__(self, app: App, model: Model, settings: TrainerSettings) -> None:
        self._model, self._settings, self._plan = model, settings, app.features.pack
        self._device = device_of(settings)
        with tf.device(self._device):
            with told_of(model, "build"):
                first = model.build(app.features, [label.name for label in app.labels], settings.seed)
                notes = weight_notes(model, first)
            self.shapes = {one.name: tuple(int(size or 0) for size in one.shape) for one in notes}
            whole = tf.concat([tf.reshape(tf.cast(one, tf.float32), [-1]) for one in first] or [tf.zeros(0)], 0)
            self._whole = tf.Variable(whole, trainable=False)
            begin = _INITIAL_ACCUMULATOR if settings.optimizer == "adagrad" else 0.0
            slots = range(_SLOTS[settings.optimizer])
            self._slots = [tf.Variable(tf.fill(tf.shape(whole), begin), trainable=False) for _ in slots]
        self.steps = 0
        compiled = is_compiled(settings, self._device)
        # XLA compiles each shape; without it one graph serves all, and is not traced anew where requests are more.
        self._learn = tf.function(self._step, jit_compile=compiled, autograph=False, reduce_retracing=not compiled)
        self._answer = tf.function(self._scored, autograph=False, reduce_retracing=True)

    def learn(self, packed: Packed) -> Learned:
        """Learn a step."""
        rate = self._settings.rate * self.rate_scale
        # Adam's means begin at zero: what they lack is made up for here, in double precision.
        if self._settings.optimizer == "adam":
            number = self.steps + 1
            rate *= math.sqrt(1 - _BETA2**number) / (1 - _BETA1**number)
        with tf.device(self._device):
            found = self._learn(
                tuple(map(tf.convert_to_tensor, packed.sides)),
                tf.convert_to_tensor(packed.user_index),
                tf.convert_to_tensor(packed.targets),
                tf.constant([1.0 / max(packed.rows, 1), rate], tf.float32),
            )
        logits, loss, is_finite, gradients = found
        done = Learned(
            logits=logits.numpy()[: packed.rows],
            loss=float(loss),
            gradients=tuple(one.numpy() for one in gradients),
            is_finite=bool(is_finite),
        )
        self.steps += done.is_finite
        return done

    @property
    def rate_scale(self) -> float:
        """What all rates are multiplied with at the next step."""
        settings, steps = self._settings, self.steps
        warm = min(1.0, (steps + 1) / settings.warmup_steps) if settings.warmup_steps else 1.0
        return warm * (0.5 ** (steps / settings.decay_steps) if settings.decay_steps else 1.0)

    def score(self, packed: Packed, weights: Float32s | None = None) -> Float32s:
        """The logits of packed inputs; nothing is learned.

        Args:
            packed: The inputs; targets are not looked at.
            weights: All dense weights end to end; those of now by default.
        """
        with tf.device(self._device):
            whole = self._whole.read_value() if weights is None else tf.convert_to_tensor(weights)
            sides = tuple(map(tf.convert_to_tensor, packed.sides))
            logits = self._answer(whole, sides, tf.convert_to_tensor(packed.user_index))
        found: Float32s = logits.numpy()[: packed.rows]
        return found

    def weights(self) -> Float32s:
        """A copy of all dense weights, end to end."""
        found: Float32s = self._whole.numpy().copy()
        return found

    def dense(self) -> dict[str, Float32s]:
        """A copy of the weights, by name in the order the graphs take them."""
        whole, found, at = self.weights(), {}, 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            found[name] = whole[at : at + size].reshape(shape)
            at += size
        return found

    def end_to_end(self, dense: Mapping[str, Float32s]) -> Float32s:
        """Weights by name as `score` takes them.

        Raises:
            UsageError: They are not this model's.
        """
        found = {name: one.shape for name, one in dense.items()}
        if found != self.shapes:
            odd = sorted(name for name in found.keys() | self.shapes.keys() if found.get(name) != self.shapes.get(name))
            message = f"weight {odd[0]!r} has shape {found.get(odd[0])}, but the model's has {self.shapes.get(odd[0])}"
            help = (
                "the shapes of a model never change: give the changed application a new name, or begin it with `--from`"
            )
            raise UsageError(message, help=help)
        return np.concatenate([np.zeros(0, np.float32), *(dense[name].reshape(-1) for name in self.shapes)])

    def optimizer_state(self) -> dict[str, npt.NDArray[np.generic]]:
        """A copy of what the optimizer keeps."""
        slots = {f"slot{number}": one.numpy().copy() for number, one in enumerate(self._slots)}
        return {"steps": np.array([self.steps], np.int64), **slots}

    def load(self, dense: Mapping[str, Float32s], state: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Go on from weights and state that were saved.

        Raises:
            UsageError: They are of another model, or another optimizer.
        """
        whole = self.end_to_end(dense)
        slots = [state[name] for name in sorted(state) if name.startswith("slot")]
        if len(slots) != len(self._slots):
            message = (
                f"the state belongs to an optimizer with {len(slots)} slots, trainer.optimizer has {len(self._slots)}"
            )
            raise UsageError(message, help="set trainer.optimizer to the one that the versions were learned with")
        self._whole.assign(whole)
        for variable, one in zip(self._slots, slots, strict=True):
            variable.assign(one)
        self.steps = int(state["steps"][0]) if "steps" in state else 0

    def begin_with(self, dense: Mapping[str, Float32s]) -> None:
        """Take weights over; those of another shape, and the optimizer's state, stay as they are."""
        whole, at = self.weights(), 0
        for name, shape in self.shapes.items():
            size, given = math.prod(shape), dense.get(name)
            if given is not None and given.shape == shape:
                whole[at : at + size] = given.reshape(-1)
            at += size
        self._whole.assign(whole)

    def _scored(self, whole: Any, sides: tuple[Any, ...], user_index: Any) -> Any:
        weights, (user_flat, user_sequence, item_flat, item_sequence) = self._split(whole), sides
        plan = self._plan
        with told_of(self._model, "user"):
            user = self._model.user(weights, _side(plan.user, user_flat, user_sequence))
        with told_of(self._model, "score"):
            logits = self._model.score(weights, user, user_index, _side(plan.item, item_flat, item_sequence))
        return tf.cast(logits, tf.float32)

    def _step(self, sides: tuple[Any, ...], user_index: Any, targets: Any, numbers: Any) -> tuple[Any, ...]:
        whole = self._whole.read_value()
        with tf.GradientTape() as tape:
            tape.watch([whole, *sides])
            logits = self._scored(whole, sides, user_index)
            loss = loss_of(logits, targets)
        zero = tf.UnconnectedGradients.ZERO
        # Of what was gathered from, TensorFlow gives indexed slices.
        of_whole, *of_sides = map(
            tf.convert_to_tensor, tape.gradient(loss, [whole, *sides], unconnected_gradients=zero)
        )
        share, rate = tf.unstack(numbers)
        gradient = of_whole * share + self._settings.l2 * whole
        length = tf.norm(gradient)
        bounded = [tf.reduce_all(tf.abs(one) <= _GRADIENT_MAX) for one in of_sides]
        is_finite = tf.reduce_all([tf.math.is_finite(loss + length), *bounded])
        if self._settings.clip_norm:
            gradient *= tf.minimum(1.0, self._settings.clip_norm / tf.maximum(length, 1e-30))
        self._update(whole, gradient, rate, is_finite)
        if self._settings.row_gradients == "mean":
            of_sides = [one * share for one in of_sides]
        return logits, loss, is_finite, tuple(of_sides)

    def _update(self, whole: Any, gradient: Any, rate: Any, is_finite: Any) -> None:
        slots = [one.read_value() for one in self._slots]
        if self._settings.optimizer == "adam":
            mean = slots[0] + (1 - _BETA1) * (gradient - slots[0])
            square = slots[1] + (1 - _BETA2) * (gradient * gradient - slots[1])
            after, kept = whole - rate * mean / (tf.sqrt(square) + _ADAM_EPSILON), [mean, square]
        elif self._settings.optimizer == "adagrad":
            total = slots[0] + gradient * gradient
            after, kept = whole - rate * gradient / (tf.sqrt(total) + _ADAGRAD_EPSILON), [total]
        else:
            after, kept = whole - rate * gradient, []
        self._whole.assign(tf.where(is_finite, after, whole))
        for variable, before, new in zip(self._slots, slots, kept, strict=True):
            variable.assign(tf.where(is_finite, new, before))

    def _split(self, whole: Any) -> list[Any]:
        shapes = self.shapes.values()
        parts = tf.split(whole, [math.prod(shape) for shape in shapes]) if shapes else []
        return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def _side(side: Any, flat: Any, sequence: Any) -> PackedSide:
    return PackedSide(flat if side.flat_width else None, sequence if side.sequence_length else None)
