"""Lane processes: they score as threads do, may die at any time, and are replaced without a gap."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from streamlearn.errors import LaneLost, StreamlearnError, UsageError
from streamlearn.models import load_graphs
from streamlearn.serving.graphs.ladder import Bucket
from streamlearn.serving.lanes.lane_kind import Made, Work
from streamlearn.serving.lanes.lane_orders import TensorSpan
from streamlearn.serving.lanes.lane_process import LaneProcess
from streamlearn.serving.lanes.lane_processes import LaneProcesses, LaneWeights
from streamlearn.serving.lanes.lanes import Lanes
from streamlearn.serving.lanes.slab import places_of
from streamlearn.settings import ServingSettings
from streamlearn.testing import wait_until
from tests.models.packed import packed, scores_of
from tests.serving.made import LABELS, MODELS, make, named_weights, work_of

WAIT_S = 300.0
# Two ladders fit into one process, three do not: of 4, of 2 (it takes no users) and of 4 shapes.
SETTINGS = ServingSettings(
    users_buckets=[1, 4], candidates_buckets=[4, 16], lanes=2, device="cpu", compiles_max=8, lane_processes=True,
    lane_failures_max=100, lane_answer_s_max=300.0,
)  # fmt: skip
SLAB_BYTES = 1 << 20


class Endless:
    """Work that comes again and again, of whatever versions there are; notes what became of it."""

    def __init__(self) -> None:
        self.works: list[tuple[Work, Any]] = []
        self.scored, self.failed, self.left = [0, 0], list[Exception](), list[int]()
        self.worst = 0.0
        self.check: Any = None
        self._ended, self._lock, self._next = threading.Event(), threading.Lock(), 0

    def take(self, lane: int) -> Work | None:
        # Lanes that never rest would take the processors that others compile and begin with.
        while not self._ended.wait(0.05):
            self.check(lane)
            with self._lock:
                if self.works:
                    self._next += 1
                    work, wanted = self.works[self._next % len(self.works)]
                    return work._replace(note=(lane, wanted))
        return None

    def leave(self, lane: int) -> None:
        self.left.append(lane)

    def give(self, work: Work, scores: Any) -> None:
        lane, wanted = work.note
        with self._lock:
            self.scored[lane] += 1
            difference = abs(scores[: len(wanted)] - wanted) / np.maximum(1, abs(wanted))
            self.worst = max(self.worst, float(difference.max()))

    def fail(self, work: Work, error: Exception) -> None:
        self.failed.append(error)

    def end(self) -> None:
        self._ended.set()

    def go_on(self) -> None:
        """Wait until each lane has scored some more."""
        before = list(self.scored)
        wait_until(lambda: all(now > was + 5 for now, was in zip(self.scored, before, strict=True)), "scores", WAIT_S)


class Farm:
    """Lanes that are processes, at work.

    Attributes:
        processes: The processes.
        source: Their work.
        graphs: The folder of graphs.
        slabs: The memory they share.
    """

    def __init__(self, processes: LaneProcesses, source: Endless, graphs: Path, slabs: mmap.mmap) -> None:
        self.processes, self.source, self.graphs, self.slabs = processes, source, graphs, slabs
        self._used = 0

    def make(self, model: str) -> Made:
        return self.processes.graph(model, self.graphs / model)

    def version(self, made: Made, model: str, seed: int) -> tuple[LaneWeights, list[tuple[Work, Any]]]:
        """Weights, and works with the scores that they are to have by them."""
        graphs = load_graphs(self.graphs / model)
        named = named_weights(graphs, seed)
        weights = self.processes.weights(made.scorer, named)
        works = []
        for users, candidates in ((1, 4), (4, 16), (3, 11)):
            inputs = packed(MODELS[model][1](), users, candidates, seed)
            work = work_of(weights, inputs, 1 if users == 1 else 4, 4 if candidates == 4 else 16, 5)
            works.append((self._put(work), scores_of(graphs, list(named.values()), inputs)))
        return weights, works

    def _put(self, work: Work) -> Work:
        """The same work in memory that processes share, at a place of its own."""
        found = []
        for one in (*work.user, work.user_index, *work.item):
            data = np.asarray(one).tobytes()
            found.append(TensorSpan(self._used, one.shape))
            self.slabs[self._used : self._used + len(data)] = data
            (_, used) = places_of([len(data)])
            self._used += used
        users = len(work.user)
        return work._replace(user=found[:users], user_index=found[users], item=found[users + 1 :])

    def lives(self) -> list[LaneProcess]:
        """The processes, once each lane has one."""
        wait_until(lambda: all(lane.process is not None and not lane.process.is_over for lane in self.processes.places),
                   "a process for each lane", WAIT_S)  # fmt: skip
        found = [lane.process for lane in self.processes.places]
        assert all(life is not None for life in found)
        return [life for life in found if life is not None]

    def halt(self, lane: int) -> None:
        """Let a process stand still, with work in its hands."""
        life, place, other = self.lives()[lane], self.processes.places[lane], 1 - lane
        os.kill(life.process_id, signal.SIGSTOP)
        before = self.source.scored[other]
        wait_until(
            lambda: self.source.scored[other] > before + 10 and place.scoring.locked(), "the other's scores", WAIT_S
        )

    @contextmanager
    def load(self, works: list[tuple[Work, Any]]) -> Iterator[None]:
        """Works are scored, again and again, while the context lasts."""
        source = self.source
        source.failed.clear()
        source.worst = 0.0
        source.works = works
        source.go_on()
        yield
        source.go_on()
        source.works = []
        assert source.worst <= 1e-5


class OfGraph:
    """Scores by whatever the work's weights belong to."""

    def score(self, place: Any, work: Work) -> Any:
        return work.dense.graph.score(place, work)


@pytest.fixture(scope="module")
def farm(exported: Path) -> Iterator[Farm]:
    """Two lanes at work."""
    slabs = os.memfd_create("test")
    os.ftruncate(slabs, SLAB_BYTES)
    spare = SLAB_BYTES // 2
    processes, source = LaneProcesses(SETTINGS, (slabs, SLAB_BYTES, spare), len(LABELS)), Endless()
    source.check = processes.check
    lanes = Lanes(source, OfGraph().score, processes.places, SETTINGS.lane_failures_max)
    try:
        yield Farm(processes, source, exported, mmap.mmap(slabs, SLAB_BYTES))
    finally:
        pids = [life.process_id for lane in processes.places if (life := lane.process) is not None]
        source.end()
        processes.end()
        assert lanes.join(WAIT_S)
        processes.close()
        os.close(slabs)
    assert pids
    assert not any(is_there(pid) for pid in pids)


def counted(name: str) -> float:
    """A metric of lanes."""
    return REGISTRY.get_sample_value(f"streamlearn_serving_lane_{name}_total") or 0.0


def is_there(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not asked for yet does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_processes_score_as_one_process_does_and_versions_take_turns(farm: Farm) -> None:
    made = farm.make("logistic")
    versions = [farm.version(made, "logistic", seed) for seed in (1, 2, 3)]
    works = [work for _, some in versions for work in some]
    with farm.load(works):
        # A version comes and another goes, and no work is scored by any but its own.
        versions.append(farm.version(made, "logistic", 4))
        farm.source.works = [work for _, some in versions[1:] for work in some]
        farm.source.go_on()
        gone = versions.pop(0)[0].number
        works.clear()
        lives = farm.lives()
        wait_until(lambda: all(gone not in life.weights for life in lives), "weights that are dropped", WAIT_S)
        assert all({weights.number for weights, _ in versions} <= life.weights for life in lives)
    assert farm.source.failed == []


def test_a_graph_that_has_more_than_functions_is_refused_by_processes_which_go_on(farm: Farm, tmp_path: Path) -> None:
    hostile = Path(shutil.copytree(farm.graphs / "logistic", tmp_path / "hostile"))
    (hostile / "assets").mkdir()
    (hostile / "assets" / "words.txt").write_text("one")
    before = [life.process_id for life in farm.lives()]
    with pytest.raises(StreamlearnError, match=r"are refused: they hold the file assets/words\.txt"):
        farm.processes.graph("hostile", hostile)
    assert [life.process_id for life in farm.lives()] == before
    farm.make("logistic")


def test_work_that_a_process_cannot_score_fails_alone(farm: Farm) -> None:
    made = farm.make("logistic")
    _, works = farm.version(made, "logistic", 1)
    work, wanted = works[0]
    odd = work._replace(user_index=TensorSpan(work.user_index.at, (5,)))
    with farm.load(works):
        farm.source.works = [*works, (odd, wanted)]
        wait_until(lambda: farm.source.failed, "a failure", WAIT_S)
        farm.source.works = works
    assert {type(error).__name__ for error in farm.source.failed} == {"ExecutionFailed"}
    assert not farm.source.left


def test_a_lane_that_is_a_process_scores_as_one_that_is_a_thread(farm: Farm) -> None:
    made, thread = farm.make("logistic"), make("logistic", farm.graphs)
    assert thread.executables.compile(Bucket("user", 4, 5))
    assert thread.executables.compile(Bucket("score", 16, 5))
    _, dense = thread.dense(7)
    weights = farm.processes.weights(made.scorer, named_weights(thread.graphs, 7))
    inputs = packed(thread.spec, 3, 9)
    wanted = thread.executables.score(thread.place, work_of(dense, inputs, 4, 16, 5))
    # Work that lies elsewhere is copied, which is what golden requests are.
    for lane in farm.processes.places:
        found = made.scorer.score(lane, work_of(weights, inputs, 4, 16, 5))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_a_process_that_is_killed_under_load_is_replaced_and_another_does_its_work(farm: Farm) -> None:
    made = farm.make("logistic")
    _, works = farm.version(made, "logistic", 1)
    with farm.load(works):
        before = farm.lives()
        retries, failures = counted("retries"), counted("failures")
        farm.halt(0)
        os.kill(before[0].process_id, signal.SIGKILL)
        wait_until(lambda: farm.processes.places[0].process is not before[0], "another process", WAIT_S)
        after = farm.lives()
    assert after[1] is before[1]
    assert after[0].process_id != before[0].process_id
    # It has all that the one before had.
    assert (after[0].graphs, after[0].weights) == (after[1].graphs, after[1].weights)
    assert farm.source.failed == []
    assert farm.source.left == [0]
    assert (counted("retries"), counted("failures")) == (retries + 1, failures + 1)


def test_work_that_a_process_may_have_died_of_is_not_tried_again(farm: Farm) -> None:
    made = farm.make("logistic")
    _, works = farm.version(made, "logistic", 1)
    farm.source.left.clear()
    with farm.load(works):
        before = farm.lives()
        farm.halt(1)
        os.kill(before[1].process_id, signal.SIGSEGV)
        os.kill(before[1].process_id, signal.SIGCONT)
        wait_until(lambda: farm.processes.places[1].process is not before[1], "another process", WAIT_S)
        farm.lives()
    (error,) = farm.source.failed
    assert isinstance(error, LaneLost)
    assert "SIGSEGV" in error.message
    assert farm.source.left == [1]


def test_a_process_that_has_made_all_it_may_is_replaced_without_a_gap(farm: Farm) -> None:
    made = farm.make("logistic")
    _, works = farm.version(made, "logistic", 1)
    farm.source.left.clear()
    with farm.load(works):
        second, before = farm.make("only_items"), farm.lives()
        assert all(life.graphs == {"logistic", "only_items"} for life in before)
        with pytest.raises(UsageError, match="more shapes together"):
            farm.make("deepfm")
        # Nothing has changed by it.
        assert farm.lives() == before
        del second
        recycles = counted("recycles")
        third = farm.make("deepfm")
        after = farm.lives()
        assert all(life.graphs == {"logistic", "deepfm"} for life in after)
        assert counted("recycles") == recycles + 2
        assert not any(is_there(life.process_id) for life in before)
        _, others = farm.version(third, "deepfm", 2)
        farm.source.works = [*works, *others]
        farm.source.go_on()
    assert farm.source.failed == []
    assert farm.source.left == []


_NODE = """
import os, sys, time
from streamlearn.serving.lanes.lane_process import LaneProcess
from streamlearn.settings import ServingSettings
life = LaneProcess(0, ServingSettings(device="cpu"), os.memfd_create("test"), 4096)
print(life.process_id, "tensorflow" in sys.modules, flush=True)
time.sleep(600)
"""


def test_no_process_outlives_its_node() -> None:
    node = subprocess.Popen([sys.executable, "-c", _NODE], stdout=subprocess.PIPE, text=True)
    try:
        assert node.stdout is not None
        pid, has_tensorflow = node.stdout.readline().split()
        assert has_tensorflow == "False"
        assert is_there(int(pid))
    finally:
        node.kill()
        node.communicate()
    wait_until(lambda: not is_there(int(pid)), "the end of a lane's process", WAIT_S)
