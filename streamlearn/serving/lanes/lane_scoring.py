"""LaneScoring: graphs and weights of a lane process, and how it scores with them."""

from __future__ import annotations

import mmap
import time
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.errors import UsageError
from streamlearn.models import load_graphs
from streamlearn.native import native
from streamlearn.serving.graphs.compile_budget import CompileBudget
from streamlearn.serving.graphs.definitions import Definitions
from streamlearn.serving.graphs.dense import Dense
from streamlearn.serving.graphs.executables import Executables
from streamlearn.serving.graphs.ladder import Ladder
from streamlearn.serving.lanes.device import lane_places
from streamlearn.serving.lanes.lane_orders import (
    Birth,
    Drop,
    LaneAnswer,
    LoadOrder,
    Make,
    Order,
    failed,
    read_work,
    scored,
)
from streamlearn.serving.lanes.slab import places_of
from streamlearn.serving.lanes.work import Work

__all__ = ["LaneScoring"]


class LaneScoring:
    """What a process has on its one device; one thread scores, and another makes and loads.

    Args:
        birth: What the process was started with.

    Attributes:
        place: The device.
    """

    def __init__(self, birth: Birth) -> None:
        self._settings = msgspec.structs.replace(birth.settings, lanes=1)
        (self.place,) = lane_places(self._settings)
        self._budget = CompileBudget(self._settings.compiles_max)
        self._graphs: dict[str, Executables] = {}
        self._weights: dict[int, tuple[Executables, Dense]] = {}
        self._slabs = native.SharedSlabs(birth.slabs)
        self._scores: npt.NDArray[np.float32] = np.frombuffer(mmap.mmap(birth.scores, 0), np.float32)

    def score(self, packet: bytes) -> bytes:
        """What is said of a packet of work; nothing of its tensors is held any more."""
        try:
            weights, user, (index, *item) = read_work(packet)
            executables, dense = self._weights[weights]
            tensor = self._slabs.tensor
            work = Work(
                dense,
                [tensor(at, shape, False) for at, shape in user],
                tensor(index.at, index.shape, True),
                [tensor(at, shape, False) for at, shape in item],
            )
            found = executables.score(self.place, work)
            self._scores[: found.size] = found.reshape(-1)
        except Exception as error:
            return failed(f"{type(error).__name__}: {error}")
        return scored(*found.shape)

    def obey(self, order: Order, files: list[int]) -> LaneAnswer:
        """Do what an order says."""
        match order:
            case Make():
                return self._make(order)
            case LoadOrder():
                self._load(order, files)
            case Drop():
                self._weights.pop(order.weights, None)
        return LaneAnswer()

    def _make(self, order: Make) -> LaneAnswer:
        settings, begin_s = self._settings, time.monotonic()
        definitions = Definitions(load_graphs(Path(order.folder)), settings.users_buckets[-1])
        ladder = Ladder.of(settings, definitions.described)
        buckets = list(ladder.buckets())
        if self._budget.made + len(buckets) > self._budget.compiles_max:
            return LaneAnswer(is_spent=True)
        executables = Executables(definitions, [self.place], self._budget, settings.compile_calls_min)
        executables.compile_ladder(ladder)
        self._graphs[order.graph] = executables
        compile_s = time.monotonic() - begin_s
        measured = buckets if order.is_measured else []
        costs = [(bucket, executables.cost_us(bucket, settings.cost_runs)) for bucket in measured]
        return LaneAnswer(compiles=executables.compiles, compile_s=compile_s, costs=costs)

    def _load(self, order: LoadOrder, files: list[int]) -> None:
        executables = self._graphs[order.graph]
        if len(files) != 1:
            message = f"weights {order.weights} came with {len(files)} files"
            raise UsageError(message)
        notes = executables.described.weights
        shapes = [tuple(size or 0 for size in one.shape) for one in notes]
        places = places_of([4 * int(np.prod(shape)) for shape in shapes])
        # Nothing is there to be mapped when graphs take no weights.
        memory = mmap.mmap(files[0], 0, prot=mmap.PROT_READ) if places[-1] else b""
        named = {
            note.name: np.frombuffer(memory, np.float32, int(np.prod(shape)), at).reshape(shape)
            for note, shape, at in zip(notes, shapes, places[:-1], strict=True)
        }
        self._weights[order.weights] = executables, Dense(executables.described, named, [self.place])
