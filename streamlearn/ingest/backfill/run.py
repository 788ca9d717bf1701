"""Backfill: samples of bounded history, a stretch of event time after another, on any runner.

It joins by the same core and makes samples by the same maker as ingest that goes on for ever, and writes no progress.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import apache_beam as beam
import msgspec
import numpy as np
import numpy.typing as npt
from apache_beam.metrics.metric import Metrics
from apache_beam.options.pipeline_options import PipelineOptions

from streamlearn.apps import AppFolder, load_app
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import StreamlearnError, TopicMissing
from streamlearn.events import Origin
from streamlearn.ingest.backfill.history_range import HistoryRange
from streamlearn.ingest.backfill.offset_times import offset_times
from streamlearn.ingest.backfill.stretch import NO_INGEST, Stretch, cut_stretches, own_of, stretch_of
from streamlearn.ingest.backfill.stretch_reader import read_stretch, with_events
from streamlearn.ingest.beam.cut_lots import cutter_of
from streamlearn.ingest.beam.prism import Prism
from streamlearn.ingest.beam.runners import counters_of, require_job_server, runner_options
from streamlearn.ingest.beam.worker_errors import Heard, failure_of
from streamlearn.ingest.join.columns import ImpressionColumns, Joined
from streamlearn.ingest.join.core import JoinCore
from streamlearn.ingest.join.lot_events import LotEvents, decode_lot, encode_lot
from streamlearn.ingest.join.lots import LotCutter
from streamlearn.ingest.join.plan import JoinPlan
from streamlearn.ingest.join.time_order import in_time_order, joined_columns, taken_columns
from streamlearn.ingest.output.fingerprint_check import require_alike
from streamlearn.ingest.output.letter_box import LetterBox
from streamlearn.ingest.output.progress_keeper import partitions_of
from streamlearn.ingest.output.progress_log import ProgressLog
from streamlearn.ingest.output.sample_maker import SampleMaker
from streamlearn.ingest.output.sample_sink import SampleSink
from streamlearn.ingest.output.sink_counts import Written, count_read
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.ingest.reading.start import plan_backfill
from streamlearn.native import native
from streamlearn.samples import SampleCodec
from streamlearn.topics import Reader, open_topic

__all__ = [
    "BackfillReport",
    "JoinStretch",
    "ReadStretch",
    "TakesJoined",
    "backfill_pipeline",
    "join_stretch",
    "run_backfill",
]

_LOG = logging.getLogger(__name__)
_METRICS = "streamlearn.backfill"
_STEP_EVENTS = 10_000
_ROWS_MAX = 20_000
_FOREVER_MS = 1 << 60
_LOOK_MS, _NEAR_MS = 10_000, 1_000
# By the number of a letter's kind, as the join's counters name them.
_LETTERS = ("impressions_late", "impressions_excess", "actions_late", "actions_orphan")
_COUNTED = ("impressions", "actions", "rows", "positives", "negatives", *_LETTERS, "letters")


class TakesJoined(Protocol):
    """Takes what a join gives out."""

    def give(self, lot: int, joined: Joined, watermark_ms: int) -> None:
        """Take rows and letters of a lot, and up to when it was joined."""
        ...


@dataclass(frozen=True)
class BackfillReport:
    """What a backfill did; all of it is acknowledged.

    Attributes:
        begin_ms: Of impressions from here on samples were made.
        end_ms: And up to here, without.
        stretches: How many stretches had events.
        seconds: How long it took.
        counts: Rows, messages' letters and impressions, by what; `impressions_missed` where records that were named
            have some that were not found.
        written: Samples and dead letters.
    """

    begin_ms: int
    end_ms: int
    stretches: int
    seconds: float
    counts: Mapping[str, int]
    written: Written


# Beam codes lots as integers and events as bytes, and pickles neither, only when it is told so here.
@beam.typehints.with_output_types(tuple[int, bytes])
class ReadStretch(beam.DoFn):
    """Partitions in, (lot, events of that lot as bytes) of one stretch out.

    Guaranteed: what cannot be used is acknowledged by the dead-letter topic before the bundle ends, and by the one
    stretch that its record's stamp is of.

    Args:
        plan: What is read.
        stretch: Which part of it.
        app: The application's folder, on the worker.
        changes: What `--set` says.
    """

    def __init__(self, plan: ReadPlan, stretch: Stretch, app: str, changes: tuple[str, ...]) -> None:
        self._plan, self._stretch, self._app, self._changes = plan, stretch, app, changes
        self._cutter: LotCutter | None = None
        self._letters: LetterBox | None = None

    def setup(self) -> None:
        """Load the application."""
        folder = load_app(Path(self._app), list(self._changes))
        self._cutter, self._letters = cutter_of(folder, self._plan)

    def process(self, partition: int) -> Iterator[tuple[int, bytes]]:
        """Read one partition of both topics."""
        assert self._cutter is not None
        assert self._letters is not None
        for blob in read_stretch(self._plan, self._stretch, partition):
            cut = self._cutter.cut(blob)
            own = _own_records(
                [origin for _, origin in cut.failures], self._stretch, self._plan.lineage.events_topic_id
            )
            self._letters.give([one for one, is_own in zip(cut.failures, own, strict=True) if is_own])
            for events in cut.lots:
                needed = _needed(events, self._stretch)
                if len(needed):
                    yield events.lot, encode_lot(needed)

    def finish_bundle(self) -> None:
        """Have the letters acknowledged."""
        assert self._letters is not None
        self._letters.flush()

    def teardown(self) -> None:
        """Let go of the dead-letter topic."""
        if self._letters is not None:
            self._letters.close()


class JoinStretch(beam.DoFn):
    """(lot, all its events of a stretch) in; samples go to their topic, and nothing out.

    Guaranteed: samples are acknowledged before the bundle that made them ends. Not guaranteed: that a row comes once.

    Args:
        plan: What is read.
        stretch: Which part of it.
        app: The application's folder, on the worker.
        changes: What `--set` says.
    """

    def __init__(self, plan: ReadPlan, stretch: Stretch, app: str, changes: tuple[str, ...]) -> None:
        self._plan, self._stretch, self._app, self._changes = plan, stretch, app, changes
        self._folder: AppFolder | None = None
        self._sink: SampleSink | None = None

    def setup(self) -> None:
        """Load the application and open its topics."""
        folder, plan = load_app(Path(self._app), list(self._changes)), self._plan
        # How late old samples are says nothing of how fast they are made.
        told = replace(plan, rules=msgspec.structs.replace(plan.rules, time="event"))
        self._folder = folder
        self._sink = SampleSink(folder, told, SampleMaker(folder, plan.lineage, plan.run))

    def process(self, element: tuple[int, Iterable[bytes]]) -> None:
        """Join one lot."""
        assert self._folder is not None
        assert self._sink is not None
        lot, parts = element
        plan = JoinPlan.of(self._folder.app, self._plan.lineage.events_topic_id, self._folder.settings.join)
        counts = join_stretch(plan, self._stretch, lot, [decode_lot(part) for part in parts], self._sink)
        for name, count in counts.items():
            Metrics.counter(_METRICS, name).inc(count)  # type: ignore[no-untyped-call]
        # Here, where they are the stretch's own: what is read of another's is read by both.
        count_read(counts["impressions"] + max(counts["actions"], counts["letters"]))

    def finish_bundle(self) -> None:
        """Have samples and letters acknowledged."""
        assert self._sink is not None
        self._sink.flush()

    def teardown(self) -> None:
        """Let go of topics."""
        if self._sink is not None:
            self._sink.close()
            self._sink = None


def join_stretch(
    plan: JoinPlan, stretch: Stretch, lot: int, parts: Sequence[LotEvents], sink: TakesJoined
) -> dict[str, int]:
    """Join all of a lot's events of a stretch, in the order of time, and give out what is the stretch's own.

    Args:
        plan: Windows, labels and bounds.
        stretch: Which part of history it is.
        lot: Which lot.
        parts: Its events, in any order.
        sink: Who takes rows and letters.

    Returns:
        How many events, rows and labels were the stretch's own, as ingest names them; and letters.

    Raises:
        JoinFull: The lot's events of a longest window do not fit into `join.pending_bytes_max`.
    """
    core, counts = JoinCore(plan), Counter(dict.fromkeys(_COUNTED, 0))
    if not parts:
        return counts
    impressions = joined_columns([part.impressions for part in parts])
    actions = joined_columns([part.actions for part in parts])
    counts["impressions"] = int(_is_own(impressions, stretch).sum())
    counts["actions"] = int(stretch.is_own(actions.event_time_ms).sum()) if stretch.records is None else 0

    def give(watermark_ms: int) -> None:
        core.advance(watermark_ms)
        while core.ready or core.letters:
            own = own_of(core.take(_ROWS_MAX), stretch)
            counts.update(rows=len(own.rows), letters=len(own.letters))
            counts.update(_LETTERS[kind] for kind in own.letters.kind.tolist())
            positives, settled = (_bits_set(masks) for masks in (own.rows.labels, own.rows.settles))
            counts.update(positives=positives, negatives=settled - positives)
            sink.give(lot, own, min(watermark_ms, stretch.watermark_ms))

    for shown, done, until_ms in in_time_order(impressions, actions, _STEP_EVENTS):
        core.add_impressions(shown)
        core.add_actions(done)
        give(until_ms)
    give(_FOREVER_MS)
    return counts


def _bits_set(masks: npt.NDArray[np.uint32]) -> int:
    return int(np.unpackbits(masks.view(np.uint8)).sum())


def _needed(events: LotEvents, stretch: Stretch) -> LotEvents:
    """What of a lot's events a stretch needs; impressions that are another's without their bytes."""
    impressions = taken_columns(events.impressions, _within(events.impressions.event_time_ms, stretch.impressions_ms))
    actions = taken_columns(events.actions, _within(events.actions.event_time_ms, stretch.actions_ms))
    own = _is_own(impressions, stretch)
    if not own.all():
        counts = np.diff(impressions.payload_at) * own
        payload, _ = native.take_spans(impressions.payload, impressions.payload_at, np.flatnonzero(own))
        payload_at = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        impressions = replace(impressions, payload=payload, payload_at=payload_at)
    return replace(events, impressions=impressions, actions=actions)


def _is_own(impressions: ImpressionColumns, stretch: Stretch) -> npt.NDArray[np.bool_]:
    """Which impressions make samples in a stretch."""
    return stretch.is_own(impressions.event_time_ms) & stretch.has(impressions.partition, impressions.offset)


def _own_records(origins: Sequence[Origin], stretch: Stretch, events_topic_id: str) -> list[bool]:
    """Of which records of either topic a stretch says what cannot be used."""
    own = stretch.is_own(np.array([one.timestamp_ms for one in origins], np.int64))
    if stretch.records is not None:
        partitions = np.array([one.partition for one in origins], np.int32)
        own &= stretch.has(partitions, np.array([one.offset for one in origins], np.int64))
        own &= np.array([one.topic_id == events_topic_id for one in origins], np.bool_)
    found: list[bool] = own.tolist()
    return found


def _within(times_ms: npt.NDArray[np.int64], bounds_ms: tuple[int, int]) -> npt.NDArray[np.int64]:
    return np.flatnonzero((times_ms >= bounds_ms[0]) & (times_ms <= bounds_ms[1]))


def backfill_pipeline(
    pipeline: beam.Pipeline, plan: ReadPlan, stretch: Stretch, app: str, changes: tuple[str, ...] = ()
) -> None:
    """Put the steps of a backfill of one stretch into a pipeline.

    Args:
        pipeline: Where to.
        plan: What is read, of `plan_backfill`.
        stretch: Which part of it.
        app: The application's folder, on the workers.
        changes: What `--set` says.
    """
    read: Any = beam.ParDo(ReadStretch(plan, stretch, app, changes))  # type: ignore[no-untyped-call]
    join: Any = beam.ParDo(JoinStretch(plan, stretch, app, changes))  # type: ignore[no-untyped-call]
    named = list(range(plan.partitions)) if stretch.records is None else sorted({one for one, *_ in stretch.records})
    partitions: Any = beam.Create(named)  # type: ignore[no-untyped-call]
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
    more: Sequence[str] = (),
    clock: Clock = SYSTEM_CLOCK,
) -> BackfillReport:
    """Make the samples of history, one stretch of `ingest.stretch_s` after another.

    What stands in the topics is taken for all there is: rows whose windows reach beyond the end of the topics are
    settled with what is known. It may be run again, and beside ingest: what comes twice is learned once, and rows that
    are due after what ingest has acknowledged are learned once ingest has passed them.

    Args:
        folder: The application; workers load it from the same folder.
        within: Of which impressions; None: of all.
        changes: What `--set` says.
        runner: A runner's name; the settings' when empty.
        accept_lost: Begin where the topics still have records, even if some that are needed were deleted.
        more: Further Beam options.
        clock: How long it takes.

    Raises:
        UsageError: The topic has no such partition; the runner is wrong.
        PositionLost: An offset is outside of what the topic has; or records that are needed may have been deleted.
        TopicError: A topic is missing, or cannot be reached.
        ConfigError: The samples there are of other features.
        StreamlearnError: What a worker raised.
    """
    within = within or HistoryRange()
    options = runner_options(folder.settings.ingest, runner=runner, is_bounded=True, more=more)
    require_job_server(options)
    for topic in ("samples", "dead_letters"):
        folder.open_topic(topic).close()
    require_alike(folder)
    begun_s, plan = clock.monotonic_s(), plan_backfill(folder, clock=clock)
    plan = replace(plan, accept_lost=accept_lost, app=str(folder.folder.resolve()), changes=tuple(changes))
    counts = dict.fromkeys(_COUNTED, 0)
    plan, stretches, expected = _stretches(folder, plan, within, clock)
    live_ms = _live_ms(folder, plan.lineage.lots_count)
    if stretches and live_ms < stretches[-1].watermark_ms:
        message = "rows due after %d are learned once ingest, which already reads there, has passed them"
        _LOG.warning(message, live_ms)
    stretches = [replace(stretch, live_ms=live_ms) for stretch in stretches]
    written: list[Written] = []
    with _Runs(folder, plan, options, tuple(changes)) as runs:
        for number, stretch in enumerate(stretches):
            found, wrote = runs.run(stretch)
            written.append(wrote)
            for name, count in found.items():
                counts[name] += count
            _say_end(folder, plan, stretch.watermark_ms)
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


class _Runs:
    """A pipeline for each stretch, one after another, on one runner."""

    def __init__(self, folder: AppFolder, plan: ReadPlan, options: PipelineOptions, changes: tuple[str, ...]) -> None:
        self._plan, self._options = plan, options
        self._app, self._changes = str(folder.folder.resolve()), changes
        self._prism = Prism.of(options)

    def __enter__(self) -> _Runs:
        return self

    def __exit__(self, *_: object) -> None:
        if self._prism is not None:
            self._prism.stop()

    def run(self, stretch: Stretch) -> tuple[dict[str, int], Written]:
        """Join one stretch; what was counted, and what was written."""
        pipeline = self._prism.pipeline() if self._prism else beam.Pipeline(options=self._options)
        backfill_pipeline(pipeline, self._plan, stretch, self._app, self._changes)
        with Heard() as heard:
            try:
                result: Any = pipeline.run()
                result.wait_until_finish()
            except StreamlearnError:  # from a runner within this process
                raise
            except Exception as error:
                gone = self._prism and self._prism.failure(error)
                raise gone or failure_of([*heard.texts, str(error)]) from error
        return counters_of(result, _METRICS), Written.of(result)


def _stretches(
    folder: AppFolder, plan: ReadPlan, within: HistoryRange, clock: Clock
) -> tuple[ReadPlan, list[Stretch], int | None]:
    """What is read, stretch by stretch; and how many impressions are to be found, where records are named."""
    join_plan = JoinPlan.of(folder.app, plan.lineage.events_topic_id, folder.settings.join)
    stretch_ms = round(1_000 * folder.settings.ingest.stretch_s)
    if not within.by_offsets:
        plan = replace(plan, accept_lost=plan.accept_lost or within.begin_ms is None)
        bounds = _bounds(plan, within.begin_ms, within.end_ms, stretch_ms)
        return plan, with_events(plan, [stretch_of(join_plan, *one) for one in bounds]), None
    found = offset_times(folder, plan, within, clock=clock)
    if not found.records:
        return plan, [], 0
    bounds = cut_stretches(found.first_ms, found.last_ms + 1, stretch_ms)
    stretches = [replace(stretch_of(join_plan, *one), records=found.records) for one in bounds]
    return plan, with_events(plan, stretches), found.impressions


def _live_ms(folder: AppFolder, lots_count: int) -> int:
    """The event time that ingest has acknowledged in every lot: a trainer told of a later one refuses what it makes."""
    try:
        with ProgressLog.open(folder.topic_url("progress"), folder.access) as log:
            standing = log.standing()
    except TopicMissing:
        return NO_INGEST
    if not standing.run:
        return NO_INGEST
    known = [one.watermark_ms for one in standing.lots.values() if one.lot < lots_count]
    return min(known) if len(known) == lots_count else 0


def _say_end(folder: AppFolder, plan: ReadPlan, watermark_ms: int) -> None:
    """Say of every lot, in every partition, how far it is: whoever merges them waits for none."""
    lots_count = plan.lineage.lots_count
    with ExitStack() as stack:
        topic = stack.enter_context(folder.open_topic("samples"))
        writer = stack.enter_context(topic.writer(folder.writer_settings))
        maker, codec = SampleMaker(folder, plan.lineage, plan.run), SampleCodec(folder.app, folder.settings.samples)
        for lot in range(lots_count):
            message = codec.encode(maker.empty(lot, watermark_ms))
            for partition in partitions_of(lot, lots_count, topic.partitions):
                writer.send(partition, message)
        writer.flush()


def _bounds(plan: ReadPlan, begin_ms: int | None, end_ms: int | None, stretch_ms: int) -> list[tuple[int, int]]:
    """Begin and end of each stretch; none where there are no events."""
    known: list[tuple[int, int]] = []
    for url in (plan.impressions_url, plan.actions_url):
        with open_topic(url, plan.access) as topic, topic.reader() as reader:
            found = [_times(reader, partition, stretch_ms) for partition in range(topic.partitions)]
            known += [one for one in found if one is not None]
    if not known:
        return []
    # An event in a pack may be earlier than the stamp that all of it has, and none is later.
    first_ms = min(first for first, _ in known) if begin_ms is None else begin_ms
    last_ms = max(last for _, last in known) if end_ms is None else end_ms
    bounds = cut_stretches(first_ms, max(last_ms, first_ms + 1), stretch_ms)
    if begin_ms is None:
        bounds[0] = (0, bounds[0][1])
    return bounds


def _times(reader: Reader, partition: int, step_ms: int) -> tuple[int, int] | None:
    """The stamp of a partition's first record, and a time that none is stamped at or after; None when it is empty."""
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
