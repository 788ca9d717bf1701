"""LaneScoring: the graphs and weights of a lane process, and scoring with them."""

from __future__ import annotations

import logging
import mmap
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.errors import UsageError
from streamlearn.native import native
from streamlearn.serving.graphs.dense import Dense
from streamlearn.serving.graphs.executables import CompileBudget, Executables, load_executables
from streamlearn.serving.graphs.tensors import address_of
from streamlearn.serving.lanes.device import lane_places
from streamlearn.serving.lanes.lane_kind import Work
from streamlearn.serving.lanes.lane_orders import (
    Drop,
    LaneAnswer,
    LaneStart,
    LoadOrder,
    Make,
    Order,
    failed,
    read_work,
    scored,
)
from streamlearn.serving.lanes.pinned_memory import pin
from streamlearn.serving.lanes.slab import places_of

__all__ = ["LaneScoring", "pin_slabs"]

_LOG = logging.getLogger("streamlearn.serving.LaneScoring")


class LaneScoring:
    """Scores work on the one device of this process, `place`. One thread calls `score`, another one `obey`."""

    def __init__(self, start: LaneStart) -> None:
        self._settings = msgspec.structs.replace(start.settings, lanes=1)
        (self.place,) = lane_places(self._settings)
        self._budget = CompileBudget(self._settings.compiles_max)
        self._graphs: dict[str, Executables] = {}
        self._weights: dict[int, tuple[Executables, Dense]] = {}
        self._slabs = native.SharedSlabs(start.slabs)
        if not self.place.is_cpu:
            pin_slabs(self._slabs, start.slabs)
        self._scores: npt.NDArray[np.float32] = np.frombuffer(mmap.mmap(start.scores, 0), np.float32)

    def score(self, packet: bytes) -> bytes:
        """Score a packet of work and return the reply; no reference to its tensors remains."""
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
            scores = executables.score(self.place, work)
            self._scores[: scores.size] = scores.reshape(-1)
        except Exception as error:
            return failed(f"{type(error).__name__}: {error}")
        return scored(*scores.shape)

    def obey(self, order: Order, files: list[int]) -> LaneAnswer:
        """Carry out an order."""
        match order:
            case Make():
                return self._make(order)
            case LoadOrder():
                self._load(order, files)
            case Drop():
                self._weights.pop(order.weights, None)
        return LaneAnswer()

    def _make(self, order: Make) -> LaneAnswer:
        begin_s = time.monotonic()
        executables, ladder = load_executables(Path(order.folder), self._settings, [self.place], self._budget)
        if self._budget.made + sum(1 for _ in ladder.buckets()) > self._budget.compiles_max:
            return LaneAnswer(is_spent=True)
        executables.compile_ladder(ladder)
        self._graphs[order.graph] = executables
        compile_s = time.monotonic() - begin_s
        costs = executables.costs_us(ladder, self._settings.cost_runs) if order.is_measured else {}
        return LaneAnswer(compiles=executables.compiles, compile_s=compile_s, costs=list(costs.items()))

    def _load(self, order: LoadOrder, files: list[int]) -> None:
        executables = self._graphs[order.graph]
        if len(files) != 1:
            message = f"weights {order.weights} came with {len(files)} files"
            raise UsageError(message)
        notes = executables.described.weights
        shapes = [tuple(size or 0 for size in note.shape) for note in notes]
        offsets = places_of([4 * int(np.prod(shape)) for shape in shapes])
        # The file is empty, and cannot be mapped, if the graphs take no weights.
        memory = mmap.mmap(files[0], 0, prot=mmap.PROT_READ) if offsets[-1] else b""
        named = {
            note.name: np.frombuffer(memory, np.float32, int(np.prod(shape)), at).reshape(shape)
            for note, shape, at in zip(notes, shapes, offsets[:-1], strict=True)
        }
        self._weights[order.weights] = executables, Dense(executables.described, named, [self.place])


def pin_slabs(slabs: Any, file: int) -> None:
    """Pin the slabs of this process for GPUs; where that fails, copies to a GPU take longer, and the log says so."""
    address, size_bytes = address_of(slabs.tensor(0, (1,), False)), os.fstat(file).st_size
    if reason := pin(address, size_bytes, is_read_only=True):
        _LOG.warning("%d bytes of slabs are not pinned, so copies to the GPU take longer: %s", size_bytes, reason)
    else:
        _LOG.info("pinned %d bytes of slabs", size_bytes)
