"""JoinLots: the step that joins each lot's events, and writes its samples and progress.

`LotStep` decides; this module connects it to Beam.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.metrics.metric import Metrics
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer

from streamlearn.apps import AppFolder
from streamlearn.ingest.beam.cut_lots import lot_handing
from streamlearn.ingest.beam.rounds import ROUNDS
from streamlearn.ingest.beam.source import timestamp_of
from streamlearn.ingest.beam.state_cache import use_byte_sizes
from streamlearn.ingest.join.join_cache import open_shelf
from streamlearn.ingest.join.lot_log import BAGS
from streamlearn.ingest.join.lot_step import LotStep
from streamlearn.ingest.join.meters import count_joined, note_held
from streamlearn.ingest.join.plan import JoinPlan
from streamlearn.ingest.join.ticks import TickRules
from streamlearn.ingest.output.progress_keeper import KEEPERS, ProgressKeeper
from streamlearn.ingest.output.sample_maker import SampleMaker
from streamlearn.ingest.output.sample_sink import SampleSink
from streamlearn.ingest.output.sink_counts import RECENT
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.ingest.reading.watermark import BEFORE_ALL

__all__ = ["METRICS", "JoinLots", "JoinLotsInProcess"]

# The namespace of the counters in a runner's own metrics.
METRICS = "streamlearn.ingest"


class _BeamState:
    """A lot's state and timer, as Beam passes them in."""

    def __init__(self, head: Any, bags: tuple[Any, ...], timer: Any) -> None:
        self._head, self._bags, self._timer = head, bags, timer

    def read_head(self) -> Any:
        return self._head.read()

    def write_head(self, head: bytes) -> None:
        self._head.write(head)

    def read_bag(self, bag: int) -> Any:
        return self._bags[bag].read()

    def add_to_bag(self, bag: int, entry: bytes) -> None:
        self._bags[bag].add(entry)

    def clear_bag(self, bag: int) -> None:
        self._bags[bag].clear()

    def set_timer(self, time_ms: int) -> None:
        self._timer.set(timestamp_of(time_ms))


class _ProcessState(_BeamState):
    """The same on a runner with a single process: the head stays in this process, and there is no log."""

    def __init__(self, heads: dict[int, bytes], lot: int, timer: Any) -> None:
        super().__init__(None, (), timer)
        self._heads, self._lot = heads, lot

    def read_head(self) -> bytes | None:
        return self._heads.get(self._lot)

    def write_head(self, head: bytes) -> None:
        self._heads[self._lot] = head


class _Resources:
    """The resources of one instance of the step, between setup and teardown."""

    def __init__(self, plan: ReadPlan, *, in_process: bool, timer_lag_ms: int) -> None:
        folder = plan.load_app()
        settings = folder.settings
        tick_ms, flush_ms = (max(1, round(1_000 * s)) for s in (settings.ingest.tick_s, settings.ingest.flush_s))
        rules = TickRules(plan.partitions, tick_ms, flush_ms, timer_lag_ms)
        join_plan = JoinPlan.of(folder.app, plan.lineage.events_topic_id, settings.join, plan.start_ms)
        self.handing = lot_handing(plan, in_process=in_process)
        # With such a runner nothing outlives the process, so a log could never be read.
        keeps_log = not in_process
        self.shelf = open_shelf(plan.progress_url, plan.run, settings.join.process_bytes_max, drops=keeps_log)
        self.step = LotStep(
            join_plan, rules, self.shelf, rows_max=settings.samples.message_rows_max, keeps_log=keeps_log
        )
        with ExitStack() as stack:
            self.sink = SampleSink(folder, plan, SampleMaker(folder, plan.lineage, plan.run))
            stack.callback(self.sink.close)
            self.keeper = KEEPERS.acquire(plan.run_key, lambda: _keeper_of(folder, plan))
            stack.callback(KEEPERS.release, plan.run_key)
            self.close = stack.pop_all().close


class JoinLots(beam.DoFn):
    """(lot, events of that lot, or a ticket for them) in; samples and progress go to their topics.

    Guaranteed: samples are acknowledged before the bundle that made them ends, and progress is written after that; a
    bundle that fails leaves nothing behind: its join is rebuilt from the log. Not guaranteed: that a row comes once.

    If `in_process`, elements stay in the process, and there is no log; for runners that run all work in one process,
    and deliver no element twice. A runner fires a timer only once its event time is `timer_lag_ms` beyond it.
    """

    HEAD = ReadModifyWriteStateSpec("head", BytesCoder())
    STATES = tuple(BagStateSpec(f"log{number}", BytesCoder()) for number in range(BAGS))
    TICK = TimerSpec("tick", TimeDomain.WATERMARK)

    def __init__(self, plan: ReadPlan, *, in_process: bool = False, timer_lag_ms: int = 0) -> None:
        self._plan, self._in_process, self._timer_lag_ms = plan, in_process, timer_lag_ms
        self._resources: _Resources | None = None
        self._reached_ms: dict[int, int] = {}
        self._ended: set[int] = set()

    def setup(self) -> None:
        """Load the application and open its topics."""
        use_byte_sizes()
        self._resources = _Resources(self._plan, in_process=self._in_process, timer_lag_ms=self._timer_lag_ms)

    def start_bundle(self) -> None:
        """Discard what a failed bundle had reached."""
        self._reached_ms, self._ended = {}, set()
        self._ready().shelf.release(self)

    def process(
        self,
        element: tuple[int, bytes],
        head: Any = beam.DoFn.StateParam(HEAD),
        bag_0: Any = beam.DoFn.StateParam(STATES[0]),
        bag_1: Any = beam.DoFn.StateParam(STATES[1]),
        bag_2: Any = beam.DoFn.StateParam(STATES[2]),
        bag_3: Any = beam.DoFn.StateParam(STATES[3]),
        bag_4: Any = beam.DoFn.StateParam(STATES[4]),
        bag_5: Any = beam.DoFn.StateParam(STATES[5]),
        bag_6: Any = beam.DoFn.StateParam(STATES[6]),
        bag_7: Any = beam.DoFn.StateParam(STATES[7]),
        bag_8: Any = beam.DoFn.StateParam(STATES[8]),
        bag_9: Any = beam.DoFn.StateParam(STATES[9]),
        tick: Any = beam.DoFn.TimerParam(TICK),
    ) -> None:
        """Take in the events of one lot."""
        bags = (bag_0, bag_1, bag_2, bag_3, bag_4, bag_5, bag_6, bag_7, bag_8, bag_9)
        self._take_in(*element, _BeamState(head, bags, tick))

    @on_timer(TICK)
    def look(
        self,
        lot: Any = beam.DoFn.KeyParam,
        at: Any = beam.DoFn.TimestampParam,
        head: Any = beam.DoFn.StateParam(HEAD),
        bag_0: Any = beam.DoFn.StateParam(STATES[0]),
        bag_1: Any = beam.DoFn.StateParam(STATES[1]),
        bag_2: Any = beam.DoFn.StateParam(STATES[2]),
        bag_3: Any = beam.DoFn.StateParam(STATES[3]),
        bag_4: Any = beam.DoFn.StateParam(STATES[4]),
        bag_5: Any = beam.DoFn.StateParam(STATES[5]),
        bag_6: Any = beam.DoFn.StateParam(STATES[6]),
        bag_7: Any = beam.DoFn.StateParam(STATES[7]),
        bag_8: Any = beam.DoFn.StateParam(STATES[8]),
        bag_9: Any = beam.DoFn.StateParam(STATES[9]),
        tick: Any = beam.DoFn.TimerParam(TICK),
    ) -> None:
        """Emit what is due, and note the progress of the lot."""
        bags = (bag_0, bag_1, bag_2, bag_3, bag_4, bag_5, bag_6, bag_7, bag_8, bag_9)
        self._look(lot, at, _BeamState(head, bags, tick))

    def _take_in(self, lot: int, data: bytes, state: _BeamState) -> None:
        resources = self._claim(lot)
        events, logged = resources.handing.take(data), None if self._in_process else data
        resources.step.take_in(lot, events, state, resources.sink.give, logged)

    def _look(self, lot: int, at: Any, state: _BeamState) -> None:
        resources = self._claim(lot)
        looked = resources.step.look(lot, at.micros // 1_000, state, resources.sink.give)
        count_joined(looked.counts)
        for name, count in looked.counts.items():
            if count:
                Metrics.counter(METRICS, name).inc(count)  # type: ignore[no-untyped-call]
        if looked.reached_ms > BEFORE_ALL:
            self._reached_ms[lot] = max(looked.reached_ms, self._reached_ms.get(lot, looked.reached_ms))
        if looked.is_last:
            self._ended.add(lot)

    def finish_bundle(self) -> None:
        """Flush samples, then report the progress of lots."""
        resources = self._ready()
        partitions = resources.sink.flush()
        if self._reached_ms or partitions:
            resources.keeper.reached(self._reached_ms, partitions)
            note_held(resources.shelf.pending, resources.shelf.bytes, resources.shelf.fullness)
        if self._ended:
            resources.keeper.end(self._ended)
        resources.shelf.release(self)

    def teardown(self) -> None:
        """Close topics."""
        if self._resources is not None:
            self._resources.shelf.release(self)  # after a failed bundle
            self._resources.close()
            self._resources = None

    def _ready(self) -> _Resources:
        assert self._resources is not None
        return self._resources

    def _claim(self, lot: int) -> _Resources:
        ROUNDS.set()
        resources = self._ready()
        resources.shelf.claim(lot, self)
        return resources


class JoinLotsInProcess(JoinLots):
    """The same where elements stay in the process: Beam passes in no bags, which costs more the more a step has."""

    TIMER = TimerSpec("tick", TimeDomain.WATERMARK)

    def __init__(self, plan: ReadPlan) -> None:
        super().__init__(plan, in_process=True)

    def process(  # type: ignore[override]
        self,
        element: tuple[int, bytes],
        head: Any = beam.DoFn.StateParam(JoinLots.HEAD),
        tick: Any = beam.DoFn.TimerParam(TIMER),
    ) -> None:
        """Take in the events of one lot. A runner gives a key of a step with a state to one bundle at a time."""
        self._take_in(*element, _ProcessState(self._ready().shelf.heads, element[0], tick))

    @on_timer(TIMER)
    def look(  # type: ignore[override]
        self,
        lot: Any = beam.DoFn.KeyParam,
        at: Any = beam.DoFn.TimestampParam,
        head: Any = beam.DoFn.StateParam(JoinLots.HEAD),
        tick: Any = beam.DoFn.TimerParam(TIMER),
    ) -> None:
        """Emit what is due, and note the progress of the lot."""
        self._look(lot, at, _ProcessState(self._ready().shelf.heads, lot, tick))


def _keeper_of(folder: AppFolder, plan: ReadPlan) -> ProgressKeeper:
    settings, maker = folder.settings.ingest, SampleMaker(folder, plan.lineage, plan.run)
    dead_share = partial(RECENT.share, settings.dead_share_max)
    return ProgressKeeper(folder, plan, maker, every_s=settings.flush_s, dead_share=dead_share)
