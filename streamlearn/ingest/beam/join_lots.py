"""JoinLots: the step that joins each lot's events, and has its samples and its progress written, in Beam's words.

It decides nothing: `LotStep` does, and this says so to a runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.metrics.metric import Metrics
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer

from streamlearn.apps import AppFolder, load_app
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
from streamlearn.ingest.output.progress_keeper import ProgressKeeper, close_keeper, open_keeper
from streamlearn.ingest.output.progress_log import ProgressLog
from streamlearn.ingest.output.sample_sink import MakesSamples, SampleSink
from streamlearn.ingest.output.sink_counts import RECENT
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.ingest.reading.watermark import BEFORE_ALL
from streamlearn.samples import SampleCodec
from streamlearn.topics import Writer

__all__ = ["METRICS", "JoinLots", "MakerOf"]

# Under which a runner's own metrics have what is counted.
METRICS = "streamlearn.ingest"
MakerOf: TypeAlias = Callable[[AppFolder, ReadPlan], MakesSamples]


class _BeamKept:
    """A lot's state and timer, as Beam hands them in."""

    def __init__(self, head: Any, bags: tuple[Any, ...], timer: Any) -> None:
        self._head, self._bags, self._timer = head, bags, timer

    def read_head(self) -> bytes | None:
        found: bytes | None = self._head.read()
        return found

    def write_head(self, head: bytes) -> None:
        self._head.write(head)

    def read_bag(self, bag: int) -> Iterable[bytes]:
        found: Iterable[bytes] = self._bags[bag].read()
        return found

    def add_to_bag(self, bag: int, entry: bytes) -> None:
        self._bags[bag].add(entry)

    def clear_bag(self, bag: int) -> None:
        self._bags[bag].clear()

    def set_timer(self, time_ms: int) -> None:
        self._timer.set(timestamp_of(time_ms))


class _InProcess(_BeamKept):
    """The same on a runner whose work is all in one process: the head stays here, and is not asked for."""

    def __init__(self, heads: dict[int, bytes], lot: int, timer: Any) -> None:
        super().__init__(None, (), timer)
        self._heads, self._lot = heads, lot

    def read_head(self) -> bytes | None:
        return self._heads.get(self._lot)

    def write_head(self, head: bytes) -> None:
        self._heads[self._lot] = head


class _Bench:
    """What one instance of the step works with, between setup and teardown."""

    def __init__(
        self, folder: AppFolder, plan: ReadPlan, maker_of: MakerOf, *, in_process: bool, timer_lag_ms: int
    ) -> None:
        settings = folder.settings
        tick_ms, flush_ms = (max(1, round(1_000 * one)) for one in (settings.ingest.tick_s, settings.ingest.flush_s))
        rules = TickRules(plan.partitions, tick_ms, flush_ms, timer_lag_ms)
        join_plan = JoinPlan.of(folder.app, plan.lineage.events_topic_id, settings.join, plan.start_ms)
        self.handing = lot_handing(plan, in_process=in_process)
        # Nothing of such a runner outlives its process: what is logged there could never be read.
        keeps_log = not in_process
        self.shelf = open_shelf(plan.progress_url, plan.run, settings.join.process_bytes_max, drops=keeps_log)
        rows_max = settings.samples.message_rows_max
        self.step = LotStep(join_plan, rules, self.shelf, rows_max=rows_max, keeps_log=keeps_log)
        with ExitStack() as stack:
            self.sink = SampleSink(folder, plan, maker_of(folder, plan))
            stack.callback(self.sink.close)
            self.keeper = open_keeper(plan.progress_url, plan.run, lambda: _keeper_of(folder, plan, maker_of))
            stack.callback(close_keeper, plan.progress_url, plan.run)
            self._opened = stack.pop_all()

    def close(self) -> None:
        self._opened.close()


class JoinLots(beam.DoFn):
    """(lot, events of that lot, or a ticket for them) in; samples and progress go to their topics, and nothing out.

    Guaranteed: samples are acknowledged before the bundle that made them ends, and progress is written after that; a
    bundle that fails leaves nothing behind: its join is made again from the log. Not guaranteed: that a row comes once.

    Args:
        plan: What is read.
        app: The application's folder, on the worker.
        changes: What `--set` says.
        maker_of: Makes the maker of samples, on the worker.
        in_process: Whether elements stay in the process, and no log is kept beyond it; for runners that run all in one
            process, and give no element twice.
        timer_lag_ms: So far beyond a timer the runner's event time has to be for it to fire.
    """

    HEAD = ReadModifyWriteStateSpec("head", BytesCoder())
    STATES = tuple(BagStateSpec(f"log{number}", BytesCoder()) for number in range(BAGS))
    TICK = TimerSpec("tick", TimeDomain.WATERMARK)

    def __init__(
        self,
        plan: ReadPlan,
        app: str,
        changes: tuple[str, ...],
        maker_of: MakerOf,
        *,
        in_process: bool = False,
        timer_lag_ms: int = 0,
    ) -> None:
        self._plan, self._app, self._changes, self._maker_of = plan, app, changes, maker_of
        self._in_process, self._timer_lag_ms = in_process, timer_lag_ms
        self._bench: _Bench | None = None
        self._reached_ms: dict[int, int] = {}
        self._ended: set[int] = set()

    def setup(self) -> None:
        """Load the application and open its topics."""
        use_byte_sizes()
        folder = load_app(Path(self._app), list(self._changes))
        self._bench = _Bench(
            folder, self._plan, self._maker_of, in_process=self._in_process, timer_lag_ms=self._timer_lag_ms
        )

    def start_bundle(self) -> None:
        """Forget what a bundle that failed had reached."""
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
        ROUNDS.note()
        bags = (bag_0, bag_1, bag_2, bag_3, bag_4, bag_5, bag_6, bag_7, bag_8, bag_9)
        bench = self._ready()
        bench.shelf.claim(element[0], self)
        kept = _InProcess(bench.shelf.heads, element[0], tick) if self._in_process else _BeamKept(head, bags, tick)
        lot, data = element
        bench.step.take_in(lot, bench.handing.take(data), kept, None if self._in_process else data)

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
        """Give out what is due, and say how far the lot is."""
        ROUNDS.note()
        bags = (bag_0, bag_1, bag_2, bag_3, bag_4, bag_5, bag_6, bag_7, bag_8, bag_9)
        bench = self._ready()
        bench.shelf.claim(lot, self)
        kept = _InProcess(bench.shelf.heads, lot, tick) if self._in_process else _BeamKept(head, bags, tick)
        found = bench.step.look(lot, at.micros // 1_000, kept, bench.sink.give)
        _count(found.counts)
        if found.reached_ms > BEFORE_ALL:
            self._reached_ms[lot] = max(found.reached_ms, self._reached_ms.get(lot, found.reached_ms))
        if found.is_last:
            self._ended.add(lot)

    def finish_bundle(self) -> None:
        """Have samples acknowledged, then say how far lots are."""
        bench = self._ready()
        spoken = bench.sink.flush()
        if self._reached_ms or spoken:
            bench.keeper.reached(self._reached_ms, spoken)
            note_held(bench.shelf.pending, bench.shelf.bytes, bench.shelf.fullness)
        if self._ended:
            bench.keeper.end(self._ended)
        bench.shelf.release(self)

    def teardown(self) -> None:
        """Let go of topics."""
        if self._bench is not None:
            self._bench.shelf.release(self)  # of a bundle that failed
            self._bench.close()
            self._bench = None

    def _ready(self) -> _Bench:
        assert self._bench is not None
        return self._bench


def _count(found: Mapping[str, int]) -> None:
    count_joined(found)
    for name, count in found.items():
        if count:
            Metrics.counter(METRICS, name).inc(count)  # type: ignore[no-untyped-call]


def _keeper_of(folder: AppFolder, plan: ReadPlan, maker_of: MakerOf) -> ProgressKeeper:
    # A maker is for one thread, and this one is another's.
    codec, maker = SampleCodec(folder.app, folder.settings.samples), maker_of(folder, plan)

    def open_writer(stack: ExitStack) -> tuple[Writer, int]:
        stack.callback(maker.close)
        topic = stack.enter_context(folder.open_topic("samples"))
        return stack.enter_context(topic.writer(folder.writer_settings)), topic.partitions

    return ProgressKeeper(
        lambda: ProgressLog.open(plan.progress_url, plan.access),
        open_writer,
        lambda lot, watermark_ms: codec.encode(maker.empty(lot, watermark_ms)),
        run=plan.run,
        lineage=plan.lineage,
        every_s=folder.settings.ingest.flush_s,
        dead_share=lambda: RECENT.share(folder.settings.ingest.dead_share_max),
    )
