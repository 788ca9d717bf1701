"""TowerLearner: the weights of both towers and their optimizer. It also returns the gradients of packed rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from msgspec import structs

from streamlearn.errors import SpecError, UsageError
from streamlearn.features import FeatureSpec
from streamlearn.models import PackedSide
from streamlearn.models.graph_trace import weight_notes
from streamlearn.models.model_errors import wrap_errors
from streamlearn.models.tf_calls import Place, TracedFunction
from streamlearn.samples import FeatureColumns
from streamlearn.settings.trainer import TrainerSettings
from streamlearn.trainer.device import device_of
from streamlearn.trainer.learner import BETAS, EPSILONS, GRADIENT_MAX, adam_rate, are_bounded
from streamlearn.trainer.towers.protocol import Towers
from streamlearn.trainer.workers.dense_update import DenseUpdate

__all__ = ["PackedTowers", "TowerLearner"]

Float32s = npt.NDArray[np.float32]
Int32s = npt.NDArray[np.int32]
Uint64s = npt.NDArray[np.uint64]
# Adam keeps two numbers for each weight.
_SLOTS = 2
_PADDING_LOG_CHANCE = np.float32(1e9)


@dataclass(frozen=True, eq=False)
class PackedTowers:
    """P positives of U users, among C items that compete for them. Zeros fill what is padded."""

    users: FeatureColumns  # U entries
    items: FeatureColumns  # C entries: the items of positives, then those that were drawn from the library
    requests: int  # U
    keys: Uint64s  # uint64[C]: the keys of items
    own: int  # how many items are those of positives
    drawn: float  # the chance of an item to be drawn
    event_time_ms: npt.NDArray[np.int64]  # int64[P]: when each positive was shown
    user_flat: Float32s  # float32[U, width]
    user_sequence: Float32s  # float32[U, length, width]
    item_flat: Float32s  # float32[C, width]
    user_index: Int32s  # int32[P]: the user of each positive
    item_index: Int32s  # int32[P]: its item
    weight: Float32s  # float32[P]


class TowerLearner:
    """The weights of both towers, which learn step by step by Adam at `rate`.

    A user's positive competes with the other items of its step: its loss is the cross entropy of a softmax over their
    logits, each less the logarithm of the chance that the item competes at all. So the logits estimate how likely an
    item is for a user, however often it is shown to others.
    """

    def __init__(self, features: FeatureSpec, towers: Towers, settings: TrainerSettings, rate: float) -> None:
        self._towers, self._plan, self.dim = towers, features.pack, features.slots[0].dim
        self._settings = structs.replace(settings, optimizer="adam", l2=0.0, clip_norm=0.0)
        self._rate, device = rate, device_of(settings)
        with tf.device(device):
            with wrap_errors(towers, "build"):
                first = towers.build(features, settings.seed)
                notes = weight_notes(towers, first)
            self.shapes = {note.name: tuple(int(size or 0) for size in note.shape) for note in notes}
            self._initial = np.concatenate([np.zeros(0, np.float32), *(np.ravel(weight.numpy()) for weight in first)])
        self.is_compiled = settings.xla == "on" or (settings.xla == "auto" and "GPU" in device)
        self._place, self._traced = Place(device), dict[tuple[tuple[int | None, ...], ...], TracedFunction]()
        self._learn = tf.function(self._step, jit_compile=self.is_compiled, autograph=False)
        self._vectors = {
            side: tf.function(getattr(self, f"_{side}"), autograph=False, reduce_retracing=True)
            for side in ("users", "items")
        }
        self._check_promise()
        self.reset()

    def _check_promise(self) -> None:
        """Refuse towers that promise vectors of items without weights, and use weights for them."""
        if self.item_has_weights:
            return
        with tf.device(self._place.name), tf.GradientTape() as tape:
            whole = tf.constant(self._initial)
            tape.watch(whole)
            vectors = self._items(tf.zeros((1, self._plan.item.flat_width)), whole)
        if tape.gradient(vectors, whole) is not None:
            message = f"item of {type(self._towers).__name__} uses weights, although item_has_weights is False"
            raise SpecError(
                message, help="remove item_has_weights: vectors of all items are then written when weights change"
            )

    def reset(self) -> None:
        """Forget all that was learned."""
        self._continue([self._initial, *(np.zeros_like(self._initial) for _ in range(_SLOTS))], 0)

    def learn(self, packed: PackedTowers, chances: Float32s, rate_scale: float = 1.0) -> tuple[Float32s, ...] | None:
        """Learn a step, and return the gradients of its summed loss for the flat rows of users, their sequences, items.

        `chances` are those of its items to be among the positives of a step; `rate_scale` multiplies the learning rate.
        If loss or gradients are not finite, nothing changes and there is no result.
        """
        log_chance = np.full(len(packed.item_flat), _PADDING_LOG_CHANCE, np.float32)
        log_chance[: len(chances)] = np.log(chances + np.float32(packed.drawn) * (1.0 - chances))
        arrays = (
            packed.user_flat, packed.user_sequence, packed.item_flat, packed.user_index, packed.item_index,
            packed.weight, log_chance, self._update.whole,
        )  # fmt: skip
        is_finite, of_weights, *of_rows = self._traced_for(arrays).run(self._place, self._place.tensors(arrays))
        if not is_finite:
            return None
        self.steps += 1
        share, rate = 1.0 / len(packed.event_time_ms), adam_rate(self._rate * rate_scale, self.steps)
        self._update.learn(of_weights.numpy(), share, rate)
        of_row = np.float32(share if self._settings.row_gradients == "mean" else 1.0)
        return tuple(gradient.numpy() * of_row for gradient in of_rows)

    def users(self, flat: Float32s, sequence: Float32s, weights: Float32s | None = None) -> Float32s:
        """Return the vectors of packed users, float32[U, dim]; by the weights of now, if no others are given."""
        return self._vectors_of("users", flat, sequence, self.weights if weights is None else weights)

    def items(self, flat: Float32s, weights: Float32s | None = None) -> Float32s:
        """Return the vectors of packed items, float32[N, dim]; by the weights of now, if no others are given."""
        return self._vectors_of("items", flat, self.weights if weights is None else weights)

    @property
    def weights(self) -> Float32s:
        """All weights as one vector; another array after each step."""
        return self._update.whole

    @property
    def item_has_weights(self) -> bool:
        """Whether vectors of items depend on more than their rows."""
        return bool(getattr(self._towers, "item_has_weights", True))

    def dense(self) -> dict[str, Float32s]:
        """Return a copy of the weights by name."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes.values()], dtype=np.int64)
        parts = zip(self.shapes.items(), np.split(self._update.whole.copy(), ends)[:-1], strict=True)
        return {name: part.reshape(shape) for (name, shape), part in parts}

    def optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return a copy of the optimizer's state."""
        slots = {f"slot{number}": slot.copy() for number, slot in enumerate(self._update.slots)}
        return {"steps": np.array([self.steps], np.int64), **slots}

    def load(self, dense: Mapping[str, Float32s], state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from saved weights and optimizer state; those of other towers raise a UsageError."""
        self._continue(
            [self.end_to_end(dense), *(state[f"slot{number}"] for number in range(_SLOTS))], int(state["steps"][0])
        )

    def end_to_end(self, dense: Mapping[str, Float32s]) -> Float32s:
        """Return saved weights as one vector; those of other towers raise a UsageError."""
        if {name: weight.shape for name, weight in dense.items()} != self.shapes:
            message = f"a version has other towers: weights {', '.join(sorted(dense)) or 'none'}"
            raise UsageError(message, help="the towers of a model never change: give the application a new name")
        return np.concatenate([np.zeros(0, np.float32), *(np.ravel(dense[name]) for name in self.shapes)])

    def _continue(self, state: Sequence[Float32s], steps: int) -> None:
        self._update = DenseUpdate(self._settings, state, betas=BETAS, epsilons=EPSILONS)
        self.steps = steps

    def _traced_for(self, arrays: Sequence[npt.NDArray[Any]]) -> TracedFunction:
        # XLA compiles each shape. Without it one graph serves any number of users and items.
        shapes = tuple(array.shape if self.is_compiled else (None, *array.shape[1:]) for array in arrays)
        if shapes not in self._traced:
            specs = [tf.TensorSpec(shape, array.dtype) for shape, array in zip(shapes, arrays, strict=True)]
            with tf.device(self._place.name):
                self._traced[shapes] = TracedFunction(self._learn.get_concrete_function(*specs))
        return self._traced[shapes]

    def _step(self, *arrays: Any) -> tuple[Any, ...]:
        *sides, user_index, item_index, weight, log_chance, whole = arrays
        with tf.GradientTape() as tape:
            tape.watch([whole, *sides])
            flat, sequence, items = sides
            logits = tf.matmul(self._users(flat, sequence, whole), self._items(items, whole), transpose_b=True)
            logits -= log_chance
            chosen = tf.gather_nd(logits, tf.stack([user_index, item_index], axis=1))
            loss = tf.reduce_sum(weight * (tf.gather(tf.reduce_logsumexp(logits, axis=1), user_index) - chosen))
        zero = tf.UnconnectedGradients.ZERO
        found = tape.gradient(loss, [whole, *sides], unconnected_gradients=zero)
        of_weights, *of_rows = map(tf.convert_to_tensor, found)
        is_finite = are_bounded(loss, [(gradient, GRADIENT_MAX) for gradient in (of_weights, *of_rows)])
        return is_finite, of_weights, *of_rows

    def _users(self, flat: Any, sequence: Any, whole: Any) -> Any:
        side = self._plan.user
        inputs = PackedSide(flat if side.flat_width else None, sequence if side.sequence_length else None)
        with wrap_errors(self._towers, "user"):
            return self._checked("user", self._towers.user(self._split(whole), inputs))

    def _items(self, flat: Any, whole: Any) -> Any:
        with wrap_errors(self._towers, "item"):
            return self._checked("item", self._towers.item(self._split(whole), PackedSide(flat, None)))

    def _checked(self, function: str, vectors: Any) -> Any:
        if vectors.dtype != tf.float32 or vectors.shape.rank != 2 or vectors.shape[1] != self.dim:
            message = f"{function} of {type(self._towers).__name__} returns {vectors.dtype.name} of {vectors.shape}"
            raise SpecError(message, help=f"return float32 of shape (rows, {self.dim})")
        return vectors

    def _vectors_of(self, side: str, *arrays: Float32s) -> Float32s:
        with tf.device(self._place.name):
            given = map(tf.convert_to_tensor, arrays)
            vectors: Float32s = self._vectors[side](*given).numpy()
        return vectors

    def _split(self, whole: Any) -> list[Any]:
        shapes = self.shapes.values()
        parts = tf.split(whole, [math.prod(shape) for shape in shapes]) if shapes else []
        return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
