"""LaneProcesses: lanes that are processes, each with TensorFlow and a device of its own, behind threads of the node.

The node says what is wanted, graphs and weights that somebody has; each process is brought to have that, and only one
that has it takes work. So a process that starts anew, takes over from another or was slow needs no history.
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
from streamlearn.serving.lanes.lane_kind import Made
from streamlearn.serving.lanes.lane_life import LaneLife
from streamlearn.serving.lanes.lane_orders import Drop, LaneAnswer, LoadOrder, Lying, Make, work_packet
from streamlearn.serving.lanes.slab import places_of
from streamlearn.serving.lanes.work import Work
from streamlearn.settings import ServingSettings

__all__ = ["LaneProcesses", "LaneWeights", "ProcessGraph", "ProcessLane"]

_LOG = logging.getLogger("streamlearn.serving.LaneProcesses")
# The first wait of a lane that begins anew, which doubles up to the last.
_WAIT_S, _WAIT_S_MAX = 0.1, 10.0


class ProcessGraph:
    """The graphs of one id in all processes: a `Scorer`.

    Args:
        lanes: The lanes.
        name: The id.
        folder: Where they were exported to.
        described: What is known of them.
        ladder: Their shapes.

    Attributes:
        name: As given.
        folder: As given.
        described: As given.
        ladder: As given.
        places: The lanes.
    """

    def __init__(self, lanes: LaneProcesses, name: str, folder: Path, described: Description, ladder: Ladder) -> None:
        self._lanes, self.name, self.folder = lanes, name, folder
        self.described, self.ladder = described, ladder
        self.is_measured = False

    @property
    def places(self) -> Sequence[ProcessLane]:
        """Where they run."""
        return self._lanes.places

    def score(self, place: ProcessLane, work: Work) -> npt.NDArray[np.float32]:
        """See `LaneProcesses.score`."""
        return self._lanes.score(place, work)


class LaneWeights:
    """The dense weights of one version in all processes, as long as anybody has this.

    Args:
        number: What processes call them.
        graph: The graphs they are for.
        arrays: The weights in the order of the graphs.

    Attributes:
        number: As given.
        graph: As given.
        file: A file without a name that holds them, for processes to come.
    """

    def __init__(self, number: int, graph: ProcessGraph, arrays: Sequence[npt.NDArray[np.float32]]) -> None:
        self.number, self.graph = number, graph
        self.file = os.memfd_create("streamlearn-weights")
        weakref.finalize(self, os.close, self.file)
        places = places_of([one.nbytes for one in arrays])
        os.ftruncate(self.file, places[-1])
        for at, one in zip(places, arrays, strict=False):
            data, written = np.ascontiguousarray(one).tobytes(), 0
            while written < len(data):
                written += os.pwrite(self.file, data[written:], at + written)


class ProcessLane:
    """One lane, whichever process it has: a `LanePlace`.

    Args:
        lanes: All of them.
        number: Which of them it is.

    Attributes:
        name: What people call it.
        number: As given.
        life: The process that takes work; None while there is none.
        failures: How often in a row it was lost.
        scoring: Held by whoever has it score.
        starting: Held by whoever gives it another process.
    """

    def __init__(self, lanes: LaneProcesses, number: int) -> None:
        self._lanes, self.number, self.name = lanes, number, f"lane process {number}"
        self.life: LaneLife | None = None
        self.failures = 0
        self.scoring, self.starting = threading.Lock(), threading.Lock()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """See `LanePlace.entered`: it has a process, unless all is ending."""
        self._lanes.start(self)
        try:
            yield
        finally:
            self._lanes.stop(self)


class LaneProcesses:
    """A `LaneKind`.

    Args:
        settings: How many lanes there are, and what their processes are started with.
        slabs: The file that work lies in, its bytes, and where in it memory begins that nobody else writes to.
        labels: How many scores a candidate has.
        cache: Where compiled code is kept.
        measured: Told what each bucket of new graphs costs in microseconds.

    Attributes:
        places: The lanes.
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
        self._slabs, bytes_all, self._spare = slabs
        self._memory = mmap.mmap(self._slabs, bytes_all)
        self._scores_bytes = 4 * labels * settings.candidates_buckets[-1]
        self._meters = ExecutionMeters()
        self.places = [ProcessLane(self, number) for number in range(settings.lanes)]
        # Guards what is wanted and which process a lane has; told when a lane has another.
        self._changed = threading.Condition()
        self._graphs: weakref.WeakValueDictionary[str, ProcessGraph] = weakref.WeakValueDictionary()
        self._weights: weakref.WeakValueDictionary[int, LaneWeights] = weakref.WeakValueDictionary()
        self._numbers = count(1)
        self._lives: set[LaneLife] = set()
        self._ended = threading.Event()
        # One graph or version at a time is made ready, and one TensorBatch of golden requests is in the spare memory.
        self._staging, self._copying = threading.Lock(), threading.Lock()
        self._unwanted: SimpleQueue[bool] = SimpleQueue()
        self._dropper = threading.Thread(target=self._drop, name="lane-weights", daemon=True)
        self._dropper.start()

    def graph(self, name: str, folder: Path) -> Made:
        """See `LaneKind.graph`.

        Raises:
            UsageError: No process may make as many executables as are wanted together.
            ExecutionFailed: They cannot be made.
            LaneLost: A process died of them.
            ServiceError: No lane has a process.
        """
        with self._staging:
            graph = self._graphs.get(name)
            if graph is None:
                described = read_description(folder)
                graph = ProcessGraph(self, name, folder, described, Ladder.of(self._settings, described))
                with self._changed:
                    self._graphs[name] = graph
            try:
                self._bring_all()
            except BaseException:
                with self._changed:
                    if not any(one.graph is graph for one in list(self._weights.values())):
                        self._graphs.pop(name, None)
                raise
            return Made(graph, graph.ladder)

    def weights(self, scorer: Any, named: Mapping[str, npt.NDArray[Any]]) -> LaneWeights:
        """See `LaneKind.weights`."""
        with self._staging:
            found = LaneWeights(next(self._numbers), scorer, scorer.described.in_order(named))
            weakref.finalize(found, self._unwanted.put, True)
            with self._changed:
                self._weights[found.number] = found
            self._bring_all()
            return found

    def score(self, lane: ProcessLane, work: Work) -> npt.NDArray[np.float32]:
        """The scores of a TensorBatch.

        A process that was killed from without did not die of it; another lane then tries once more.

        Raises:
            ExecutionFailed: It could not be scored.
            LaneLost: There is no process, or it ended.
        """
        if isinstance(work.user_index, Lying):
            return self._score(lane, work_packet(work.dense.number, work.user, [work.user_index, *work.item]))
        with self._copying:
            return self._score(lane, self._copied(work))

    def check(self, lane: int) -> None:
        """See `LaneKind.check`."""
        place = self.places[lane]
        life = place.life
        if life is None and self._ended.is_set():
            return
        if life is None or life.is_over:
            place.failures += 1
            message = f"{place.name} has no process"
            raise LaneLost(message)

    def start(self, lane: ProcessLane) -> None:
        """Give a lane a process that has all that is wanted; after failures it waits first.

        Raises:
            StreamlearnError: There is none.
        """
        if lane.failures and self._ended.wait(min(_WAIT_S * 2 ** (lane.failures - 1), _WAIT_S_MAX)):
            return
        with lane.starting:
            if self._ended.is_set() or (lane.life is not None and not lane.life.is_over):
                return
            try:
                self._succeed(lane)
            except BaseException:
                with self._changed:
                    lane.failures += 1
                    self._changed.notify_all()
                raise

    def stop(self, lane: ProcessLane) -> None:
        """End a lane's process if it is of no more use."""
        with lane.starting:
            life = lane.life
            if life is not None and (life.is_over or self._ended.is_set()):
                with self._changed:
                    lane.life = None
                self._end(life)

    def end(self) -> None:
        """See `LaneKind.end`."""
        self._ended.set()
        with self._changed:
            at_work = {lane.life for lane in self.places}
            others = self._lives - at_work
            self._changed.notify_all()
        for life in others:
            life.end()

    def close(self) -> None:
        """See `LaneKind.close`."""
        self.end()
        with self._changed:
            lives = list(self._lives)
        for life in lives:
            self._end(life)
        self._unwanted.put(False)
        self._dropper.join()

    def _score(self, lane: ProcessLane, packet: bytes) -> npt.NDArray[np.float32]:
        try:
            return self._score_on(lane, packet)
        except LaneLost as error:
            other = next((one for one in self.places if one is not lane and one.life is not None), None)
            if other is None or not error.is_innocent:
                raise
        self._meters.lane_retries.inc()
        return self._score_on(other, packet)

    def _score_on(self, lane: ProcessLane, packet: bytes) -> npt.NDArray[np.float32]:
        if not lane.scoring.acquire(timeout=self._settings.lane_answer_s_max):
            message = f"{lane.name} was busy for {self._settings.lane_answer_s_max} s"
            raise LaneLost(message)
        try:
            life = lane.life
            if life is None or life.is_over:
                message = f"{lane.name} has no process"
                raise LaneLost(message, is_innocent=True)
            found = life.score(packet)
            lane.failures = 0
            return found
        finally:
            lane.scoring.release()

    def _copied(self, work: Work) -> bytes:
        """The packet of work that lies elsewhere, copied to where processes see it."""
        blocks = [np.asarray(one) for one in (*work.user, work.user_index, *work.item)]
        places = places_of([one.nbytes for one in blocks])
        lying = []
        for at, one in zip(places, blocks, strict=False):
            begin = self._spare + at
            self._memory[begin : begin + one.nbytes] = one.tobytes()
            lying.append(Lying(begin, one.shape))
        users = len(work.user)
        return work_packet(work.dense.number, lying[:users], lying[users:])

    def _bring_all(self) -> None:
        """Bring all processes that take work to have what is wanted; others have it before they do.

        The first alone: what it compiles the others find in the cache.
        """
        self._wait_up()
        first, *others = [lane for lane in self.places if lane.life is not None]
        self._bring_lane(first)
        if others:
            with ThreadPoolExecutor(len(others)) as pool:
                list(pool.map(self._bring_lane, others))

    def _wait_up(self) -> None:
        """Until each lane has a process or was lost, and one has."""

        def is_up() -> bool:
            there = [lane.life is not None for lane in self.places]
            has_begun = all(is_there or lane.failures for is_there, lane in zip(there, self.places, strict=True))
            return self._ended.is_set() or (any(there) and has_begun)

        with self._changed:
            self._changed.wait_for(is_up, self._settings.compile_s_max)
            if self._ended.is_set() or all(lane.life is None for lane in self.places):
                message = "no lane has a process"
                raise ServiceError(message, help="the log says why each lane's process ended")

    def _bring_lane(self, lane: ProcessLane) -> None:
        life = lane.life
        if life is None:
            return
        try:
            is_done = self._bring(life)
        except LaneLost:
            if not life.was_told:
                raise
            return
        if not is_done:
            self._recycle(lane, life)

    def _bring(self, life: LaneLife, into: ProcessLane | None = None) -> bool:
        """Bring a process to have what is wanted, and then let it take a lane's work; False if it is spent."""
        with life.bringing:
            while True:
                with self._changed:
                    wanted = self._missing(life)
                    if wanted is None:
                        if into is not None:
                            into.life = life
                            self._changed.notify_all()
                        return True
                if not self._give(life, wanted):
                    return False

    def _missing(self, life: LaneLife) -> ProcessGraph | LaneWeights | int | None:
        """What is wanted next of a process: to make, to load or to drop."""
        weights = list(self._weights.values())
        graphs = {one.name: one for one in [*self._graphs.values(), *(one.graph for one in weights)]}
        for graph in graphs.values():
            if graph.name not in life.graphs:
                return graph
        for one in weights:
            if one.number not in life.weights:
                return one
        return next(iter(life.weights - {one.number for one in weights}), None)

    def _give(self, life: LaneLife, wanted: ProcessGraph | LaneWeights | int) -> bool:
        match wanted:
            case ProcessGraph():
                return self._make(life, wanted)
            case LaneWeights():
                life.obey(LoadOrder(wanted.number, wanted.graph.name), files=[wanted.file])
                life.weights.add(wanted.number)
            case _:
                life.obey(Drop(wanted))
                life.weights.discard(wanted)
        return True

    def _make(self, life: LaneLife, graph: ProcessGraph) -> bool:
        shapes = sum(1 for _ in graph.ladder.buckets())
        _LOG.info("process %d compiles %d shapes of graph %s", life.process_id, shapes, graph.name[:12])
        order = Make(graph.name, str(graph.folder.absolute()), not graph.is_measured)
        answer: LaneAnswer = life.obey(order, shapes + 1)
        if answer.is_spent:
            return False
        life.graphs.add(graph.name)
        self._meters.compiles.inc(answer.compiles)
        self._meters.compile_seconds.inc(answer.compile_s)
        if answer.costs:
            graph.is_measured = True
            self._measured(dict(answer.costs))
        if self._cache is not None:
            self._cache.seal()
        return True

    def _recycle(self, lane: ProcessLane, spent: LaneLife) -> None:
        """Let a fresh process take over from one that may make no more; TensorFlow gives nothing back otherwise.

        Raises:
            UsageError: A fresh one may not make as many either.
        """
        with lane.starting:
            if lane.life is not spent:
                return
            _LOG.info("%s has reached its limit of executables: a fresh process takes over", lane.name)
            self._succeed(lane)
            self._meters.lane_recycles.inc()

    def _succeed(self, lane: ProcessLane) -> None:
        """Start a process, bring it to have all, and let it take over; then the one before ends."""
        life = LaneLife(lane.number, self._settings, self._slabs, self._scores_bytes)
        with self._changed:
            self._lives.add(life)
            before = lane.life
        try:
            if self._ended.is_set():
                message = "stopping all lanes"
                raise LaneLost(message)
            life.wait_up()
            if not self._bring(life, lane):
                message = (
                    f"graphs {', '.join(sorted(name[:12] for name in self._graphs))} need more shapes together "
                    f"than one process may compile: {self._settings.compiles_max}"
                )
                raise UsageError(message, help="raise serving.compiles_max, or keep fewer versions")
        except BaseException:
            self._end(life)
            raise
        _LOG.info("%s is process %d", lane.name, life.process_id)
        if before is not None:
            # What it has in hand it ends.
            with lane.scoring:
                pass
            self._end(before)

    def _end(self, life: LaneLife) -> None:
        life.end()
        with self._changed:
            self._lives.discard(life)

    def _drop(self) -> None:
        """Have processes let go of weights that nobody has any more, when there are some."""
        while self._unwanted.get():
            # What is being tried meanwhile is not this thread's to bring.
            with self._staging:
                for lane in self.places:
                    life = lane.life
                    if life is not None and not self._ended.is_set():
                        with suppress(StreamlearnError):
                            self._bring(life)
