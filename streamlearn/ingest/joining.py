"""JoinLots: the step that joins each lot's events, and has its samples and its progress written.

It decides nothing: a lot's log, its ticks and its join are pure, and this reads and writes them as a runner has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
from apache_beam.coders import BytesCoder
from apache_beam.metrics import Metrics
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer

from streamlearn.apps import AppFolder, load_app
from streamlearn.ingest.join_meters import count_joined, count_rebuilt, count_waiting, note_held
from streamlearn.ingest.join_plan import JoinPlan
from streamlearn.ingest.lot_events import decode_lot
from streamlearn.ingest.lot_join import LotJoin
from streamlearn.ingest.lot_log import (
    LOG_BAGS,
    Entry,
    LogSpans,
    LotHead,
    decode_head,
    encode_head,
    pack_entry,
    unpack_entry,
    with_entry,
    without_passed,
)
from streamlearn.ingest.lot_shelf import LotShelf, open_shelf
from streamlearn.ingest.plan import ReadPlan
from streamlearn.ingest.progress_keeper import ProgressKeeper, close_keeper, open_keeper
from streamlearn.ingest.progress_log import ProgressLog
from streamlearn.ingest.sample_sink import MakesSamples, SampleSink
from streamlearn.ingest.source import timestamp_of
from streamlearn.ingest.statecache import use_byte_sizes
from streamlearn.ingest.ticks import TickRules, look_at, next_look_ms
from streamlearn.ingest.watermark import AFTER_ALL, BEFORE_ALL
from streamlearn.samples import SampleCodec

__all__ = ["METRICS", "JoinLots"]

# Under which a runner's own metrics have what `count_joined` has.
METRICS = "streamlearn.ingest"
MakerOf = Callable[[AppFolder, ReadPlan], MakesSamples]


class _Bench:
    """What one instance of the step works with, between setup and teardown."""

    def __init__(self, folder: AppFolder, plan: ReadPlan, maker_of: MakerOf) -> None:
        settings = folder.settings
        self.join_plan = JoinPlan.of(folder.app, plan.lineage.events_topic_id, settings.join, plan.start_ms)
        self.spans = LogSpans.of(self.join_plan)
        self.rules = TickRules(
            plan.partitions, max(1, round(1_000 * settings.ingest.tick_s)), round(1_000 * settings.ingest.flush_s)
        )
        self.rows_max = settings.samples.message_rows_max
        self.flush_s = settings.ingest.flush_s
        with ExitStack() as stack:
            self.sink = SampleSink(folder, plan, maker_of(folder, plan))
            stack.callback(self.sink.close)
            self.keeper = open_keeper(plan.progress_url, plan.run, lambda: _keeper_of(folder, plan, maker_of))
            stack.callback(close_keeper, plan.progress_url, plan.run)
            self.shelf: LotShelf = open_shelf(plan.progress_url, plan.run)
            self._opened = stack.pop_all()

    def close(self) -> None:
        self._opened.close()


class JoinLots(beam.DoFn):
    """(lot, events of that lot as bytes) in; samples and progress go to their topics, and nothing out.

    Guaranteed: samples are acknowledged before the bundle that made them ends, and progress is written after that; a
    bundle that fails leaves nothing behind: its join is made again from the log. Not guaranteed: that a row comes once.

    Args:
        plan: What is read.
        app: The application's folder, on the worker.
        changes: What `--set` says.
        maker_of: Makes the maker of samples, on the worker.
    """

    HEAD = ReadModifyWriteStateSpec("head", BytesCoder())
    BAGS = tuple(BagStateSpec(f"log{number}", BytesCoder()) for number in range(LOG_BAGS))
    TICK = TimerSpec("tick", TimeDomain.WATERMARK)

    def __init__(self, plan: ReadPlan, app: str, changes: tuple[str, ...], maker_of: MakerOf) -> None:
        self._plan, self._app, self._changes, self._maker_of = plan, app, changes, maker_of
        self._bench: _Bench | None = None
        self._reached_ms: dict[int, int] = {}
        self._has_last = False

    def setup(self) -> None:
        """Load the application and open its topics."""
        use_byte_sizes()
        self._bench = _Bench(load_app(Path(self._app), list(self._changes)), self._plan, self._maker_of)

    def start_bundle(self) -> None:
        """Forget what a bundle that failed had reached."""
        self._reached_ms, self._has_last = {}, False

    def process(
        self,
        element: tuple[int, bytes],
        head: Any = beam.DoFn.StateParam(HEAD),
        bag_0: Any = beam.DoFn.StateParam(BAGS[0]),
        bag_1: Any = beam.DoFn.StateParam(BAGS[1]),
        bag_2: Any = beam.DoFn.StateParam(BAGS[2]),
        bag_3: Any = beam.DoFn.StateParam(BAGS[3]),
        bag_4: Any = beam.DoFn.StateParam(BAGS[4]),
        bag_5: Any = beam.DoFn.StateParam(BAGS[5]),
        tick: Any = beam.DoFn.TimerParam(TICK),
    ) -> None:
        """Take in the events of one lot."""
        bench, bags = self._ready(), (bag_0, bag_1, bag_2, bag_3, bag_4, bag_5)
        lot, data = element
        events, before = decode_lot(data), decode_head(head.read())
        join = _join_of(bench, lot, before, bags)
        after = with_entry(before, events, bench.spans)
        if len(events):
            bags[after.current].add(pack_entry(Entry(before.entries, before.watermark_ms, data)))
            join.add(events, len(data))
            join.quiet = 0
            if join.waiting:
                count_waiting(1)
        wanted_ms = next_look_ms(after, join.next_deadline_ms(), bench.rules)
        if wanted_ms is not None and (after.armed_ms is None or wanted_ms < after.armed_ms):
            tick.set(timestamp_of(wanted_ms))
            after = msgspec.structs.replace(after, armed_ms=wanted_ms)
        self._keep(lot, join, head, after)

    @on_timer(TICK)
    def look(
        self,
        lot: Any = beam.DoFn.KeyParam,
        at: Any = beam.DoFn.TimestampParam,
        head: Any = beam.DoFn.StateParam(HEAD),
        bag_0: Any = beam.DoFn.StateParam(BAGS[0]),
        bag_1: Any = beam.DoFn.StateParam(BAGS[1]),
        bag_2: Any = beam.DoFn.StateParam(BAGS[2]),
        bag_3: Any = beam.DoFn.StateParam(BAGS[3]),
        bag_4: Any = beam.DoFn.StateParam(BAGS[4]),
        bag_5: Any = beam.DoFn.StateParam(BAGS[5]),
        tick: Any = beam.DoFn.TimerParam(TICK),
    ) -> None:
        """Give out what is due, and say how far the lot is."""
        bench, bags = self._ready(), (bag_0, bag_1, bag_2, bag_3, bag_4, bag_5)
        before = decode_head(head.read())
        join = _join_of(bench, lot, before, bags)
        found = look_at(before.partitions, at.micros // 1_000, bench.rules)
        reached_ms = found.limit_ms if found.limit_ms < AFTER_ALL else _end_ms(before, bench)
        for joined in join.advance(found.limit_ms, bench.rows_max):
            bench.sink.give(lot, joined, reached_ms)
        _count(join, bench)
        after = msgspec.structs.replace(
            before,
            watermark_ms=max(before.watermark_ms, found.limit_ms),
            given=before.entries - join.waiting,
            armed_ms=None,
        )
        after, cleared = without_passed(after, bench.spans)
        for number in cleared:
            bags[number].clear()
        if reached_ms > BEFORE_ALL:
            self._reached_ms[lot] = max(reached_ms, self._reached_ms.get(lot, reached_ms))
        self._has_last |= found.is_last
        if not found.is_last:
            wanted_ms = next_look_ms(after, join.next_deadline_ms(), bench.rules, join.quiet)
            if wanted_ms is not None:
                tick.set(timestamp_of(wanted_ms))
                after = msgspec.structs.replace(after, armed_ms=wanted_ms)
        self._keep(lot, join, head, after)

    def finish_bundle(self) -> None:
        """Have samples acknowledged, then say how far lots are."""
        bench = self._ready()
        spoken = bench.sink.flush()
        if self._reached_ms or spoken:
            bench.keeper.reached(self._reached_ms, spoken)
            note_held(bench.shelf.pending, bench.shelf.bytes)
        if self._has_last:
            bench.keeper.flush()

    def teardown(self) -> None:
        """Let go of topics."""
        if self._bench is not None:
            self._bench.close()
            self._bench = None

    def _ready(self) -> _Bench:
        assert self._bench is not None
        return self._bench

    def _keep(self, lot: int, join: LotJoin, head: Any, after: LotHead) -> None:
        """Write the head, and put the join back as what the head says."""
        assert self._bench is not None
        join.count += 1
        head.write(encode_head(msgspec.structs.replace(after, generation=join.generation, count=join.count)))
        self._bench.shelf.put(lot, join)


def _join_of(bench: _Bench, lot: int, head: LotHead, bags: Sequence[Any]) -> LotJoin:
    """The join in memory when it is what the head says; otherwise the one that the log is of."""
    found = bench.shelf.take(lot, head.generation, head.count)
    if found is not None:
        return found
    if not head.count:
        return LotJoin(bench.join_plan)
    count_rebuilt()
    filled = [bag for bag, said in zip(bags, head.bags, strict=True) if said.entries]
    return LotJoin.rebuild(bench.join_plan, head, [unpack_entry(data) for bag in filled for data in bag.read()])


def _end_ms(head: LotHead, bench: _Bench) -> int:
    """Where a lot is when nothing follows, ever: behind all that was due. Later events may still be appended."""
    known_ms = [one.before_ms for one in head.partitions.values() if one.before_ms < AFTER_ALL]
    last_ms = BEFORE_ALL if head.latest_ms == BEFORE_ALL else head.latest_ms + bench.join_plan.longest_window_ms + 1
    return max([head.watermark_ms, last_ms, *known_ms])


def _count(join: LotJoin, bench: _Bench) -> None:
    found = join.advanced()
    count_joined(found)
    for name, count in found.items():
        if count:
            Metrics.counter(METRICS, name).inc(count)
    now_s = time.monotonic()
    join.quiet = join.quiet + 1 if now_s - join.looked_s < bench.flush_s / 4 else 0
    join.looked_s = now_s


def _keeper_of(folder: AppFolder, plan: ReadPlan, maker_of: MakerOf) -> ProgressKeeper:
    # A maker is for one thread, and this one is another's.
    codec, maker = SampleCodec(folder.app, folder.settings.samples), maker_of(folder, plan)

    def open_writer(stack: ExitStack) -> Any:
        stack.callback(maker.close)
        topic = stack.enter_context(folder.open_topic("samples"))
        return stack.enter_context(topic.writer(folder.writer_settings)), topic.partitions

    def empty_message(lot: int, watermark_ms: int) -> bytes:
        return codec.encode(maker.empty(lot, watermark_ms))

    return ProgressKeeper(
        lambda: ProgressLog.open(plan.progress_url, plan.access),
        open_writer,
        empty_message,
        run=plan.run,
        lineage=plan.lineage,
        every_s=folder.settings.ingest.flush_s,
    )
