"""Backfill: samples of bounded history, one stretch of event time after another, on any runner.

It uses the same join core and sample maker as continuous ingest, and writes no progress.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import apache_beam as beam
import msgspec
import numpy as np
import numpy.typing as npt
from apache_beam.metrics.metric import Metrics
from apache_beam.options.pipeline_options import PipelineOptions

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import StreamlearnError, TopicMissing
from streamlearn.events import Origin
from streamlearn.ingest.backfill.history_range import HistoryRange
from streamlearn.ingest.backfill.offset_times import offset_times
from streamlearn.ingest.backfill.stretch import NO_INGEST, Stretch, cut_stretches, own_of, stretch_of
from streamlearn.ingest.backfill.stretch_reader import read_stretch, with_events
from streamlearn.ingest.beam.cut_lots import CuttingStep
from streamlearn.ingest.beam.prism import Prism
from streamlearn.ingest.beam.runners import counters_of, require_job_server, runner_options
from streamlearn.ingest.beam.worker_errors import WorkerErrors, failure_of
from streamlearn.ingest.beam.worker_pool import listen_on_loopback
from streamlearn.ingest.join.core import JoinCore
from streamlearn.ingest.join.lot_events import LotEvents, decode_lot, encode_lot
from streamlearn.ingest.join.plan import JoinPlan
from streamlearn.ingest.join.time_order import in_time_order, joined_columns, taken_columns
from streamlearn.ingest.output.fingerprint_check import require_alike
from streamlearn.ingest.output.progress_log import ProgressLog
from streamlearn.ingest.output.sample_maker import SampleMaker
from streamlearn.ingest.output.sample_sink import SampleSink, write_watermark
from streamlearn.ingest.output.sink_counts import Written, count_read
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.ingest.reading.start import plan_backfill
from streamlearn.native import native
from streamlearn.topics import Reader, open_topic

__all__ = ["BackfillReport", "run_backfill"]

_LOG = logging.getLogger(__name__)
_METRICS = "streamlearn.backfill"
_STEP_EVENTS = 10_000
_ROWS_MAX = 20_000
_FOREVER_MS = 1 << 60
_LOOK_MS, _NEAR_MS = 10_000, 1_000
# The names of the join's counters, by `LetterKind`.
_LETTERS = ("impressions_late", "impressions_excess", "actions_late", "actions_orphan", "actions_excess")
_COUNTED = ("impressions", "actions", "rows", "positives", "negatives", *_LETTERS, "letters")


@dataclass(frozen=True)
class BackfillReport:
    """The result of a backfill; all its samples are acknowledged.

    Attributes:
        begin_ms: Event time of the first impressions that made samples.
        end_ms: The end, exclusive.
        stretches: Stretches that had events.
        seconds: Its duration.
        counts: Events, rows and letters, by name; `impressions_missed` if named records have impressions that were not
            found.
        written: Samples and dead letters.
    """

    begin_ms: int
    end_ms: int
    stretches: int
    seconds: float
    counts: Mapping[str, int]
    written: Written


class _ReadStretch(CuttingStep):
    """Partitions in, (lot, events of that lot as bytes) of one stretch out.

    Only the stretch that a record's timestamp belongs to writes the record's dead letters.
    """

    def __init__(self, plan: ReadPlan, stretch: Stretch) -> None:
        super().__init__(plan)
        self._stretch = stretch

    def process(self, partition: int) -> Iterator[tuple[int, bytes]]:
        """Read one partition of both topics."""
        assert self._opened is not None
        cutter, letters = self._opened
        events_topic_id = self._plan.lineage.events_topic_id
        for blob in read_stretch(self._plan, self._stretch, partition):
            cut = cutter.cut(blob)
            own = _own_records([origin for _, origin in cut.failures], self._stretch, events_topic_id)
            letters.give(compress(cut.failures, own))
            for events in cut.lots:
                needed = _needed(events, self._stretch)
                if len(needed):
                    yield events.lot, encode_lot(needed)


class _JoinStretch(beam.DoFn):
    """(lot, all its events of a stretch) in; samples go to their topic.

    Guaranteed: samples are acknowledged before the bundle that made them ends. Not guaranteed: that a row comes once.
    """

    def __init__(self, plan: ReadPlan, stretch: Stretch) -> None:
        self._plan, self._stretch = plan, stretch
        self._opened: tuple[JoinPlan, SampleSink] | None = None

    def setup(self) -> None:
        """Load the application and open its topics."""
        plan, folder = self._plan, self._plan.load_app()
        # Event time keeps old samples out of the latency metric.
        sink_plan = replace(plan, rules=msgspec.structs.replace(plan.rules, time="event"))
        maker = SampleMaker(folder, plan.lineage, plan.run)
        sink = SampleSink(folder, sink_plan, maker, interactions=self._stretch.interactions)
        join_plan = JoinPlan.of(folder.app, plan.lineage.events_topic_id, folder.settings.join)
        self._opened = join_plan if self._stretch.interactions else replace(join_plan, makes="nothing"), sink

    def process(self, element: tuple[int, Iterable[bytes]]) -> None:
        """Join one lot."""
        assert self._opened is not None
        plan, sink = self._opened
        lot, parts = element
        counts = _join_stretch(plan, self._stretch, lot, [decode_lot(part) for part in parts], sink)
        for name, count in counts.items():
            Metrics.counter(_METRICS, name).inc(count)  # type: ignore[no-untyped-call]
        # Counted here, where events belong to one stretch: reading counts events of two stretches twice.
        count_read(counts["impressions"] + max(counts["actions"], counts["letters"]))

    def finish_bundle(self) -> None:
        """Flush samples and letters."""
        assert self._opened is not None
        self._opened[1].flush()

    def teardown(self) -> None:
        """Close topics."""
        if self._opened is not None:
            self._opened[1].close()
            self._opened = None


def _join_stretch(
    plan: JoinPlan, stretch: Stretch, lot: int, parts: Sequence[LotEvents], sink: SampleSink
) -> dict[str, int]:
    """Join a lot's events of a stretch, given in any order, in time order; give `sink` what belongs to the stretch.

    Returns how many events, rows and labels belong to the stretch, by ingest's names; and letters. Raises `JoinFull` if
    the lot's events of a longest window do not fit into `join.pending_bytes_max`.
    """
    core, counts = JoinCore(plan), Counter(dict.fromkeys(_COUNTED, 0))
    if not parts:
        return counts
    impressions = joined_columns([part.impressions for part in parts])
    actions = joined_columns([part.actions for part in parts])
    counts["impressions"] = int(stretch.owns(impressions).sum())
    counts["actions"] = int(stretch.is_own(actions.event_time_ms).sum()) if stretch.records is None else 0

    def give(watermark_ms: int) -> None:
        core.advance(watermark_ms)
        while core.ready or core.letters:
            own = own_of(core.take(_ROWS_MAX), stretch)
            counts.update(rows=len(own.rows), letters=len(own.letters))
            counts.update(_LETTERS[kind] for kind in own.letters.kind.tolist())
            positives, settled = (int(np.bitwise_count(masks).sum()) for masks in (own.rows.labels, own.rows.settles))
            counts.update(positives=positives, negatives=settled - positives)
            sink.give(lot, own, min(watermark_ms, stretch.watermark_ms))

    for shown, done, until_ms in in_time_order(impressions, actions, _STEP_EVENTS):
        core.add_impressions(shown)
        core.add_actions(done)
        give(until_ms)
    give(_FOREVER_MS)
    return counts


def _needed(events: LotEvents, stretch: Stretch) -> LotEvents:
    """Return the events that a stretch needs; impressions of other stretches without their bytes."""
    impressions = taken_columns(events.impressions, _within(events.impressions.event_time_ms, stretch.impressions_ms))
    actions = taken_columns(events.actions, _within(events.actions.event_time_ms, stretch.actions_ms))
    own = stretch.owns(impressions)
    if not own.all():
        counts = np.diff(impressions.payload_at) * own
        payload, _ = native.take_spans(impressions.payload, impressions.payload_at, np.flatnonzero(own))
        payload_at = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        impressions = replace(impressions, payload=payload, payload_at=payload_at)
    return replace(events, impressions=impressions, actions=actions)


def _own_records(origins: Sequence[Origin], stretch: Stretch, events_topic_id: str) -> list[bool]:
    """Return of which records of either topic a stretch writes dead letters."""
    own = stretch.is_own(np.array([origin.timestamp_ms for origin in origins], np.int64))
    if stretch.records is not None:
        partitions = np.array([origin.partition for origin in origins], np.int32)
        own &= stretch.has(partitions, np.array([origin.offset for origin in origins], np.int64))
        own &= np.array([origin.topic_id == events_topic_id for origin in origins], np.bool_)
    flags: list[bool] = own.tolist()
    return flags


def _within(times_ms: npt.NDArray[np.int64], bounds_ms: tuple[int, int]) -> npt.NDArray[np.int64]:
    return np.flatnonzero((times_ms >= bounds_ms[0]) & (times_ms <= bounds_ms[1]))


def _add_steps(pipeline: beam.Pipeline, plan: ReadPlan, stretch: Stretch) -> None:
    """Add the steps of a backfill of one stretch to a pipeline."""
    read: Any = beam.ParDo(_ReadStretch(plan, stretch))  # type: ignore[no-untyped-call]
    join: Any = beam.ParDo(_JoinStretch(plan, stretch))  # type: ignore[no-untyped-call]
    everything = range(plan.partitions)
    numbers = everything if stretch.records is None else sorted({partition for partition, *_ in stretch.records})
    partitions: Any = beam.Create(list(numbers))  # type: ignore[no-untyped-call]
    spread: Any = beam.Reshuffle()  # type: ignore[no-untyped-call]
    group: Any = beam.GroupByKey()  # type: ignore[no-untyped-call]
    _ = pipeline | partitions | spread | "Read" >> read | group | "Join" >> join


def run_backfill(
    folder: AppFolder,
    within: HistoryRange | None = None,
    *,
    changes: Sequence[str] = (),
    runner: str = "",
    accept_lost: bool = False,
    interactions: bool = False,
    more: Sequence[str] = (),
    clock: Clock = SYSTEM_CLOCK,
) -> BackfillReport:
    """Make the samples of history, one stretch of `ingest.stretch_s` after another.

    The topics are taken as complete: rows whose windows reach beyond their end are settled with the known actions. It
    may be repeated, and may run during ingest: rows are learned once, and rows due after the acknowledged progress of
    ingest are learned once ingest has passed them.

    Args:
        folder: The application; workers load it from the same folder.
        within: The impressions; None: all.
        changes: The values of `--set`.
        runner: A runner's name; empty: the setting.
        interactions: Whether interactions are written too. Who folds their topic finds repeated ones only among the
            last `features.repeats_max`, so write them into a topic that does not have them.
        accept_lost: Begin where the topics still have records, even if records that are needed were deleted.
        more: Further Beam options.
        clock: Measures the duration.

    Raises:
        UsageError: The topic has no such partition; the runner is wrong.
        PositionLost: An offset is outside the topic; or records that are needed may have been deleted.
        TopicError: A topic is missing, or cannot be reached.
        ConfigError: The topic has samples with other features.
        StreamlearnError: A worker raised it.
    """
    within = within or HistoryRange()
    options = runner_options(folder.settings.ingest, runner=runner, is_bounded=True, more=more)
    require_job_server(options)
    for topic in ("samples", "dead_letters", *(("interactions",) if interactions else ())):
        folder.open_topic(topic).close()
    require_alike(folder)
    begun_s, plan = clock.monotonic_s(), plan_backfill(folder, clock=clock)
    plan = replace(plan, accept_lost=accept_lost, app=str(folder.folder.resolve()), changes=tuple(changes))
    counts = dict.fromkeys(_COUNTED, 0)
    plan, stretches, expected = _stretches(folder, plan, within, clock)
    live_ms = _live_ms(folder, plan.lineage.lots_count)
    if live_ms != NO_INGEST and stretches and live_ms < stretches[-1].watermark_ms:
        message = "rows due after %d are learned once ingest, which already reads there, has passed them"
        _LOG.warning(message, live_ms)
    if plan.rules.time == "wall":
        # A later watermark would make rows of events from now on old.
        live_ms = min(live_ms, clock.wall_ms() - plan.rules.out_of_orderness_ms)
    stretches = [replace(stretch, live_ms=live_ms, interactions=interactions) for stretch in stretches]
    written: list[Written] = []
    with ExitStack() as stack:
        prism = Prism.of(options)
        if prism is not None:
            stack.callback(prism.stop)
        for number, stretch in enumerate(stretches):
            stretch_counts, stretch_written = _run_stretch(plan, stretch, options, prism)
            written.append(stretch_written)
            for name, count in stretch_counts.items():
                counts[name] += count
            write_watermark(folder, plan, stretch.watermark_ms)
            _LOG.info("stretch %d of %d: %d rows so far", number + 1, len(stretches), counts["rows"])
    if expected is not None and counts["impressions"] < expected:
        counts["impressions_missed"] = expected - counts["impressions"]
        message = (
            "%d impressions were out of order by more than the longest window and were not found; run the "
            "backfill again with ingest.out_of_orderness_s at least that long: rows already learned are not "
            "learned twice"
        )
        _LOG.warning(message, counts["impressions_missed"])
    begin = stretches[0].begin_ms if stretches else within.begin_ms or 0
    end = stretches[-1].end_ms if stretches else within.end_ms or 0
    seconds = clock.monotonic_s() - begun_s
    return BackfillReport(begin, end, len(stretches), seconds, counts, Written.sum(written))


def _run_stretch(
    plan: ReadPlan, stretch: Stretch, options: PipelineOptions, prism: Prism | None
) -> tuple[dict[str, int], Written]:
    """Run the pipeline of one stretch; return its counts, and the samples and letters it wrote."""
    pipeline = prism.pipeline() if prism else beam.Pipeline(options=options)
    _add_steps(pipeline, plan, stretch)
    listen_on_loopback()
    with WorkerErrors() as errors:
        try:
            result: Any = pipeline.run()
            result.wait_until_finish()
        except StreamlearnError:  # from a runner within this process
            raise
        except Exception as error:
            raise (prism and prism.failure(error)) or failure_of([*errors.texts, str(error)]) from error
    return counters_of(result, _METRICS), Written.of(result)


def _stretches(
    folder: AppFolder, plan: ReadPlan, within: HistoryRange, clock: Clock
) -> tuple[ReadPlan, list[Stretch], int | None]:
    """Return the plan, its stretches, and for a range of records how many impressions they have."""
    join_plan = JoinPlan.of(folder.app, plan.lineage.events_topic_id, folder.settings.join)
    stretch_ms = round(1_000 * folder.settings.ingest.stretch_s)
    if not within.by_offsets:
        plan = replace(plan, accept_lost=plan.accept_lost or within.begin_ms is None)
        bounds = _bounds(plan, within.begin_ms, within.end_ms, stretch_ms)
        return plan, with_events(plan, [stretch_of(join_plan, *times_ms) for times_ms in bounds]), None
    times = offset_times(folder, plan, within, clock=clock)
    if not times.records:
        return plan, [], 0
    bounds = cut_stretches(times.first_ms, times.last_ms + 1, stretch_ms)
    stretches = [replace(stretch_of(join_plan, *times_ms), records=times.records) for times_ms in bounds]
    return plan, with_events(plan, stretches), times.impressions


def _live_ms(folder: AppFolder, lots_count: int) -> int:
    """Return the event time that ingest has acknowledged in every lot: a later watermark would make its rows late."""
    try:
        with ProgressLog.open(folder.topic_url("progress"), folder.access) as log:
            standing = log.standing()
    except TopicMissing:
        return NO_INGEST
    if not standing.run:
        return NO_INGEST
    known_ms = [progress.watermark_ms for progress in standing.lots.values() if progress.lot < lots_count]
    return min(known_ms) if len(known_ms) == lots_count else 0


def _bounds(plan: ReadPlan, begin_ms: int | None, end_ms: int | None, stretch_ms: int) -> list[tuple[int, int]]:
    """Return begin and end of each stretch; none if there are no events."""
    times: list[tuple[int, int]] = []
    for url in (plan.impressions_url, plan.actions_url):
        with open_topic(url, plan.access) as topic, topic.reader() as reader:
            times += filter(None, (_times(reader, partition, stretch_ms) for partition in range(topic.partitions)))
    if not times:
        return []
    # Events of a record may be earlier than its timestamp, and none is later.
    first_ms = min(first for first, _ in times) if begin_ms is None else begin_ms
    last_ms = max(last for _, last in times) if end_ms is None else end_ms
    bounds = cut_stretches(first_ms, max(last_ms, first_ms + 1), stretch_ms)
    if begin_ms is None:
        bounds[0] = (0, bounds[0][1])
    return bounds


def _times(reader: Reader, partition: int, step_ms: int) -> tuple[int, int] | None:
    """Return the time of a partition's first record, and a time after all its records; None if it is empty."""
    begin, end = reader.earliest(partition), reader.end(partition)
    records = reader.read(partition, begin, max_records=1, wait_ms=_LOOK_MS) if begin < end else None
    if records is None or not len(records):
        return None
    first_ms = int(records.timestamps_ms[0])
    low, high = first_ms, first_ms + step_ms
    while reader.offset_for_time(partition, high) < end:
        low, high = high, first_ms + 2 * (high - first_ms)
    while high - low > _NEAR_MS:
        middle = (low + high) // 2
        low, high = (middle, high) if reader.offset_for_time(partition, middle) < end else (low, middle)
    return first_ms, high
