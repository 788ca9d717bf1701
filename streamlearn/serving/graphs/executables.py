"""Executables: exported graphs compiled for every shape of a ladder, on every device; other shapes run uncompiled."""

from __future__ import annotations

import statistics
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from streamlearn.errors import UsageError
from streamlearn.models import load_graphs
from streamlearn.models.description import Description, TensorNote
from streamlearn.models.protocol import Tensor
from streamlearn.models.tf_calls import Kind, Place, kind_of
from streamlearn.serving.graphs.definitions import Definition, Definitions
from streamlearn.serving.graphs.dense import Dense
from streamlearn.serving.graphs.execution_meters import ExecutionMeters
from streamlearn.serving.graphs.ladder import Bucket, Ladder
from streamlearn.serving.graphs.tensors import Given, tensor_of
from streamlearn.serving.lanes.lane_kind import Work
from streamlearn.serving.lanes.slab import Slab, aligned
from streamlearn.settings import ServingSettings

__all__ = ["CompileBudget", "Executables", "item_example", "load_executables", "user_example"]

# Shapes without an executable whose calls are counted.
_SHAPES_MAX = 1_024
_INDEX = "user_index"
# An executable is for a device, a function, and the types and shapes of the inputs after the weights.
_Key: TypeAlias = tuple[str, bytes, tuple[Kind, ...]]


def load_executables(
    folder: Path, settings: ServingSettings, places: Iterable[Place], budget: CompileBudget
) -> tuple[Executables, Ladder]:
    """Load exported graphs, and return them with the ladder of the settings. Nothing is compiled yet."""
    places = list(places)
    is_gpu = any(not place.is_cpu for place in places)
    definitions = Definitions(load_graphs(folder), settings.users_buckets[-1], has_long_index=is_gpu)
    ladder = Ladder.of(settings, definitions.described)
    return Executables(definitions, places, budget, settings.compile_calls_min), ladder


class CompileBudget:
    """Counts the executables that a process made for all graphs together, up to `compiles_max`.

    TensorFlow never frees one. Any thread may call.
    """

    def __init__(self, compiles_max: int) -> None:
        self.compiles_max = compiles_max
        self.made = 0
        self._lock = threading.Lock()
        self._meters = ExecutionMeters()

    @property
    def is_used_up(self) -> bool:
        """Whether no more may be made."""
        return self.made >= self.compiles_max

    def take(self) -> bool:
        """Count an executable that is made next and return whether it may be made."""
        with self._lock:
            if self.is_used_up:
                return False
            self.made += 1
        self._meters.compiles.inc()
        self._meters.compiled.set(self.made / self.compiles_max)
        return True


class Executables:
    """The graphs of one graph id, ready to score for any version that has it: weights are arguments.

    Executables stay in memory as long as the process lives. So a budget limits them, counted at the one place where XLA
    compiles; a shape without an executable runs uncompiled at once.

    Any thread may call, and `score` never waits for a compilation.

    Attributes:
        compiles: How many executables of these graphs were made, or loaded from the cache.
        wanted: Called by the scoring thread when a shape without an executable came `compile_calls_min` times.
    """

    def __init__(
        self, definitions: Definitions, places: Iterable[Place], budget: CompileBudget, compile_calls_min: int = 100
    ) -> None:
        self.definitions, self.described, self.budget = definitions, definitions.described, budget
        self.places = tuple({place.name: place for place in places}.values())
        self.wanted: Callable[[Bucket], object] = lambda _: None
        self.compiles = 0
        self._zeros = Dense.zeros(self.described, self.places)
        self._known: frozenset[_Key] = frozenset()
        self._made: frozenset[Bucket] = frozenset()
        self._missed = _Missed(compile_calls_min)
        self._has_long_index = any(note.dtype == "int64" for note in definitions.score.inputs)
        self._lock = threading.Lock()
        self._meters = ExecutionMeters()

    def has(self, bucket: Bucket) -> bool:
        """Return whether a shape has executables."""
        return bucket in self._made

    def compile_ladder(self, ladder: Ladder) -> None:
        """Make all executables of a ladder.

        The graphs also run once uncompiled, so that no later call is the first of its kind.
        """
        assert ladder.users_max == self.definitions.users_max
        for bucket in ladder.buckets():
            if not self.compile(bucket):
                message = f"the limit of {self.budget.made} executables is reached before the ladder is complete"
                raise UsageError(message, help="raise serving.compiles_max, or start another process")
        for place in self.places:
            definition, inputs = self._example(place, Bucket("score", 1, ladder.lengths[-1]))
            self._run_plain(place, definition, inputs())

    def compile(self, bucket: Bucket) -> bool:
        """Make the executables of a shape on all devices, and return whether it has them now.

        This is the one place where XLA compiles.

        Raises:
            ExecutionFailed: XLA refuses the shape.
        """
        with self._lock:
            for place in self.places:
                definition, example = self._example(place, bucket)
                inputs = example()
                key = _key(place, definition, inputs)
                if key in self._known:
                    continue
                if not self.budget.take():
                    return False
                begin_s = time.monotonic()
                self.compiles += 1
                place.run(definition.compiled, [*self._zeros.on(place), *inputs], definition.outputs)
                self._meters.compile_seconds.inc(time.monotonic() - begin_s)
                self._known |= {key}
            self._made |= {bucket}
        return True

    def score(self, place: Place, work: Work) -> npt.NDArray[np.float32]:
        """Score a TensorBatch and return float32[candidates, labels], with the rows of padding."""
        if work.dense.described is not self.described:
            message = "the weights belong to other graphs"
            raise UsageError(message, help="create them from the description of the graphs that use them")
        weights, users = work.dense.on(place), list[Tensor]()
        if self.definitions.user is not None:
            users = self._run(place, self.definitions.user, weights, [tensor_of(block) for block in work.user])
        inputs = [*users, self._index_of(work.user_index), *[tensor_of(block) for block in work.item]]
        scores: npt.NDArray[np.float32] = self._run(place, self.definitions.score, weights, inputs)[0].numpy()
        return scores

    def costs_us(self, ladder: Ladder, runs: int) -> dict[Bucket, float]:
        """Measure the cost of each shape of a ladder in microseconds; see `cost_us`."""
        return {bucket: self.cost_us(bucket, runs) for bucket in ladder.buckets()}

    def cost_us(self, bucket: Bucket, runs: int) -> float:
        """Measure one execution of a shape on the first device: the median of `runs`, in microseconds.

        This includes handing over the inputs and, for a score graph, reading the scores.
        """
        place = self.places[0]
        definition, inputs = self._example(place, bucket)
        weights, times_us = self._zeros.on(place), []
        for _ in range(runs + 1):
            begin_ns = time.perf_counter_ns()
            outputs = self._run(place, definition, weights, inputs())
            if bucket.graph == "score":
                outputs[0].numpy()
            place.wait()
            times_us.append((time.perf_counter_ns() - begin_ns) / 1e3)
        return statistics.median(times_us[1:])

    def _run(
        self, place: Place, definition: Definition, weights: Sequence[Tensor], inputs: list[Tensor]
    ) -> list[Tensor]:
        if _key(place, definition, inputs) in self._known:
            return place.run(definition.compiled, [*weights, *inputs], definition.outputs)
        kinds = [kind_of(tensor) for tensor in inputs]
        definition.check(kinds)
        self._meters.fallbacks.labels(definition.graph).inc()
        bucket = self.definitions.bucket(definition, kinds)
        if bucket is not None and self._missed.add(bucket):
            self.wanted(bucket)
        return place.run(definition.plain, [*weights, *inputs], definition.outputs)

    def _index_of(self, given: Given) -> Tensor:
        """Return the users of candidates as the score graph takes them: in place, or copied to int64."""
        tensor = tensor_of(given)
        return tensor_of(aligned(tensor.numpy().astype(np.int64))) if self._has_long_index else tensor

    def _run_plain(self, place: Place, definition: Definition, inputs: list[Tensor]) -> list[Tensor]:
        return place.run(definition.plain, [*self._zeros.on(place), *inputs], definition.outputs)

    def _example(self, place: Place, bucket: Bucket) -> tuple[Definition, Callable[[], list[Tensor]]]:
        """Return a graph, and a function that makes tensors of its example inputs."""
        user, users = self.definitions.user, list[Tensor]()
        if bucket.graph == "user":
            assert user is not None
            arrays = user_example(self.described, bucket.rows, bucket.length)
            return user, lambda: [tensor_of(array) for array in arrays]
        if user is not None:
            arrays = user_example(self.described, 1, bucket.length)
            users = self._run_plain(place, user, [tensor_of(array) for array in arrays])
        index, *item = item_example(self.described, bucket.rows)
        return self.definitions.score, lambda: [*users, self._index_of(index), *map(tensor_of, item)]


class _Missed:
    """Counts the calls of shapes without an executable; the least recently seen shape is forgotten first."""

    def __init__(self, calls_min: int) -> None:
        self._calls_min = calls_min
        self._counts: OrderedDict[Bucket, int] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, bucket: Bucket) -> bool:
        """Count a shape. At its `calls_min`-th time, return true and count from 0 again."""
        with self._lock:
            count = self._counts.pop(bucket, 0) + 1
            if count >= self._calls_min:
                return True
            self._counts[bucket] = count
            if len(self._counts) > _SHAPES_MAX:
                self._counts.popitem(last=False)
            return False


def _key(place: Place, definition: Definition, inputs: Sequence[Tensor]) -> _Key:
    return place.name, definition.compiled, tuple([kind_of(tensor) for tensor in inputs])


def user_example(described: Description, rows: int, length: int) -> list[npt.NDArray[Any]]:
    """Return inputs of the user graph for `rows` users with histories of this length; none without a user graph."""
    return _zeros(() if described.user is None else described.user.inputs, rows, length)


def item_example(described: Description, rows: int) -> list[npt.NDArray[Any]]:
    """Return inputs of the score graph besides the users: `user_index`, all 0, and the candidates' blocks."""
    notes = described.score.inputs
    first = [note.name for note in notes].index(_INDEX)
    return _zeros(notes[first:], rows, int(described.pack["item"]["sequence_length"]))


def _zeros(notes: Sequence[TensorNote], rows: int, length: int) -> list[npt.NDArray[Any]]:
    sizes = (rows, length)
    shapes = (tuple(sizes[at] if size is None else size for at, size in enumerate(note.shape)) for note in notes)
    return Slab(*((shape, note.dtype) for shape, note in zip(shapes, notes, strict=True))).arrays
