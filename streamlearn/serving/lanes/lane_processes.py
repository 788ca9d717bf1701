"""LaneProcesses: lanes that are processes, each with its own TensorFlow and device, behind threads of the node.

The node keeps the set of graphs and weights that are in use. Each process is updated to this set, and only an updated
process takes work. So a process that starts, takes over from another or was slow needs no history.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.errors import LaneLost, ServiceError, StreamlearnError, UsageError
from streamlearn.models.description import Description, read_description
from streamlearn.serving.graphs.compile_cache import CompileCache
from streamlearn.serving.graphs.execution_meters import ExecutionMeters
from streamlearn.serving.graphs.ladder import Bucket, Ladder
from streamlearn.serving.lanes.lane_kind import Made, Work
from streamlearn.serving.lanes.lane_orders import Drop, LaneAnswer, LoadOrder, Make, TensorSpan, work_packet
from streamlearn.serving.lanes.lane_process import LaneProcess
from streamlearn.serving.lanes.slab import places_of
from streamlearn.settings import ServingSettings

__all__ = ["LaneProcesses", "LaneWeights", "ProcessGraph", "ProcessLane"]

_LOG = logging.getLogger("streamlearn.serving.LaneProcesses")
# The first wait of a lane that restarts; it doubles up to the second.
_WAIT_S, _WAIT_S_MAX = 0.1, 10.0


class ProcessGraph:
    """The graphs of one id in all processes: a `Scorer`."""

    def __init__(self, lanes: LaneProcesses, name: str, folder: Path, described: Description, ladder: Ladder) -> None:
        self._lanes, self.name, self.folder = lanes, name, folder
        self.described, self.ladder = described, ladder
        self.is_measured = False

    @property
    def places(self) -> Sequence[ProcessLane]:
        """The lanes."""
        return self._lanes.places

    def score(self, place: ProcessLane, work: Work) -> npt.NDArray[np.float32]:
        """See `LaneProcesses.score`."""
        return self._lanes.score(place, work)


class LaneWeights:
    """The dense weights of one version, in the order of its graphs.

    Processes know them by their number, load them from an anonymous file and keep them until this object is freed.
    """

    def __init__(self, number: int, graph: ProcessGraph, arrays: Sequence[npt.NDArray[np.float32]]) -> None:
        self.number, self.graph = number, graph
        self.file = os.memfd_create("streamlearn-weights")
        weakref.finalize(self, os.close, self.file)
        offsets = places_of([array.nbytes for array in arrays])
        os.ftruncate(self.file, offsets[-1])
        for at, array in zip(offsets, arrays, strict=False):
            data, written = np.ascontiguousarray(array).tobytes(), 0
            while written < len(data):
                written += os.pwrite(self.file, data[written:], at + written)


class ProcessLane:
    """One lane, whatever process it has at the moment: a `LanePlace`.

    Attributes:
        process: The process that takes work; None while there is none.
        failures: How often in a row it was lost.
        scoring: The lock for scoring on it.
        starting: The lock for replacing its process.
    """

    def __init__(self, lanes: LaneProcesses, number: int) -> None:
        self._lanes, self.number, self.name = lanes, number, f"lane process {number}"
        self.process: LaneProcess | None = None
        self.failures = 0
        self.scoring, self.starting = threading.Lock(), threading.Lock()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """See `LanePlace.entered`: inside, the lane has a process, unless all lanes are ending."""
        self._lanes.start(self)
        try:
            yield
        finally:
            self._lanes.stop(self)


class LaneProcesses:
    """A `LaneKind`. `measured` is called with the cost of each bucket of new graphs in microseconds.

    `slabs` are the file that holds the tensors of work, its size, and the offset of the part that only this object
    writes. A candidate has `labels` scores.
    """

    def __init__(
        self,
        settings: ServingSettings,
        slabs: tuple[int, int, int],
        labels: int,
        cache: CompileCache | None = None,
        measured: Callable[[dict[Bucket, float]], object] = lambda _: None,
    ) -> None:
        self._settings, self._cache, self._measured = settings, cache, measured
        self._slabs, slabs_bytes, self._copies_at = slabs
        self._memory = mmap.mmap(self._slabs, slabs_bytes)
        self._scores_bytes = 4 * labels * settings.candidates_buckets[-1]
        self._meters = ExecutionMeters()
        self.places = [ProcessLane(self, number) for number in range(settings.lanes)]
        # Guards the graphs and weights in use, and which process a lane has; notified when a lane gets a process.
        self._changed = threading.Condition()
        self._graphs: weakref.WeakValueDictionary[str, ProcessGraph] = weakref.WeakValueDictionary()
        self._weights: weakref.WeakValueDictionary[int, LaneWeights] = weakref.WeakValueDictionary()
        self._numbers = count(1)
        self._processes: set[LaneProcess] = set()
        self._ended = threading.Event()
        # One graph or version is staged at a time, and one TensorBatch of golden requests is copied at a time.
        self._staging, self._copying = threading.Lock(), threading.Lock()
        self._unused: SimpleQueue[bool] = SimpleQueue()
        self._dropper = threading.Thread(target=self._drop_unused, name="lane-weights", daemon=True)
        self._dropper.start()

    def graph(self, name: str, folder: Path) -> Made:
        """See `LaneKind.graph`."""
        with self._staging:
            graph = self._graphs.get(name)
            if graph is None:
                described = read_description(folder)
                graph = ProcessGraph(self, name, folder, described, Ladder.of(self._settings, described))
                with self._changed:
                    self._graphs[name] = graph
            try:
                self._update_all()
            except BaseException:
                with self._changed:
                    if not any(weights.graph is graph for weights in list(self._weights.values())):
                        self._graphs.pop(name, None)
                raise
            return Made(graph, graph.ladder)

    def weights(self, scorer: Any, named: Mapping[str, npt.NDArray[Any]]) -> LaneWeights:
        """See `LaneKind.weights`."""
        with self._staging:
            weights = LaneWeights(next(self._numbers), scorer, scorer.described.in_order(named))
            weakref.finalize(weights, self._unused.put, True)
            with self._changed:
                self._weights[weights.number] = weights
            self._update_all()
            return weights

    def score(self, lane: ProcessLane, work: Work) -> npt.NDArray[np.float32]:
        """Score a TensorBatch. If something else killed the process, another lane tries once more.

        Raises:
            ExecutionFailed: It could not be scored.
            LaneLost: There is no process, or it ended.
        """
        if isinstance(work.user_index, TensorSpan):
            return self._score(lane, work_packet(work.dense.number, work.user, [work.user_index, *work.item]))
        with self._copying:
            return self._score(lane, self._copied(work))

    def check(self, lane: int) -> None:
        """See `LaneKind.check`."""
        place = self.places[lane]
        process = place.process
        if process is None and self._ended.is_set():
            return
        if process is None or process.is_over:
            place.failures += 1
            message = f"{place.name} has no process"
            raise LaneLost(message)

    def start(self, lane: ProcessLane) -> None:
        """Start an updated process for a lane; after failures, wait first.

        Raises:
            StreamlearnError: It could not be started or updated.
        """
        if lane.failures and self._ended.wait(min(_WAIT_S * 2 ** (lane.failures - 1), _WAIT_S_MAX)):
            return
        with lane.starting:
            if self._ended.is_set() or (lane.process is not None and not lane.process.is_over):
                return
            try:
                self._replace(lane)
            except BaseException:
                with self._changed:
                    lane.failures += 1
                    self._changed.notify_all()
                raise

    def stop(self, lane: ProcessLane) -> None:
        """End a lane's process if it is over or all lanes are ending."""
        with lane.starting:
            process = lane.process
            if process is not None and (process.is_over or self._ended.is_set()):
                with self._changed:
                    lane.process = None
                self._end(process)

    def end(self) -> None:
        """See `LaneKind.end`."""
        self._ended.set()
        with self._changed:
            idle = self._processes - {lane.process for lane in self.places}
            self._changed.notify_all()
        for process in idle:
            process.end()

    def close(self) -> None:
        """See `LaneKind.close`."""
        self.end()
        with self._changed:
            processes = list(self._processes)
        for process in processes:
            self._end(process)
        self._unused.put(False)
        self._dropper.join()

    def _score(self, lane: ProcessLane, packet: bytes) -> npt.NDArray[np.float32]:
        try:
            return self._score_on(lane, packet)
        except LaneLost as error:
            other = next((place for place in self.places if place is not lane and place.process is not None), None)
            if other is None or not error.is_innocent:
                raise
        self._meters.lane_retries.inc()
        return self._score_on(other, packet)

    def _score_on(self, lane: ProcessLane, packet: bytes) -> npt.NDArray[np.float32]:
        if not lane.scoring.acquire(timeout=self._settings.lane_answer_s_max):
            message = f"{lane.name} was busy for {self._settings.lane_answer_s_max} s"
            raise LaneLost(message)
        try:
            process = lane.process
            if process is None or process.is_over:
                message = f"{lane.name} has no process"
                raise LaneLost(message, is_innocent=True)
            scores = process.score(packet)
            lane.failures = 0
            return scores
        finally:
            lane.scoring.release()

    def _copied(self, work: Work) -> bytes:
        """Copy the arrays of work to shared memory and return its packet."""
        blocks = [np.asarray(block) for block in (*work.user, work.user_index, *work.item)]
        spans = []
        for at, block in zip(places_of([block.nbytes for block in blocks]), blocks, strict=False):
            begin = self._copies_at + at
            self._memory[begin : begin + block.nbytes] = block.tobytes()
            spans.append(TensorSpan(begin, block.shape))
        users = len(work.user)
        return work_packet(work.dense.number, spans[:users], spans[users:])

    def _update_all(self) -> None:
        """Update all processes that take work; others are updated before they do.

        The first lane goes alone: the others then find in the cache what it compiled.
        """
        self._wait_up()
        first, *others = [lane for lane in self.places if lane.process is not None]
        self._update_lane(first)
        if others:
            with ThreadPoolExecutor(len(others)) as pool:
                list(pool.map(self._update_lane, others))

    def _wait_up(self) -> None:
        """Wait until each lane has a process or has failed, and at least one has a process."""

        def is_up() -> bool:
            is_settled = all(lane.process is not None or lane.failures for lane in self.places)
            return self._ended.is_set() or (is_settled and any(lane.process is not None for lane in self.places))

        with self._changed:
            self._changed.wait_for(is_up, self._settings.compile_s_max)
            if self._ended.is_set() or all(lane.process is None for lane in self.places):
                message = "no lane has a process"
                raise ServiceError(message, help="the log says why each lane's process ended")

    def _update_lane(self, lane: ProcessLane) -> None:
        process = lane.process
        if process is None:
            return
        try:
            is_done = self._update(process)
        except LaneLost:
            if not process.is_ended_here:
                raise
            return
        if not is_done:
            self._recycle(lane, process)

    def _update(self, process: LaneProcess, lane: ProcessLane | None = None) -> bool:
        """Update a process, and then give it to `lane`. Return false if it may not make as many executables."""
        with process.updating:
            while True:
                with self._changed:
                    difference = self._difference(process)
                    if difference is None:
                        if lane is not None:
                            lane.process = process
                            self._changed.notify_all()
                        return True
                if not self._apply(process, difference):
                    return False

    def _difference(self, process: LaneProcess) -> ProcessGraph | LaneWeights | int | None:
        """Return the next graph to make, weights to load or number of weights to drop; None if it is up to date."""
        in_use = list(self._weights.values())
        graphs = {graph.name: graph for graph in [*self._graphs.values(), *(weights.graph for weights in in_use)]}
        for graph in graphs.values():
            if graph.name not in process.graphs:
                return graph
        for weights in in_use:
            if weights.number not in process.weights:
                return weights
        return next(iter(process.weights - {weights.number for weights in in_use}), None)

    def _apply(self, process: LaneProcess, difference: ProcessGraph | LaneWeights | int) -> bool:
        match difference:
            case ProcessGraph():
                return self._make(process, difference)
            case LaneWeights():
                process.obey(LoadOrder(difference.number, difference.graph.name), files=[difference.file])
                process.weights.add(difference.number)
            case _:
                process.obey(Drop(difference))
                process.weights.discard(difference)
        return True

    def _make(self, process: LaneProcess, graph: ProcessGraph) -> bool:
        shapes = sum(1 for _ in graph.ladder.buckets())
        _LOG.info("process %d compiles %d shapes of graph %s", process.process_id, shapes, graph.name[:12])
        order = Make(graph.name, str(graph.folder.absolute()), not graph.is_measured)
        answer: LaneAnswer = process.obey(order, shapes + 1)
        if answer.is_spent:
            return False
        process.graphs.add(graph.name)
        self._meters.compiles.inc(answer.compiles)
        self._meters.compile_seconds.inc(answer.compile_s)
        if answer.costs:
            graph.is_measured = True
            self._measured(dict(answer.costs))
        if self._cache is not None:
            self._cache.seal()
        return True

    def _recycle(self, lane: ProcessLane, spent: LaneProcess) -> None:
        """Replace a process that may make no more executables, because TensorFlow never frees one."""
        with lane.starting:
            if lane.process is not spent:
                return
            _LOG.info("%s has reached its limit of executables: a fresh process takes over", lane.name)
            self._replace(lane)
            self._meters.lane_recycles.inc()

    def _replace(self, lane: ProcessLane) -> None:
        """Start a process, update it and let it take over; then end the previous one."""
        process = LaneProcess(lane.number, self._settings, self._slabs, self._scores_bytes)
        with self._changed:
            self._processes.add(process)
            previous = lane.process
        try:
            if self._ended.is_set():
                message = "stopping all lanes"
                raise LaneLost(message)
            process.wait_up()
            if not self._update(process, lane):
                message = (
                    f"graphs {', '.join(sorted(name[:12] for name in self._graphs))} need more shapes together "
                    f"than one process may compile: {self._settings.compiles_max}"
                )
                raise UsageError(message, help="raise serving.compiles_max, or keep fewer versions")
        except BaseException:
            self._end(process)
            raise
        _LOG.info("%s is process %d", lane.name, process.process_id)
        if previous is not None:
            # Wait until it has finished its present work.
            with lane.scoring:
                pass
            self._end(previous)

    def _end(self, process: LaneProcess) -> None:
        process.end()
        with self._changed:
            self._processes.discard(process)

    def _drop_unused(self) -> None:
        """Update processes whenever weights were freed."""
        while self._unused.get():
            # Do not update a process to a version that is being staged: that thread handles its failures.
            with self._staging:
                for lane in self.places:
                    process = lane.process
                    if process is not None and not self._ended.is_set():
                        with suppress(StreamlearnError):
                            self._update(process)
