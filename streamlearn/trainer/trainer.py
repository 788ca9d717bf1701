"""Trainer: a training run from start to end. It cuts versions, recovers from failures and obeys requests."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TypeAlias, TypeVar

import numpy as np

from streamlearn import __version__
from streamlearn.apps import AppFolder
from streamlearn.apps.revision import revision_of
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.config import changed_settings
from streamlearn.errors import (
    EpochOver,
    Oversize,
    PositionLost,
    StreamlearnError,
    TrainingFailed,
    VersionDefect,
    VersionRefused,
)
from streamlearn.models import Model
from streamlearn.ps import Epoch, PsClient
from streamlearn.publisher import DEFAULT_CHECKS, CutState, Judge, Lineage, Publisher, Resumed
from streamlearn.publisher.bases import Compact
from streamlearn.publisher.cleaner import Clean
from streamlearn.pulse import PULSE
from streamlearn.samples import SampleCodec, golden_bytes
from streamlearn.topics import Topic
from streamlearn.trainer.expiry_schedule import ExpirySchedule
from streamlearn.trainer.history_pass import HistoryPass
from streamlearn.trainer.intake.extract import golden_rows
from streamlearn.trainer.intake.feed import Feed, Until, quiet_s_max, skip_lost
from streamlearn.trainer.intake.item_feed import ItemFeed
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.intake.recent import RecentSamples
from streamlearn.trainer.intake.refill import refill
from streamlearn.trainer.intake.sample_range import SampleRange, horizon_ms_of
from streamlearn.trainer.intake.split import history_until
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.learning_loop import LearnedStep, LearningLoop, OwnSteps, StepLearner, Tally, TrainReport
from streamlearn.trainer.meters import Meters
from streamlearn.trainer.quarantine import Quarantine
from streamlearn.trainer.restore import (
    RECOVERABLE,
    check_samples_after,
    later_shard,
    lost_store,
    positions_of,
    restore,
)  # fmt: skip
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.shared_marks import SharedMarks
from streamlearn.trainer.step import Piece
from streamlearn.trainer.validation import WindowScore
from streamlearn.trainer.validation_thread import ValidationThread
from streamlearn.trainer.version_scores import SCORED_ROWS, VersionScorer, score_rows
from streamlearn.versions import Chain, Cut, Registry, Store
from streamlearn.versions.format.manifest import Origin, Position, Skip
from streamlearn.versions.format.predictions import waiting_in
from streamlearn.versions.pointer.deletion import OBEYED as DELETED
from streamlearn.versions.pointer.deletion import in_force
from streamlearn.versions.pointer.run_origin import RunOrigin, write_origin

__all__ = ["COUNTED", "TrainReport", "Trainer"]

Show: TypeAlias = "Callable[[Trainer], None]"

_LOG = logging.getLogger("streamlearn.trainer.Trainer")
_RECOVERIES_MAX = 20
_MEASURE_S = 0.5
_LOST_HELP = (
    "deleted samples cannot be learned any more; `streamlearn train APP --accept-lost` continues from the "
    "earliest samples and reports the offsets it skips"
)
COUNTED = ("samples", "labels_learned", "labels_corrected")
"""Version metrics that count the whole history of a model, each row and label once."""
Count = TypeVar("Count", int, float)


class Trainer:
    """Learns an application's samples into versions, which are announced to `registry` and served by `graph`.

    A model without versions learns its history `passes` times before its first one: what was shown before `history_ms`,
    or all there is; with `is_shuffled` in another order each time. `compact` writes the bases that replace long chains,
    and `clean` removes old versions; None does neither. With `accept_lost`, training continues from the earliest
    samples if the next ones are gone. The pushing thread calls `on_step` for each learned step, and the scoring thread
    `on_scores` with the scores of closed windows. `lead` returns what learns steps; workers may. `items` has the
    library of an application with retrieval.
    """

    def __init__(
        self,
        folder: AppFolder,
        model: Model,
        topic: Topic,
        client: PsClient,
        store: Store,
        *,
        registry: Registry | None = None,
        graph: str | None = None,
        compact: Compact | None = None,
        clean: Clean | None = None,
        accept_lost: bool = False,
        passes: int = 1,
        history_ms: int | None = None,
        is_shuffled: bool = False,
        on_step: Callable[[LearnedStep], None] = lambda step: None,
        on_scores: Callable[[Sequence[WindowScore]], None] = lambda scores: None,
        lead: Callable[[Learner, Rows], StepLearner] = OwnSteps,
        items: ItemFeed | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        app, settings = folder.app, folder.settings
        self._folder, self._topic, self._client, self._clock = folder, topic, client, clock
        self._store, self._graph, self._on_step, self._on_scores = store, graph, on_step, on_scores
        self._lineage, self._codec = Lineage.of(folder), SampleCodec(app, settings.samples)
        self._learner = Learner(app, model, settings.trainer)
        self._rows = Rows(app, client, settings.trainer.step_rows, settings.tables)
        self._step_learner = lead(self._learner, self._rows)
        self._quarantine, self._items = Quarantine.of(folder), items
        self._recent = RecentSamples(app, settings.judge.scored_rows_max, SCORED_ROWS)
        scorer = VersionScorer(app.name, store, self._learner, Rows(app, client, SCORED_ROWS, settings.tables))
        numbers = {label.name: label.number for label in folder.app.labels if label.number is not None}
        checks = (*DEFAULT_CHECKS, *(() if items is None else items.checks))
        judge = Judge(
            settings.judge, checks=checks, scorer=scorer, samples=self._recent.closed, numbers=numbers, clock=clock
        )
        self.publisher = Publisher(
            client, store, self._lineage, settings.publisher,
            judge=judge, registry=registry, compact=compact, clean=clean, quiet_s_max=quiet_s_max(topic), clock=clock,
        )  # fmt: skip
        self._accept_lost, self._lost = accept_lost, dict[int, tuple[int, int]]()
        self._passes, self._history_ms, self._is_shuffled = passes, history_ms, is_shuffled
        self._expiry = ExpirySchedule(client, settings.tables)
        # The time limit of everything but learning: shards load a version, or write one.
        self._apart_s_max = settings.ps.restore_wait_s_max + settings.ps.export_wait_s_max
        self._horizon_ms = horizon_ms_of(folder)
        self.tally = Tally()
        self._reached: Reached | None = None
        self._marks = SharedMarks.of(app, settings.marks)
        self._skips: tuple[Skip, ...] = ()
        self._origin_ms: int | None = None
        self._newest_pieces: Sequence[Piece] = ()
        self._validation: ValidationThread | None = None
        self._feed: Feed | None = None
        self._meters, self._measured_s = Meters(), -_MEASURE_S
        self._learned_before = self._restores = self._recoveries = self._rewinds = 0
        self._counted = dict.fromkeys(COUNTED, 0.0)

    def run(
        self, stop: threading.Event, *, until: Until | None = None, show: Show = lambda trainer: None
    ) -> TrainReport:
        """Learn until `stop` is set or the feed ends; the last version contains everything that was learned.

        `until` ends the feed; the default is never. `show` is called between steps.

        Raises:
            RunOver: A newer run has taken over.
            PositionLost: The next samples are gone from the topic, and `accept_lost` is not set.
        """
        try:
            with ExitStack() as ends:
                return self._run(stop, until or Until(), show, ends)
        except PositionLost as error:
            raise PositionLost(error.message, help=_LOST_HELP) from error

    def _run(self, stop: threading.Event, until: Until, show: Show, ends: ExitStack) -> TrainReport:
        begin_s = self._clock.monotonic_s()
        resumed = self.publisher.start()
        self._record_origin(resumed.run)
        _LOG.info("run %d continues from %s", resumed.run, resumed.ref or "nothing")
        if resumed.chain is not None and resumed.chain.manifest.labels is None:
            trusted = (resumed.chain.version, self._lineage.model, ", ".join(self._folder.app.label_names))
            message = "version %d of %r does not list its labels: the trainer assumes %s; the next version lists them"
            _LOG.warning(message, *trusted)
        if resumed.chain is not None and self._passes > 1:
            _LOG.warning("there are versions, so the history is not learned again: passes has no effect")
        failures, failed_at = 0, None
        while True:
            try:
                with PULSE.patience(self._apart_s_max):
                    self._restore(resumed)
                if resumed.chain is None:
                    self._begin(stop, until)
                with PULSE.patience(self._apart_s_max):
                    if self._validation is None:
                        self._validation = ends.enter_context(self._new_validation(resumed))
                        self._refill(stop)
                    has_rewound = self._obey(resumed)
                PULSE.ready()
                if not has_rewound and not self._learn(stop, until, show):
                    break
                with PULSE.patience(self._apart_s_max):
                    resumed = self.publisher.resume()
            except RECOVERABLE as error:
                # Failures are counted per committed version, so a long run can always recover.
                failures = failures + 1 if self.publisher.committed == failed_at else 1
                failed_at = self.publisher.committed
                if failures > _RECOVERIES_MAX:
                    raise
                _LOG.warning("%s; restoring all shards to the newest version", error.message)
                with PULSE.patience(self._apart_s_max):
                    resumed, self._recoveries = self._resumed(error), self._recoveries + 1
        committed = self.publisher.committed
        assert committed is not None
        return TrainReport(
            run=resumed.run, version=committed.version, seconds=self._clock.monotonic_s() - begin_s,
            recoveries=self._recoveries, rewinds=self._rewinds, tally=self.tally, summary=self.summary,
            lost=self._lost,
        )  # fmt: skip

    def _record_origin(self, run: int) -> None:
        """Record the code and the settings of this run, for `show`."""
        code, settings = revision_of(self._folder.folder), changed_settings(self._folder.settings)
        origin = RunOrigin(
            run=run, release=__version__, commit=code.commit, is_changed=code.is_changed, sha256=code.sha256,
            settings=settings,
        )  # fmt: skip
        write_origin(self._store, self._folder.app.name, origin)

    def _resumed(self, error: StreamlearnError) -> Resumed:
        """Return the version to continue from after a failure.

        Raises:
            RunOver: A newer run has taken over.
            ShardRefused: Shards belong to a later run that the store does not know: they wrote to another store.
        """
        # Ask the shards first: the store then knows every run that they can know of.
        later = later_shard(self._client, self.publisher.run) if isinstance(error, EpochOver) else ""
        resumed = self.publisher.resume()
        if later:
            raise lost_store(later, self._store, self._folder.app.name, resumed.run)
        return resumed

    @property
    def lag(self) -> int:
        """Messages in the topic that are not read yet."""
        return 0 if self._feed is None else sum(self._feed.lag.values())

    @property
    def summary(self) -> dict[str, float]:
        """The validation scores of the newest closed windows, by name."""
        return {} if self._validation is None else self._validation.summary

    @property
    def reached(self) -> Reached | None:
        """The position up to which messages are learned; None before the first restore."""
        return self._reached

    def _restore(self, resumed: Resumed) -> None:
        """Restore shards, weights, marks and position to a version."""
        epoch = Epoch(resumed.run, self._restores)
        self._restores += 1  # even if it fails: shards may know the epoch, and the next one must be higher
        self._client.restore(epoch, resumed.ref)
        self._marks = SharedMarks.of(self._folder.app, self._folder.settings.marks)
        self._reached = restore(resumed.chain, self._topic, self._step_learner.weights, self._marks)
        if self._items is not None:
            self._items.restore(resumed.chain)
        if self._accept_lost:
            self._reached, lost = skip_lost(self._topic, self._reached)
            self._lost |= lost
        self._skips = () if resumed.chain is None else resumed.chain.manifest.skips
        origin = None if resumed.chain is None else resumed.chain.manifest.origin
        self._origin_ms = origin.clock_ms if isinstance(origin, Origin) else None
        self._recent.leave_out(self._skips)
        if self._validation is not None:
            self._validation.leave_out(self._skips)
        self._recent.go_back(self._learner.steps)
        self._learned_before = self.tally.rows
        known = {} if resumed.chain is None else resumed.chain.manifest.metrics
        self._counted = {name: known.get(name, 0.0) for name in COUNTED}

    def _begin(self, stop: threading.Event, until: Until) -> None:
        """Write the first version; if there are several passes, after them."""
        if self._passes > 1:
            PULSE.ready()
            self._learn_history(stop, until)
        with PULSE.patience(self._apart_s_max):
            self.publisher.first(self._note)

    def _learn_history(self, stop: threading.Event, until: Until) -> None:
        assert self._reached is not None
        with self._topic.reader() as reader:
            known = {partition: reader.end(partition) for partition in range(self._topic.partitions)}
        if until.offsets is not None:
            known = {partition: min(end, until.offsets.get(partition, 0)) for partition, end in known.items()}
        ends, span_ms = history_until(
            self._folder, self._topic, known, self._history_ms, keep_aside=self._quarantine.add, clock=self._clock
        )
        history = HistoryPass(
            self._folder, self._topic, self._step_learner, self._expiry, self._quarantine, self._reached,
            Until(ends), self._skips, span_ms, self._clock, self._is_shuffled,
        )  # fmt: skip
        for number in range(1, self._passes + 1):
            self._counted = dict.fromkeys(COUNTED, 0.0)
            # The last pass has the samples' own time, which the stream continues.
            done = history.learn(number - self._passes, stop, on_step=self._count)
            if stop.is_set():
                message = f"training was stopped in pass {number} of {self._passes}, before the first version"
                raise TrainingFailed(message, help="nothing was kept: run the same command again")
            rows = done.tally.rows
            _LOG.info("pass %d of %d: %d rows, loss %.4f", number, self._passes, rows, done.tally.loss / max(rows, 1))
            saved = done.marks.save(done.reached)
            self._marks = SharedMarks.of(self._folder.app, self._folder.settings.marks)
            self._reached = self._marks.load(saved)

    def _new_validation(self, resumed: Resumed) -> ValidationThread:
        """Create the validation. It outlives recoveries, so that rows learned again keep their first prediction."""
        assert self._reached is not None
        # Figures of rows that the model's origin has learned would be better than they are.
        known_ms = [ms for ms in (self._reached.clock_ms, self._origin_ms) if ms is not None]
        links = () if resumed.chain is None else resumed.chain.links
        return ValidationThread(
            self._folder.app, self._folder.settings.validation, on_scores=self._on_scores,
            learned_before_ms=max(known_ms, default=None), saved=waiting_in(self._store, links),
            has_lost=bool(self._lost), skips=self._skips,
        )  # fmt: skip

    def _refill(self, stop: threading.Event) -> None:
        """Read recent samples again, for the judge."""
        assert self._reached is not None
        known = () if self.publisher.step is None else self.publisher.step.known
        refill(
            self._recent, self._folder, self._topic, self._store, known,
            reached=self._reached, skips=self._skips, steps=self._learner.steps, stop=stop,
        )  # fmt: skip

    def _obey(self, resumed: Resumed) -> bool:
        """Carry out the operators' rewinds; returns whether there was one. A request that fails is refused."""
        before = self._rewinds
        for request in resumed.requests:
            try:
                if not self._accept_lost:
                    chain = Chain.find(self._store, self._folder.app.name, request.to.version)
                    check_samples_after(chain, self._topic)
                self.publisher.obey(request)
                self._rewinds += 1
            except (Oversize, PositionLost, VersionDefect, VersionRefused) as error:
                self.publisher.refuse(request, error.message)
                self._meters.requests_refused.inc()
                _LOG.error(
                    "training continues without going back to version %d, as request %d of %s asks: %s",
                    request.to.version, request.seq, request.by or "an operator", error.message,
                )  # fmt: skip
        return self._rewinds > before

    def _learn(self, stop: threading.Event, until: Until, show: Show) -> bool:
        """Learn until the end; returns whether a request asks for a rewind before training continues."""
        assert self._reached is not None
        assert self._validation is not None
        counts, seconds, refuse = self.tally.counts, self.tally.seconds, self._validation.refuse
        with ExitStack() as ends:
            reading = SampleRange(
                self._folder, self._topic, self._reached, self._skips, until=until,
                keep_aside=self._quarantine.add, marks=self._marks, on_refused=refuse, clock=self._clock,
            )  # fmt: skip
            self._feed = ends.enter_context(closing(reading.feed))
            learning = LearningLoop(
                self._folder, reading.feed.steps(), self._step_learner, self._marks, quarantine=self._quarantine,
                tally=self.tally, on_step=self._pushed, on_refused=refuse, clock=self._clock,
            )  # fmt: skip

            def count() -> None:
                self.tally.counts = _sums(counts, reading.counts)
                self.tally.seconds = _sums(seconds, learning.stages.seconds)

            ends.callback(count)
            for _ in ends.enter_context(closing(learning.run(stop))):
                if PULSE.is_due and learning.stages.is_moving:
                    PULSE.beat()
                self._reached = learning.reached or self._reached
                if self.publisher.is_due:
                    learning.stages.drain()
                    self.publisher.boundary(self._note)
                if self.publisher.requests:
                    learning.stages.drain()
                    with PULSE.patience(self._apart_s_max):
                        self.publisher.settle()
                    return True
                count()
                self._measure()
                show(self)
            self._reached = learning.reached or self._reached
        with PULSE.patience(self._apart_s_max):
            return self._finish()

    def _pushed(self, done: LearnedStep) -> None:
        """Account for a step that was pushed; called by the pushing thread."""
        assert self._validation is not None
        assert done.learned is not None
        self._count(done)
        self._meters.learned(done.step.pieces, self._clock.wall_ms())
        self._validation.add(done.columns, done.learned, self._learner.curves)
        self._recent.add(done.step.pieces, done.step.reached.watermark_ms, done.steps)
        # Before the next pull and before a cut, so that expiry happens at the same step in every run.
        if self._expiry.is_due(done.steps):
            self._expiry.look(done.steps, done.step.reached)
        self._on_step(done)

    def _count(self, done: LearnedStep) -> None:
        """Count rows and labels of a step for the next version, and keep its items and rows for golden requests."""
        self._newest_pieces, columns = done.step.pieces, done.columns
        if self._items is not None:
            self._items.learn(columns)
        counts = (len(columns), np.bitwise_count(columns.learn).sum(), np.bitwise_count(columns.correct).sum())
        for name, count in zip(COUNTED, counts, strict=True):
            self._counted[name] += float(count)

    def _measure(self) -> None:
        tally, counts, now_s = self.tally, self.tally.counts, self._clock.monotonic_s()
        if now_s - self._measured_s < _MEASURE_S:
            return
        self._measured_s, others = now_s, {name: count for name, count in counts.items() if name != "read"}
        self._meters.totals(
            rows={"learned": tally.rows, "refused": tally.refused_rows, **others},
            steps={"learned": tally.steps, "refused": tally.refused_steps},
            seconds=tally.seconds,
        )
        self._meters.loss(tally.loss, tally.rows)
        self._meters.state(
            behind={} if self._feed is None else self._feed.lag,
            marks_ratio=self._marks.bytes / self._folder.settings.marks.bytes_max,
            clock_ms=None if self._reached is None else self._reached.clock_ms,
            recoveries=self._recoveries,
            rewinds=self._rewinds,
        )

    def _finish(self) -> bool:
        """Publish what is left; returns whether a request arrived in the meantime."""
        assert self._validation is not None
        self._validation.catch_up()
        self.publisher.settle()
        if self._items is not None:
            self._items.catch_up()
        while (
            self.publisher.learned_rows < self.tally.rows - self._learned_before
            or self.publisher.must_delete
            or (self._items is not None and self._items.library.has_changes)
            or self.publisher.is_behind(self._positions())
        ):
            self.publisher.make_due()
            self.publisher.boundary(self._note)
            self.publisher.settle()
        return bool(self.publisher.requests)

    def _note(self) -> CutState:
        """Collect everything of a version but its rows, at this step boundary."""
        assert self._reached is not None
        reached, watermark_ms = self._reached, self._reached.watermark_ms
        deleted = self._delete(watermark_ms)
        if watermark_ms is not None:
            self._marks.forget(watermark_ms - self._horizon_ms)
        items = None if self._items is None else self._items.note()
        self._learner.curves |= {} if self._validation is None else self._validation.curves
        counted = self._counted if items is None else self._counted | {"library_items": float(items.size)}
        return CutState(
            cut=Cut(
                positions=self._positions(), watermark_ms=watermark_ms, skips=self._skips, graph=self._graph,
                metrics={"steps": float(self._learner.steps)} | counted | self.summary | deleted,
            ),
            learned_rows=self.tally.rows - self._learned_before,
            dense=self._step_learner.weights.dense(),
            dense_optimizer=self._step_learner.weights.optimizer_state(),
            marks=self._marks.save(reached),
            golden=self._golden(),
            predictions=None if self._validation is None else self._validation.note(),
            library=items,
        )  # fmt: skip

    def _delete(self, watermark_ms: int | None) -> dict[str, float]:
        """Remove the rows whose deletion is in force, and return the metric of the version that carries this out."""
        deletions = self.publisher.deletions
        if not deletions:
            return {}
        keys = in_force(deletions, self.publisher.deleted, watermark_ms)
        if keys:
            self._client.remove({table: some for table, some in keys.items() if table in self._client.dims})
        return {DELETED: float(deletions[-1].seq)}

    def _positions(self) -> tuple[Position, ...]:
        assert self._reached is not None
        return (*positions_of(self._topic, self._reached), *(() if self._items is None else self._items.positions))

    def _golden(self) -> dict[str, bytes]:
        """Return recently learned requests with their current scores; empty before any."""
        batch = golden_rows(self._newest_pieces)
        if batch is None:
            return {}
        logits = score_rows(self._learner, self._rows, batch, self._folder.settings.trainer.step_rows)
        return golden_bytes(self._codec, batch, logits)


def _sums(before: Mapping[str, Count], now: Mapping[str, Count]) -> dict[str, Count]:
    return {name: before.get(name, 0) + count for name, count in now.items()}
