"""Learner: the dense weights of a model and their optimizer. It also returns the gradients of packed rows."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from streamlearn.apps import App
from streamlearn.errors import ExecutionFailed, UsageError
from streamlearn.features.combination import CURVE_SHAPE
from streamlearn.models import Model, PackedSide
from streamlearn.models.graph_trace import weight_notes
from streamlearn.models.label_outputs import LabelOutputs
from streamlearn.models.model_errors import wrap_errors
from streamlearn.models.tf_calls import Place, TracedFunction
from streamlearn.models.tower import learning
from streamlearn.niceness import BEHIND_LANES, give_way
from streamlearn.settings.trainer import TrainerSettings
from streamlearn.table.users_ladder import UsersLadder
from streamlearn.trainer.device import device_of
from streamlearn.trainer.loss import loss_of
from streamlearn.trainer.workers.dense_update import DenseUpdate

__all__ = [
    "BETAS", "EPSILONS", "GRADIENT_MAX", "Learned", "Learner", "Packed", "SliceGradients", "adam_rate", "are_bounded",
]  # fmt: skip

Float32s = npt.NDArray[np.float32]

BETAS = (0.9, 0.999)
"""Adam's decays."""
EPSILONS = (1e-8, 1e-10)
"""Added to a root by Adam and Adagrad."""
_INITIAL_ACCUMULATOR = 0.1
# The bound of a row gradient: a larger one counts as a blow-up. Sums of squares stay finite, and shards accept it.
GRADIENT_MAX = 1e12
# The bound of a slice's gradient for a weight: the squares of a sum of slices stay finite.
_SLICE_GRADIENT_MAX = 1e14
# 2³² by the golden ratio: multiples of it, modulo 2³², are spread evenly.
_APART = 0x9E3779B1
# The number of arrays of the weights' size that each optimizer keeps.
_SLOTS = {"adam": 2, "adagrad": 1, "sgd": 0}
# Of the arrays of a step, those of users come first, then those of items.
_USER_ARRAYS, _SIDES = 2, 4
_SMALL_ROWS_MAX = 64


@dataclass(frozen=True, eq=False)
class Packed:
    """A step as model inputs, padded with zero rows to N items and U users; `rows` is the number of real rows."""

    user_flat: Float32s  # float32[U, width]
    user_sequence: Float32s  # float32[U, length, width]
    item_flat: Float32s  # float32[N, width]
    item_sequence: Float32s  # float32[N, length, width]
    user_index: npt.NDArray[np.int32]  # int32[N]
    targets: Float32s  # float32[N, labels, 4], see `TARGETS`
    rows: int

    @property
    def sides(self) -> tuple[Float32s, ...]:
        """The inputs that have gradients."""
        return (self.user_flat, self.user_sequence, self.item_flat, self.item_sequence)


@dataclass(frozen=True, eq=False)
class SliceGradients:
    """The gradients of a slice of a step."""

    logits: Float32s  # as in `Learned`
    loss: float
    of_weights: Float32s  # float32[weights]: the gradient of the summed loss for all weights
    of_rows: tuple[Float32s, ...]  # the gradients for `Packed.sides`, in their order
    is_finite: bool


@dataclass(frozen=True, eq=False)
class Learned:
    """The result of a step."""

    # float32[N, labels], from before the step and before curves; of a label that is a number, the number
    logits: Float32s
    loss: float  # the sum over the step's rows
    gradients: tuple[Float32s, ...]  # the gradients of the summed loss for `Packed.sides`, in their order
    is_finite: bool  # whether loss and gradients are finite; if not, the step changed nothing


class Learner:
    """The dense weights of a model, which learn step by step.

    All weights are one vector, so that an update is one operation for every model. A step with a loss or gradients
    that are not finite changes nothing. Only `score` and `prepare` may run in a second thread. Steps do not read the
    `curves` of isotonic calibrations: these only change scores.

    Where XLA compiles each number of users, the numbers next to those of a step are compiled beside the steps after it,
    so that a step hardly ever waits for its compilation.
    """

    def __init__(self, app: App, model: Model, settings: TrainerSettings) -> None:
        self._model, self._settings, self._plan = model, settings, app.features.pack
        self._outputs, self._head = app.outputs, LabelOutputs(model, app.features, app.outputs)
        self._device = device_of(settings)
        with tf.device(self._device):
            with wrap_errors(model, "build"):
                first = model.build(app.features.of_model, [label.name for label in app.labels], settings.seed)
                notes = weight_notes(model, first)
            self.shapes = {note.name: tuple(int(size or 0) for size in note.shape) for note in notes}
            self.curves = {one.name: np.zeros(CURVE_SHAPE, np.float32) for one in self._head.curve_notes}
            whole = tf.concat([tf.reshape(tf.cast(weight, tf.float32), [-1]) for weight in first] or [tf.zeros(0)], 0)
            self._whole, self._initial = tf.Variable(whole, trainable=False), whole
            begin = _INITIAL_ACCUMULATOR if settings.optimizer == "adagrad" else 0.0
            slots = range(_SLOTS[settings.optimizer])
            self._initial_slot = tf.fill(tf.shape(whole), begin)
            self._slots = [tf.Variable(self._initial_slot, trainable=False) for _ in slots]
        self._added = frozenset(getattr(model, "added_weights", ()))
        self.steps = 0
        # XLA compiles each shape. Without it one graph serves any number of rows and users.
        self._is_compiled = settings.xla == "on" or (settings.xla == "auto" and "GPU" in self._device)
        self._learn = tf.function(self._step, jit_compile=self._is_compiled, autograph=False)
        self._learn_slice = tf.function(self._slice_step, jit_compile=self._is_compiled, autograph=False)
        self._place, self._traced = Place(self._device), dict[tuple[tuple[int | None, ...], ...], TracedFunction]()
        self._tracing, self._ladder, self._met_users = threading.Lock(), UsersLadder(settings.step_rows), set[int]()
        self._score_graph = tf.function(self._predictions, autograph=False, reduce_retracing=True)

    def reset(self) -> None:
        """Forget all that was learned."""
        self._whole.assign(self._initial)
        for slot in self._slots:
            slot.assign(self._initial_slot)
        self.curves = {name: np.zeros_like(curve) for name, curve in self.curves.items()}
        self.steps = 0

    def learn(self, packed: Packed) -> Learned:
        """Learn a step and return its logits, loss and gradients."""
        arrays = self.arrays(packed)
        inputs = self._place.tensors(arrays)
        try:
            is_small = len(packed.targets) <= _SMALL_ROWS_MAX
            traced = self._step_of(arrays, is_small=is_small)
            logits, loss, is_finite, *gradients = traced.run(self._place, inputs, is_small=is_small)
        except ExecutionFailed:
            # This fails as well, and names the line of the model.
            self._learn(*inputs)
            raise
        learned = Learned(
            logits=logits.numpy()[: packed.rows],
            loss=float(loss),
            gradients=tuple(gradient.numpy() for gradient in gradients),
            is_finite=bool(is_finite),
        )
        self.steps += learned.is_finite
        if self._is_compiled and len(packed.user_flat) not in self._met_users:
            self._prepare_beside(packed)
        return learned

    def gradients(self, packed: Packed, number: int, step_rows: int, weights: Float32s) -> SliceGradients:
        """Return the gradients of slice `number` of a step of `step_rows` rows, at some weights; it changes nothing."""
        *sides, index, targets, _, seed = self.arrays(packed)
        share = np.array([1.0 / max(step_rows, 1)], np.float32)
        # Dropout leaves out other outputs in each slice. Products are far apart, as layers count up from the seed.
        of_slice = np.array([0, number * _APART & 0xFFFFFFFF], np.uint32)
        arrays = (*sides, index, targets, weights, share, (seed.view(np.uint32) + of_slice).view(np.int32))
        traced = self._traced_for(self._learn_slice, arrays, is_small=False)
        logits, loss, is_finite, of_weights, *of_rows = traced.run(self._place, self._place.tensors(arrays))
        return SliceGradients(
            logits=logits.numpy()[: packed.rows], loss=float(loss), of_weights=of_weights.numpy(),
            of_rows=tuple(gradient.numpy() for gradient in of_rows), is_finite=bool(is_finite),
        )  # fmt: skip

    def dense_update(self) -> DenseUpdate:
        """Return the dense weights and their optimizer as they are now, to be updated outside; see `load_state`."""
        return DenseUpdate(self._settings, self.state(), betas=BETAS, epsilons=EPSILONS)

    def prepare(self, packed: Packed) -> None:
        """Compile the step for inputs of these shapes, and learn nothing."""
        arrays = self.arrays(packed)
        traced = self._step_of(arrays, is_small=len(packed.targets) <= _SMALL_ROWS_MAX)
        with tf.device(self._device):
            variables = [self._whole, *self._slots]
            others = {id(one.handle): tf.Variable(tf.zeros_like(one), trainable=False) for one in variables}
        # It runs on spare variables, so that those of the model stay as they are.
        captured = [others[id(one)].handle if id(one) in others else one for one in traced.captured]
        traced.run(self._place, self._place.tensors(arrays), captured=captured)

    def _prepare_beside(self, packed: Packed) -> None:
        """Compile the step for the numbers of users next to this one's, in a thread of its own."""
        users = len(packed.user_flat)
        sizes = [size for size in self._ladder.beside(users) if size not in self._met_users]
        self._met_users.add(users)

        def prepare() -> None:
            give_way(BEHIND_LANES)
            for size in sizes:
                flat, sequence = (np.zeros((size, *side.shape[1:]), np.float32) for side in packed.sides[:_USER_ARRAYS])
                with suppress(ExecutionFailed):  # a step of this shape says what is wrong
                    self.prepare(replace(packed, user_flat=flat, user_sequence=sequence))

        threading.Thread(target=prepare, name="streamlearn-trainer-compile").start()

    def arrays(self, packed: Packed) -> tuple[npt.NDArray[Any], ...]:
        """Return what the next step takes besides weights and slots: a packed step, two scalars and the seed."""
        seed = np.array([self.steps & 0x7FFFFFFF, self._settings.seed & 0xFFFFFF], np.int32)
        return (*packed.sides, packed.user_index, packed.targets, self.scalars(packed.rows), seed)

    def scalars(self, rows: int) -> Float32s:
        """Return the share of one of a step's rows, and the learning rate."""
        rate = self._settings.rate * self.rate_scale
        if self._settings.optimizer == "adam":
            rate = adam_rate(rate, self.steps + 1)
        return np.array([1.0 / max(rows, 1), rate], np.float32)

    def lowered(self, packed: Packed, stage: str) -> tuple[bytes, list[str]]:
        """Return the step for inputs of these shapes as XLA compiles it, and the types of its operations before.

        Its parameters are `arrays` without the empty ones, then the weights and the optimizer's slots.
        """
        arrays = self.arrays(packed)
        traced = self._step_of(arrays, is_small=False)
        return traced.lowered(self._place, self._place.tensors(arrays), stage), traced.operations()

    def _step_of(self, arrays: Sequence[npt.NDArray[Any]], *, is_small: bool) -> TracedFunction:
        return self._traced_for(self._learn, arrays, is_small=is_small)

    def _traced_for(self, function: Any, arrays: Sequence[npt.NDArray[Any]], *, is_small: bool) -> TracedFunction:
        """Return a function for arrays of these shapes, traced at first."""
        # Known shapes need no operations that find them out. Each number of users is traced if XLA compiles it anyway,
        # or if steps are so small that there are few.
        is_any = not (self._is_compiled or is_small)
        shapes = tuple(
            (None, *array.shape[1:]) if is_any and at < _USER_ARRAYS else array.shape for at, array in enumerate(arrays)
        )
        # Functions differ in the number of their arrays, or in the shape of the last ones.
        if (known := self._traced.get(shapes)) is not None:
            return known
        with self._tracing:
            if shapes not in self._traced:
                specs = [tf.TensorSpec(shape, array.dtype) for shape, array in zip(shapes, arrays, strict=True)]
                with tf.device(self._device):
                    concrete = function.get_concrete_function(*specs)
                self._traced[shapes] = TracedFunction(concrete)
            return self._traced[shapes]

    @property
    def rate_scale(self) -> float:
        """The factor of all learning rates at the next step, from warm-up and decay."""
        settings, steps = self._settings, self.steps
        warm = min(1.0, (steps + 1) / settings.warmup_steps) if settings.warmup_steps else 1.0
        return warm * (0.5 ** (steps / settings.decay_steps) if settings.decay_steps else 1.0)

    def score(self, packed: Packed, weights: Float32s | None = None) -> Float32s:
        """Return the predictions of packed inputs without learning; targets are ignored.

        `weights` holds all dense weights as one vector, see `end_to_end`; the default is the current ones.
        """
        with tf.device(self._device):
            if weights is None and self.curves:
                weights = self.end_to_end(self.dense())
            whole = self._whole.read_value() if weights is None else tf.convert_to_tensor(weights)
            sides = tuple(map(tf.convert_to_tensor, packed.sides))
            logits = self._score_graph(whole, sides, tf.convert_to_tensor(packed.user_index))
        result: Float32s = logits.numpy()[: packed.rows]
        return result

    def weights(self) -> Float32s:
        """Return a copy of all dense weights as one vector."""
        weights: Float32s = self._whole.numpy()
        return weights

    def dense(self) -> dict[str, Float32s]:
        """Return a copy of the weights by name, in the order in which the graphs take them: curves come last."""
        return self.named(self.weights()) | self.curves

    def end_to_end(self, dense: Mapping[str, Float32s]) -> Float32s:
        """Join weights by name into the vector that `score` takes; those of another model raise a UsageError.

        Weights that an earlier release of a ready-made model did not have may be missing: they are zero.
        """
        dense = self.completed(dense)
        shapes = {name: weight.shape for name, weight in dense.items()}
        own = self.shapes | {name: curve.shape for name, curve in self.curves.items()}
        if shapes != own:
            name = min(name for name in shapes.keys() | own.keys() if shapes.get(name) != own.get(name))
            message = f"weight {name!r} has shape {shapes.get(name)}, but the model's has {own.get(name)}"
            help = (
                "a model's shapes never change: give the application a new name "
                '(see "Change an application" in the documentation)'
            )
            raise UsageError(message, help=help)
        return np.concatenate([np.zeros(0, np.float32), *(dense[name].reshape(-1) for name in own)])

    def completed(self, dense: Mapping[str, Float32s]) -> dict[str, Float32s]:
        """Return weights by name, with zeros for those that an earlier release of a ready-made model did not have."""
        return {**dense, **{name: np.zeros(self.shapes[name], np.float32) for name in self._added - dense.keys()}}

    def completed_slot(self, slot: npt.NDArray[Any], dense: Mapping[str, Float32s]) -> npt.NDArray[Any]:
        """Return the optimizer's numbers for `dense`, and its initial numbers for the weights that `completed` adds."""
        whole, lacking = self.named(self._initial_slot.numpy()), self._added - dense.keys()
        kept = {name: number for name, number in whole.items() if name not in lacking}
        if not lacking or len(slot) != sum(number.size for number in kept.values()):
            return slot
        ends = np.cumsum([number.size for number in kept.values()])
        learned = dict(zip(kept, np.split(slot, ends)[:-1], strict=True))
        return np.concatenate([learned.get(name, number.reshape(-1)) for name, number in whole.items()])

    def optimizer_state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return a copy of the optimizer's state."""
        slots = {f"slot{number}": slot.numpy().copy() for number, slot in enumerate(self._slots)}
        return {"steps": np.array([self.steps], np.int64), **slots}

    def state(self) -> list[Float32s]:
        """Return copies of all weights as one vector and of the optimizer's slots; see `load_state`."""
        return [self.weights(), *(slot.numpy() for slot in self._slots)]

    def load_state(self, state: Sequence[Float32s], steps: int) -> None:
        """Continue from what the learner of another process returned as its state, after as many steps."""
        variables = [self._whole, *self._slots]
        if [len(vector) for vector in state] != [int(variable.shape[0]) for variable in variables]:
            message = f"the state of another process has {len(state)} vectors, which do not fit this model"
            raise UsageError(message, help="give all processes of a job the same application and settings")
        for variable, vector in zip(variables, state, strict=True):
            variable.assign(vector)
        self.steps = steps

    def load(self, dense: Mapping[str, Float32s], state: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Continue from saved weights and optimizer state; those of another model or optimizer raise a UsageError."""
        whole = self.end_to_end(dense)
        slots = [state[name] for name in sorted(state) if name.startswith("slot")]
        if len(slots) != len(self._slots):
            message = f"the saved state has {len(slots)} optimizer slots, but trainer.optimizer has {len(self._slots)}"
            raise UsageError(message, help="set trainer.optimizer to the one that the versions were learned with")
        self._whole.assign(whole[: self._whole.shape[0]])
        self.curves = {name: np.array(dense[name]) for name in self.curves}
        for variable, slot in zip(self._slots, slots, strict=True):
            variable.assign(self.completed_slot(slot, dense))
        self.steps = int(state["steps"][0]) if "steps" in state else 0

    def named(self, whole: npt.NDArray[np.generic]) -> dict[str, Float32s]:
        """Split a vector of all weights, or of as many numbers of the optimizer, into weights by name."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes.values()], dtype=np.int64)
        parts = zip(self.shapes.items(), np.split(whole, ends)[:-1], strict=True)
        return {name: part.reshape(shape) for (name, shape), part in parts}

    def _predictions(self, whole: Any, sides: tuple[Any, ...], user_index: Any) -> Any:
        curves = self._head.curve_notes
        if not curves:
            return self._head.predictions(*self._said(whole, sides, user_index))
        sizes = [self._whole.shape[0], *(math.prod(CURVE_SHAPE) for _ in curves)]
        learned, *flat = tf.split(whole, sizes)
        of_curves = [tf.reshape(curve, CURVE_SHAPE) for curve in flat]
        return self._head.predictions(*self._said(learned, sides, user_index), of_curves)

    def _said(self, whole: Any, sides: tuple[Any, ...], user_index: Any) -> tuple[Any, list[Any]]:
        """Return what the model itself says of each label, and the numbers of calibrations; see `LabelOutputs`."""
        weights, (user_flat, user_sequence, item_flat, item_sequence) = self._split(whole), sides
        plan = self._plan
        user, item = _side(plan.user, user_flat, user_sequence), _side(plan.item, item_flat, item_sequence)
        logits, numbers = self._head.said(weights, user, user_index, item)
        return tf.cast(logits, tf.float32), numbers

    def _step(self, *arrays: Any) -> tuple[Any, ...]:
        *inputs, scalars, seed = arrays
        whole = self._whole.read_value()
        logits, loss, total, of_weights, of_sides = self._backward(inputs, whole, seed)
        share, rate = tf.unstack(scalars)
        gradient = of_weights * share
        if self._settings.l2:
            gradient += self._settings.l2 * whole
        half_square = tf.nn.l2_loss(gradient)
        is_finite = are_bounded(total + half_square, [(side, GRADIENT_MAX) for side in of_sides])
        if self._settings.clip_norm:
            length = tf.sqrt(2.0 * half_square)
            gradient *= tf.minimum(1.0, self._settings.clip_norm / tf.maximum(length, 1e-30))
        self._update(gradient, rate, is_finite)
        return logits, loss, is_finite, *self._of_rows(of_sides, share)

    def _slice_step(self, *arrays: Any) -> tuple[Any, ...]:
        *inputs, whole, share, seed = arrays
        logits, loss, total, of_weights, of_sides = self._backward(inputs, whole, seed)
        bounds = [(gradient, GRADIENT_MAX) for gradient in of_sides] + [(of_weights, _SLICE_GRADIENT_MAX)]
        is_finite = are_bounded(total, bounds)
        return logits, loss, is_finite, of_weights, *self._of_rows(of_sides, share[0])

    def _backward(self, inputs: Sequence[Any], whole: Any, seed: Any) -> tuple[Any, Any, Any, Any, list[Any]]:
        """Return logits, loss, the sum of all losses, and its gradients for the weights and for the sides."""
        *sides, user_index, targets = inputs
        with tf.GradientTape() as tape:
            tape.watch([whole, *sides])
            with learning(seed) as drops:
                said, numbers = self._said(whole, tuple(sides), user_index)
            loss = loss_of(said, targets, self._outputs)
            total = loss
            if self._head.has_calibrations:  # which learn from what the model says, and the model nothing from them
                total += loss_of(self._head.calibrated(tf.stop_gradient(said), numbers), targets, self._outputs)
        if drops.layers:  # predictions are those of a node, which leaves out nothing
            said, numbers = self._said(whole, tuple(sides), user_index)
        logits = self._head.predictions(said, numbers)
        zero = tf.UnconnectedGradients.ZERO
        # TensorFlow returns indexed slices as the gradient of a gathered tensor.
        all_gradients = tape.gradient(total, [whole, *sides], unconnected_gradients=zero)
        of_weights, *of_sides = map(tf.convert_to_tensor, all_gradients)
        return logits, loss, total, of_weights, of_sides

    def _of_rows(self, of_sides: Sequence[Any], share: Any) -> Sequence[Any]:
        return [gradient * share for gradient in of_sides] if self._settings.row_gradients == "mean" else of_sides

    def _update(self, gradient: Any, rate: Any, is_finite: Any) -> None:
        """Update weights and optimizer, in one operation; nothing changes if the step is not finite."""
        gradient = tf.where(is_finite, gradient, 0.0)
        variables, ops = [variable.handle for variable in (self._whole, *self._slots)], tf.raw_ops
        if self._settings.optimizer == "adam":
            # A rate of 0 and means that keep all of themselves change nothing. The rate is corrected for the bias.
            rate, betas = tf.where(is_finite, rate, 0.0), [tf.where(is_finite, beta, 1.0) for beta in BETAS]
            ops.ResourceApplyAdam(
                var=variables[0], m=variables[1], v=variables[2], beta1_power=0.0, beta2_power=0.0, lr=rate,
                beta1=betas[0], beta2=betas[1], epsilon=EPSILONS[0], grad=gradient, use_locking=True,
            )  # fmt: skip
        elif self._settings.optimizer == "adagrad":
            ops.ResourceApplyAdagradV2(
                var=variables[0], accum=variables[1], lr=rate, epsilon=EPSILONS[1], grad=gradient,
                use_locking=True,
            )  # fmt: skip
        else:
            ops.ResourceApplyGradientDescent(var=variables[0], alpha=rate, delta=gradient, use_locking=True)

    def _split(self, whole: Any) -> list[Any]:
        shapes = self.shapes.values()
        parts = tf.split(whole, [math.prod(shape) for shape in shapes]) if shapes else []
        return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def adam_rate(rate: float, number: int) -> float:
    """Return the rate of Adam's step of a number, with its correction of the bias, in double precision."""
    return rate * (math.sqrt(1 - BETAS[1] ** number) / (1 - BETAS[0] ** number))


def are_bounded(number: Any, bounds: Sequence[tuple[Any, float]]) -> Any:
    """Return whether a number is finite and each tensor within its bound."""
    return tf.reduce_all([tf.math.is_finite(number), *(tf.reduce_all(tf.abs(one) <= most) for one, most in bounds)])


def _side(side: Any, flat: Any, sequence: Any) -> PackedSide:
    return PackedSide(flat if side.flat_width else None, sequence if side.sequence_length else None)
