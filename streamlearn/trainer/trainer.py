"""Trainer: a run from its first step to its last: versions cut, failures recovered from, requests obeyed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import (
    EpochOver,
    Oversize,
    PositionLost,
    PushUnsure,
    ShardNotReady,
    ShardRefused,
    ShardUnreachable,
    StreamlearnError,
    UsageError,
    VersionDefect,
    VersionRefused,
)
from streamlearn.models import Model
from streamlearn.ps import Epoch, PsClient
from streamlearn.publisher import Judge, Lineage, Noted, Publisher, Resumed
from streamlearn.publisher.bases import Compact
from streamlearn.pulse import PULSE
from streamlearn.samples import SampleCodec, golden_bytes
from streamlearn.table import declared_tables
from streamlearn.topics import Position as TopicPosition
from streamlearn.topics import Topic
from streamlearn.trainer.expiry_schedule import Expiring
from streamlearn.trainer.golden import golden_rows
from streamlearn.trainer.intake.feed import Feed, Until, from_what_is_there, quiet_s_max
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.intake.recent import Recent
from streamlearn.trainer.intake.skips import SkippedRows
from streamlearn.trainer.intake.step_cutter import Stepping
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.learning_loop import Done, Learning, Tally, TrainReport
from streamlearn.trainer.meters import Meters
from streamlearn.trainer.quarantine import Kept
from streamlearn.trainer.restore import restore
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.shared_marks import Remembered
from streamlearn.trainer.step import Piece
from streamlearn.trainer.validation import WindowScore
from streamlearn.trainer.validation_thread import Validating
from streamlearn.trainer.version_scores import SCORED_ROWS, VersionScorer, score_rows
from streamlearn.trainer.warm_start import Carried, carry
from streamlearn.versions import Chain, Cut, Registry, Request, Store
from streamlearn.versions.format.manifest import Position, Skip

__all__ = ["COUNTED", "TrainReport", "Trainer"]

Show: TypeAlias = "Callable[[Trainer], None]"

_LOG = logging.getLogger("streamlearn.trainer.Trainer")
# After these all shards are restored to the newest committed version, and training goes on from there.
_RECOVERABLE = (PushUnsure, ShardNotReady, ShardUnreachable, EpochOver)
_RECOVERIES_MAX = 20
_KEPT = ".streamlearn/kept"
_MEASURE_S = 0.5
_LOST_HELP = (
    "deleted samples cannot be learned any more; `streamlearn train APP --accept-lost` continues from the "
    "earliest samples and reports the offsets it skips"
)
COUNTED = ("samples", "labels_learned", "labels_corrected")
"""Metrics of a version that say what all of its history learned, each row and label once."""
Count = TypeVar("Count", int, float)


class Trainer:
    """Learns an application's samples into versions.

    Args:
        folder: The application.
        model: Its model.
        topic: Its samples.
        client: Its tables.
        store: Where versions go.
        registry: Who is told of them.
        graph: Id of the graph that serves them.
        compact: Writes the bases that stand for long chains; None writes none.
        accept_lost: Go on from the earliest samples there are, where those that come next are gone.
        begin_with: A version of another model, whose rows and weights the first version has as far as they fit.
        told: Told of each step that was learned, by the thread that pushes.
        scored: Told of scores of closed windows, by a thread of their own.
        clock: What time is taken by.
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
        begin_with: Chain | None = None,
        compact: Compact | None = None,
        accept_lost: bool = False,
        told: Callable[[Done], None] = lambda done: None,
        scored: Callable[[Sequence[WindowScore]], None] = lambda scores: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        app, settings = folder.app, folder.settings
        self._folder, self._topic, self._client, self._clock = folder, topic, client, clock
        self._graph, self._told, self._scored = graph, told, scored
        options = declared_tables(app.features, settings.tables)
        self._store, self._begin_with = store, begin_with
        self._lineage = Lineage.of(app, options, settings.publisher.row_type)
        self._carried: Carried | None = None
        self._codec = SampleCodec(app, settings.samples)
        self._learner = Learner(app, model, settings.trainer)
        self._rows = Rows(app, client, settings.trainer.step_rows, settings.tables)
        self._kept = Kept(folder.folder / _KEPT, settings.trainer.kept_bytes_max)
        self._recent = Recent(app, settings.judge.scored_rows_max, SCORED_ROWS)
        scorer = VersionScorer(app.name, store, self._learner, Rows(app, client, SCORED_ROWS, settings.tables))
        judge = Judge(settings.judge, scorer=scorer, samples=self._recent.closed, clock=clock)
        self.publisher = Publisher(
            client,
            store,
            self._lineage,
            settings.publisher,
            judge=judge,
            registry=registry,
            compact=compact,
            quiet_s_max=quiet_s_max(topic),
            clock=clock,
        )
        self._accept_lost, self._lost = accept_lost, dict[int, tuple[int, int]]()
        self._expiry = Expiring(client, settings.tables)
        longest_s = max(group.window_s for group in app.groups)
        # What is not learning has its own bounds: shards load a version, and write one.
        self._apart_s_max = settings.ps.restore_wait_s_max + settings.ps.export_wait_s_max
        self._horizon_ms = round((longest_s + settings.trainer.restart_slack_s) * 1e3)
        self.tally = Tally()
        self._reached: Reached | None = None
        self._remembered: Remembered | None = None
        self._skips: tuple[Skip, ...] = ()
        self._newest: Sequence[Piece] = ()
        self._validating: Validating | None = None
        self._feed: Feed | None = None
        self._meters, self._measured_s = Meters(), -_MEASURE_S
        self._learned_before = self._restores = self._recoveries = self._rewinds = 0
        self._counted = dict.fromkeys(COUNTED, 0.0)

    def run(self, stop: threading.Event, *, until: Until | None = None, show: Show = lambda one: None) -> TrainReport:
        """Learn until `stop` is set or the feed ends; the last version says all that was learned.

        Args:
            stop: Ends the run at the next step boundary.
            until: When the feed ends; never by default.
            show: Called between steps, for people.

        Raises:
            RunOver: A newer run has taken over.
            PositionLost: Samples that come next are gone from the topic, and that is not accepted.
            StreamlearnError: What cannot be recovered from.
        """
        try:
            with ExitStack() as ends:
                return self._run(stop, until or Until(), show, ends)
        except PositionLost as error:
            raise PositionLost(error.message, help=_LOST_HELP) from error

    def _run(self, stop: threading.Event, until: Until, show: Show, ends: ExitStack) -> TrainReport:
        begin_s = self._clock.monotonic_s()
        resumed = self.publisher.start()
        _LOG.info("run %d continues from %s", resumed.run, resumed.ref or "nothing")
        if resumed.chain is not None and resumed.chain.manifest.labels is None:
            trusted = (resumed.chain.version, self._lineage.model, ", ".join(self._folder.app.label_names))
            text = "version %d of %r does not list its labels: the trainer assumes %s; the next version lists them"
            _LOG.warning(text, *trusted)
        if self._begin_with is not None:
            resumed = self._begun_from(resumed, self._begin_with)
        failures, failed_at = 0, None
        while True:
            try:
                with PULSE.patience(self._apart_s_max):
                    self._restore(resumed)
                    self._validating = self._validating or ends.enter_context(self._begun_validating())
                    was_put_back = self._obey(resumed)
                PULSE.ready()
                if not was_put_back and not self._learn(stop, until, show):
                    break
                with PULSE.patience(self._apart_s_max):
                    resumed = self.publisher.resume()
            except _RECOVERABLE as error:
                # What failed counts from the newest version on: a run is never too old to recover.
                failures = failures + 1 if self.publisher.committed == failed_at else 1
                failed_at = self.publisher.committed
                if failures > _RECOVERIES_MAX:
                    raise
                _LOG.warning("%s; restoring all shards to the newest version", error.message)
                with PULSE.patience(self._apart_s_max):
                    resumed, self._recoveries = self._resumed(error), self._recoveries + 1
        committed = self.publisher.committed
        assert committed is not None
        seconds = self._clock.monotonic_s() - begin_s
        return TrainReport(
            run=resumed.run,
            version=committed.version,
            seconds=seconds,
            recoveries=self._recoveries,
            rewinds=self._rewinds,
            tally=self.tally,
            summary=self.summary,
            carried=self._carried,
            lost=self._lost,
        )

    def _resumed(self, error: StreamlearnError) -> Resumed:
        """Where to go on after a failure.

        Raises:
            RunOver: A newer run has taken over.
            ShardRefused: Shards are of a later run, and the store knows of none: it is not the one that they wrote to.
        """
        # Looked at before the store, which knows every run that shards can know of then.
        later = self._later_shard() if isinstance(error, EpochOver) else ""
        resumed = self.publisher.resume()
        if later:
            message = (
                f"{later}, but {self._store.url} has no run of {self._folder.app.name!r} later than this one, "
                f"{resumed.run}: its contents were lost, or it is another store"
            )
            help = (
                "restore the contents of the store, or set versions.store to the right one; to start over in "
                "this one, restart the shards"
            )
            raise ShardRefused(message, help=help)
        return resumed

    def _later_shard(self) -> str:
        """What says that a shard was restored by a later run; empty where nothing does."""
        run = self.publisher.run
        try:
            found = self._client.stats()
        except (EpochOver, ShardUnreachable):  # it lets nobody of this epoch in to be asked; restoring it will say why
            return ""
        later = [one for one in found if one.epoch is not None and one.epoch.run > run]
        return f"shard {later[0].place} is in epoch {later[0].epoch}" if later else ""

    @property
    def lag(self) -> int:
        """Messages that are in the topic and were not read yet."""
        return 0 if self._feed is None else self._feed.lag

    @property
    def recoveries(self) -> int:
        """How often all shards were restored so far."""
        return self._recoveries

    @property
    def counted(self) -> dict[str, float]:
        """What was learned up to now in all of the model's history, by name; see `COUNTED`."""
        return dict(self._counted)

    @property
    def summary(self) -> dict[str, float]:
        """How well first predictions fit, in the newest closed windows, by name."""
        return {} if self._validating is None else self._validating.summary

    @property
    def reached(self) -> Reached | None:
        """Up to where messages are learned; None before anything was restored."""
        return self._reached

    def _restore(self, resumed: Resumed) -> None:
        """Bring everything to where a version has it; write the first one where there is none."""
        epoch = Epoch(resumed.run, self._restores)
        self._restores += 1  # also where it fails: shards may have heard of it, and the next is to be a higher one
        self._client.restore(epoch, resumed.ref)
        self._remembered = Remembered(len(self._folder.app.labels), self._folder.settings.marks)
        self._reached = restore(resumed.chain, self._topic, self._learner, self._remembered)
        if self._accept_lost:
            self._reached, lost = from_what_is_there(self._topic, self._reached)
            self._lost |= lost
        self._skips = () if resumed.chain is None else resumed.chain.manifest.skips
        self._recent.leave_out(SkippedRows(self._skips))
        self._learned_before = self.tally.rows
        known = {} if resumed.chain is None else resumed.chain.manifest.metrics
        self._counted = {name: known.get(name, 0.0) for name in COUNTED}
        if resumed.chain is None and self._begin_with is None:
            self.publisher.first(self._note)

    def _begun_from(self, resumed: Resumed, begin_with: Chain) -> Resumed:
        """Write the first version from another model's."""
        if resumed.chain is not None:
            message = f"model {self._folder.app.name!r} already has versions, the newest is {resumed.chain.version}"
            raise UsageError(
                message, help="leave --from out to continue from it; use --from only for a model without versions"
            )
        self._restore(resumed)
        head = self._lineage.head(resumed.run, self.publisher.take_number(), None)
        self._carried, _ = carry(self._store, begin_with, head, self._note(), self._learner)
        _LOG.info("began with %s", self._carried.said)
        return self.publisher.resume()

    def _begun_validating(self) -> Validating:
        """Rows that are learned again after a recovery keep the first prediction that was made of them."""
        assert self._reached is not None
        app, settings = self._folder.app, self._folder.settings.validation
        return Validating(app, settings, told=self._scored, learned_before_ms=self._reached.clock_ms)

    def _obey(self, resumed: Resumed) -> bool:
        """Put training back as operators asked; whether it was. What cannot be obeyed is refused, and stops nothing."""
        before = self._rewinds
        for request in resumed.requests:
            try:
                self._check_samples_of(request)
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

    def _check_samples_of(self, request: Request) -> None:
        """That the samples are still there that come after a version: who goes back to it needs them."""
        if not self._accept_lost:
            found = Chain.find(self._store, self._folder.app.name, request.to.version).manifest.positions
            positions = [TopicPosition(one.topic_id, one.partition, one.offset) for one in found]
            self._topic.reader(positions=positions).close()

    def _learn(self, stop: threading.Event, until: Until, show: Show) -> bool:
        """Learn until the end; whether training is to be put back before it goes on."""
        assert self._reached is not None
        assert self._remembered is not None
        settings = self._folder.settings.trainer
        counts, seconds = self.tally.counts, self.tally.seconds
        assert self._validating is not None
        refused = self._validating.refuse
        stepping = Stepping(
            self._remembered, settings.step_rows, SkippedRows(self._skips), self._horizon_ms, refused=refused
        )
        with ExitStack() as ends:
            feed = Feed(
                self._folder, self._topic, self._reached, stepping,
                until=until, keep_aside=self._kept.add, clock=self._clock,
            )  # fmt: skip
            ends.callback(feed.close)
            self._feed = feed
            learning = Learning(
                self._folder, feed, self._learner, self._rows, self._remembered,
                kept=self._kept, tally=self.tally, learned=self._pushed, refused=refused, clock=self._clock,
            )  # fmt: skip

            def count() -> None:
                self.tally.counts = _sums(counts, msgspec.to_builtins(stepping.counts) | {"bad": feed.bad})
                self.tally.seconds = _sums(seconds, learning.seconds)

            ends.callback(count)
            for _ in ends.enter_context(closing(learning.run(stop))):
                if PULSE.is_due and learning.has_gone_round:
                    PULSE.beat()
                self._reached = learning.reached or self._reached
                if self.publisher.is_due:
                    learning.drain()
                    self.publisher.boundary(self._note)
                if self.publisher.requests:
                    learning.drain()
                    with PULSE.patience(self._apart_s_max):
                        self.publisher.settle()
                    return True
                count()
                self._measure()
                show(self)
            self._reached = learning.reached or self._reached
        with PULSE.patience(self._apart_s_max):
            return self._finish()

    def _pushed(self, done: Done) -> None:
        """A step was learned and pushed; told by the thread that did."""
        assert self._validating is not None
        assert done.learned is not None
        self._newest = done.step.pieces
        self._meters.learned(done.step.pieces, self._clock.wall_ms())
        columns = done.columns
        bits = (len(columns), np.bitwise_count(columns.learn).sum(), np.bitwise_count(columns.correct).sum())
        for name, count in zip(COUNTED, bits, strict=True):
            self._counted[name] += float(count)
        self._validating.add(done.columns, done.learned)
        self._recent.add(done.step.pieces, done.step.reached.watermark_ms)
        # Before the next step is pulled, and before a version is cut: so that it is at the same place in every run.
        if self._expiry.is_due(done.steps):
            self._expiry.look(done.steps, done.step.reached)
        self._told(done)

    def _measure(self) -> None:
        tally, counts = self.tally, self.tally.counts
        now_s = self._clock.monotonic_s()
        if now_s - self._measured_s < _MEASURE_S:
            return
        self._measured_s = now_s
        assert self._remembered is not None
        others = {name: count for name, count in counts.items() if name != "read"}
        self._meters.rows({"learned": tally.rows, "refused": tally.refused_rows, **others})
        self._meters.steps({"learned": tally.steps, "refused": tally.refused_steps})
        self._meters.seconds(tally.seconds)
        self._meters.loss(tally.loss, tally.rows)
        self._meters.state(
            behind=self.lag,
            marks_ratio=self._remembered.bytes / self._folder.settings.marks.bytes_max,
            clock_ms=None if self._reached is None else self._reached.clock_ms,
            recoveries=self._recoveries,
            rewinds=self._rewinds,
        )

    def _finish(self) -> bool:
        """Publish what is left; whether a request came meanwhile."""
        assert self._validating is not None
        self._validating.catch_up()
        self.publisher.settle()
        while self.publisher.learned_rows < self.tally.rows - self._learned_before or self.publisher.is_behind(
            self._positions()
        ):
            self.publisher.make_due()
            self.publisher.boundary(self._note)
            self.publisher.settle()
        return bool(self.publisher.requests)

    def _note(self) -> Noted:
        """What a version has beside rows, at this step boundary."""
        assert self._reached is not None
        assert self._remembered is not None
        reached = self._reached
        watermark_ms = reached.watermark_ms
        if watermark_ms is not None:
            self._remembered.forget(watermark_ms - self._horizon_ms)
        learned = self.tally.rows - self._learned_before
        return Noted(
            cut=Cut(
                positions=self._positions(), watermark_ms=watermark_ms, skips=self._skips, graph=self._graph,
                metrics=self._metrics(),
            ),
            learned_rows=learned,
            dense=self._learner.dense(),
            dense_optimizer=self._learner.optimizer_state(),
            marks=self._remembered.save(reached),
            golden=self._golden(),
        )  # fmt: skip

    def _positions(self) -> tuple[Position, ...]:
        """Where samples go on."""
        assert self._reached is not None
        topic = self._topic
        return tuple(
            Position(topic=topic.url, topic_id=topic.topic_id, partition=partition, offset=offset)
            for partition, offset in enumerate(self._reached.offsets)
        )

    def _golden(self) -> dict[str, bytes]:
        """Requests that were learned from lately, as they are scored now; nothing before any."""
        batch = golden_rows(self._newest)
        if batch is None:
            return {}
        logits = score_rows(self._learner, self._rows, batch, self._folder.settings.trainer.step_rows)
        return golden_bytes(self._codec, batch, logits)

    def _metrics(self) -> dict[str, float]:
        return {"steps": float(self._learner.steps)} | self._counted | self.summary


def _sums(before: Mapping[str, Count], now: Mapping[str, Count]) -> dict[str, Count]:
    return {name: before.get(name, 0) + one for name, one in now.items()}
