"""Executables: exported graphs compiled for every shape of a ladder, on every device; other shapes run uncompiled."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from streamlearn.errors import UsageError
from streamlearn.models.description import Description
from streamlearn.models.protocol import Tensor
from streamlearn.serving.graphs.compile_budget import CompileBudget
from streamlearn.serving.graphs.definitions import Definition, Definitions
from streamlearn.serving.graphs.dense import Dense
from streamlearn.serving.graphs.example_inputs import item_example, user_example
from streamlearn.serving.graphs.execution_meters import ExecutionMeters
from streamlearn.serving.graphs.ladder import Bucket, Ladder
from streamlearn.serving.graphs.shape_misses import Missed
from streamlearn.serving.graphs.tensors import tensor_of
from streamlearn.serving.lanes.tf_calls import Kind, Place, kind_of
from streamlearn.serving.lanes.work import Work

__all__ = ["Executables"]

# A device, a function, and what it is called with beside the weights: what one executable is for.
_Key: TypeAlias = tuple[str, bytes, tuple[Kind, ...]]


class Executables:
    """The graphs of one graph id, ready to score for any version that has it: weights are arguments.

    Executables stay in memory as long as the process lives. So they are made of a budget, counted at the one place
    where XLA can compile anything; a shape that has none runs uncompiled, at once.

    Any thread may call, and `score` waits for no compilation.

    Args:
        definitions: The graphs.
        places: Where they run; one that is there twice counts once.
        budget: How many executables the process may make; of all graphs together.
        compile_calls_min: How often a shape without an executable comes before `wanted` is told of it.

    Attributes:
        definitions: The graphs.
        places: Where they run.
        budget: As given.
        wanted: Told of a shape that came so often, by the thread that scores.
    """

    def __init__(
        self, definitions: Definitions, places: Iterable[Place], budget: CompileBudget, compile_calls_min: int = 100
    ) -> None:
        self.definitions = definitions
        self.places = tuple({place.name: place for place in places}.values())
        self.wanted: Callable[[Bucket], object] = lambda _: None
        self._described = definitions.described
        self.budget = budget
        self._compiles = 0
        self._zeros = Dense.zeros(self._described, self.places)
        self._known: frozenset[_Key] = frozenset()
        self._made: frozenset[Bucket] = frozenset()
        self._missed = Missed(compile_calls_min)
        self._lock = threading.Lock()
        self._meters = ExecutionMeters()

    @property
    def described(self) -> Description:
        """What is known of the graphs."""
        return self._described

    @property
    def compiles(self) -> int:
        """How many executables of these graphs were made, or loaded from the cache."""
        return self._compiles

    def has(self, bucket: Bucket) -> bool:
        """Whether a shape has executables."""
        return bucket in self._made

    def compile_ladder(self, ladder: Ladder, between: Callable[[Bucket], object] = lambda _: None) -> None:
        """Make all executables of a ladder, and run the graphs once uncompiled: no later call is the first of its kind.

        Args:
            ladder: The shapes.
            between: Told of each before it is made.

        Raises:
            UsageError: There are more of them than may be made.
            ExecutionFailed: XLA refuses one.
        """
        assert ladder.users_max == self.definitions.users_max
        for bucket in ladder.buckets():
            between(bucket)
            if not self.compile(bucket):
                message = f"the limit of {self.budget.made} executables is reached before the ladder is complete"
                raise UsageError(message, help="raise serving.compiles_max, or start another process")
        for place in self.places:
            definition, users, given = self._example(place, Bucket("score", 1, ladder.lengths[-1]))
            self._run_plain(place, definition, [*users, *map(tensor_of, given)])

    def compile(self, bucket: Bucket) -> bool:
        """Make the executables of a shape on all devices; gives whether it has them now.

        The one place where XLA compiles.

        Raises:
            ExecutionFailed: XLA refuses.
        """
        with self._lock:
            for place in self.places:
                definition, users, given = self._example(place, bucket)
                inputs = [*users, *map(tensor_of, given)]
                key = _key(place, definition, inputs)
                if key in self._known:
                    continue
                if not self.budget.take():
                    return False
                begin_s = time.monotonic()
                self._compiles += 1
                place.run(definition.compiled, [*self._zeros.on(place), *inputs], definition.outputs)
                self._meters.compile_seconds.inc(time.monotonic() - begin_s)
                self._known |= {key}
            self._made |= {bucket}
        return True

    def score(self, place: Place, work: Work) -> npt.NDArray[np.float32]:
        """The scores of a TensorBatch, float32[candidates, labels], rows of padding among them.

        Raises:
            UsageError: What is given is nothing these graphs take.
            ExecutionFailed: TensorFlow could not run it.
        """
        if work.dense.described is not self._described:
            message = "the weights belong to other graphs"
            raise UsageError(message, help="create them from the description of the graphs that use them")
        weights, users = work.dense.on(place), list[Tensor]()
        if self.definitions.user is not None:
            users = self._run(place, self.definitions.user, weights, [tensor_of(one) for one in work.user])
        inputs = [*users, tensor_of(work.user_index), *[tensor_of(one) for one in work.item]]
        scores: npt.NDArray[np.float32] = self._run(place, self.definitions.score, weights, inputs)[0].numpy()
        return scores

    def cost_us(self, bucket: Bucket, runs: int) -> float:
        """What one execution of a shape costs on the first device: the median of some.

        Handing the inputs over is in it, and the answer of a score graph.
        """
        place = self.places[0]
        definition, users, given = self._example(place, bucket)
        weights, found = self._zeros.on(place), []
        for _ in range(runs + 1):
            begin_ns = time.perf_counter_ns()
            outputs = self._run(place, definition, weights, [*users, *[tensor_of(one) for one in given]])
            if bucket.graph == "score":
                outputs[0].numpy()
            place.wait()
            found.append((time.perf_counter_ns() - begin_ns) / 1e3)
        return statistics.median(found[1:])

    def _run(
        self, place: Place, definition: Definition, weights: Sequence[Tensor], inputs: list[Tensor]
    ) -> list[Tensor]:
        if _key(place, definition, inputs) in self._known:
            return place.run(definition.compiled, [*weights, *inputs], definition.outputs)
        kinds = [kind_of(one) for one in inputs]
        definition.check(kinds)
        self._meters.fallbacks.labels(definition.graph).inc()
        bucket = self.definitions.bucket(definition, kinds)
        if bucket is not None and self._missed.add(bucket):
            self.wanted(bucket)
        return place.run(definition.plain, [*weights, *inputs], definition.outputs)

    def _run_plain(self, place: Place, definition: Definition, inputs: list[Tensor]) -> list[Tensor]:
        return place.run(definition.plain, [*self._zeros.on(place), *inputs], definition.outputs)

    def _example(self, place: Place, bucket: Bucket) -> tuple[Definition, list[Tensor], list[npt.NDArray[Any]]]:
        """A graph, what the user graph gives it, and what it is handed beside that."""
        user = self.definitions.user
        if bucket.graph == "user":
            assert user is not None
            return user, [], user_example(self._described, bucket.rows, bucket.length)
        users = list[Tensor]()
        if user is not None:
            given = user_example(self._described, 1, bucket.length)
            users = self._run_plain(place, user, [tensor_of(one) for one in given])
        return self.definitions.score, users, item_example(self._described, bucket.rows)


def _key(place: Place, definition: Definition, inputs: Sequence[Tensor]) -> _Key:
    return place.name, definition.compiled, tuple([kind_of(one) for one in inputs])
