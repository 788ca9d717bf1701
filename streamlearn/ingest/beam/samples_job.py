"""SamplesJob: one run of ingest, events to samples, until its topics end or it is told to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import IngestOver, PipelineFailed, StreamlearnError, TopicMissing, TopicUnreachable
from streamlearn.ingest.beam.cut_lots import CutLots
from streamlearn.ingest.beam.handover import close_tickets
from streamlearn.ingest.beam.join_lots import METRICS, JoinLots, MakerOf
from streamlearn.ingest.beam.prism import Prism
from streamlearn.ingest.beam.rounds import ROUNDS
from streamlearn.ingest.beam.runners import counters_of, kind_of, require_job_server, runner_options
from streamlearn.ingest.beam.source import read_events
from streamlearn.ingest.beam.worker_errors import Heard, failure_of
from streamlearn.ingest.join.join_cache import close_shelf
from streamlearn.ingest.output.fingerprint_check import require_alike
from streamlearn.ingest.output.progress_keeper import partitions_of
from streamlearn.ingest.output.progress_log import ProgressLog
from streamlearn.ingest.output.sample_maker import SampleMaker
from streamlearn.ingest.output.sample_sink import MakesSamples
from streamlearn.ingest.output.sink_counts import Written
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.ingest.reading.start import begin_run
from streamlearn.pulse import PULSE
from streamlearn.samples import SampleCodec

__all__ = ["SamplesJob", "SamplesReport", "run_samples", "samples_pipeline"]

_LOG = logging.getLogger(__name__)
_LOOK_S, _ASK_S, _GONE_S_MAX = 0.25, 1.0, 5.0
_TEXT_CHARS_MAX = 8_000
# Its job servers tell time by whole seconds, and fire a timer once time is beyond it.
_FLINK_LAG_MS = 1_000


@dataclass(frozen=True)
class SamplesReport:
    """What a run did.

    Attributes:
        run: Its number.
        start_ms: T0; None: it read everything there was.
        seconds: How long it took.
        stopped: Whether it was told to stop, or its job was stopped on Flink, before its topics had ended.
        counts: What became of events and rows, by what; see the join's page.
        written: Samples and dead letters; None where the runner does not say, as of a job of Flink's that was ended.
    """

    run: int
    start_ms: int | None
    seconds: float
    stopped: bool
    counts: Mapping[str, int]
    written: Written | None


def samples_pipeline(
    pipeline: beam.Pipeline,
    plan: ReadPlan,
    app: str,
    changes: tuple[str, ...],
    maker_of: MakerOf,
    *,
    kind: str,
) -> None:
    """Put the steps of ingest into a pipeline.

    Args:
        pipeline: Where to.
        plan: What is read, of `begin_run`.
        app: The application's folder, on the workers.
        changes: What `--set` says.
        maker_of: Makes the maker of samples, on a worker; importable there.
        kind: The runner, of `kind_of`.
    """
    in_process = kind == "prism"  # which gives all work to one process, and nothing twice
    read = read_events(plan, whole=in_process, endless=kind == "flink", in_process=in_process)
    cut: Any = beam.ParDo(CutLots(plan, app, changes, in_process=in_process))  # type: ignore[no-untyped-call]
    lag_ms = _FLINK_LAG_MS if kind == "flink" else 0
    join_lots = JoinLots(plan, app, changes, maker_of, in_process=in_process, timer_lag_ms=lag_ms)
    join: Any = beam.ParDo(join_lots)  # type: ignore[no-untyped-call]
    _ = pipeline | "Read" >> read | "Cut" >> cut | "Join" >> join


class SamplesJob:
    """A run of ingest on a runner.

    Guaranteed: once it was stopped it reads nothing more; what is due by then is given out, its progress is written,
    and the next run goes on from there. A stop reaches readers wherever they are, through the progress topic.

    Args:
        folder: The application; workers load it from the same folder.
        changes: What `--set` says.
        runner: A runner's name; the settings' when empty.
        accept_lost: Begin where the topics still have records, even if some that are needed were deleted.
        more: Further Beam options.
        maker_of: Makes the maker of samples, on a worker.
        clock: How long it takes.

    Raises:
        UsageError: The runner is wrong for topics, or lacks what it needs.
        TopicError: A topic is missing, or cannot be reached.
        ConfigError: The samples there are of other features.
    """

    def __init__(
        self,
        folder: AppFolder,
        maker_of: MakerOf,
        *,
        changes: Sequence[str] = (),
        runner: str = "",
        accept_lost: bool = False,
        more: Sequence[str] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        options = runner_options(folder.settings.ingest, runner=runner, more=more)
        require_job_server(options)
        _require_topics(folder)  # before the run before it is ended
        require_alike(folder)
        self._folder, self._maker_of, self._clock = folder, maker_of, clock
        self._begun_s = self._asked_s = clock.monotonic_s()
        plan = begin_run(folder, accept_lost=accept_lost, clock=clock)
        self._plan = replace(plan, app=str(folder.folder.resolve()), changes=tuple(changes))
        self._heard = Heard()
        self._heard.listen()
        self._prism = Prism.of(options)
        pipeline = self._prism.pipeline() if self._prism else beam.Pipeline(options=options)
        self._kind = kind_of(runner or folder.settings.ingest.runner)
        samples_pipeline(pipeline, self._plan, self._plan.app, self._plan.changes, maker_of, kind=self._kind)
        self._result: Any = self._started(pipeline)
        self._done = threading.Event()
        self._error: Exception | None = None
        # A signal comes to the main thread, which is not to wait for a runner.
        threading.Thread(target=self._wait, name="streamlearn-ingest-job", daemon=True).start()

    def wait(self, stop: threading.Event) -> SamplesReport:
        """Wait until it has ended.

        Args:
            stop: Once it is set, the run is told to stop.

        Raises:
            StreamlearnError: What a worker raised.
            PipelineFailed: The runner gave up for another reason.
        """
        try:
            told, over = self._wait_for_end(stop)
            if self._error is not None and not over:
                raise self._failure(self._error) from self._error
            # A job of Flink's that ended before its lots was stopped there, with a savepoint perhaps.
            stopped = told or (self._kind == "flink" and not over)
            if not stopped:
                self._say_end()
            seconds = self._clock.monotonic_s() - self._begun_s
            counts, written = counters_of(self._result, METRICS), None if over else Written.of(self._result)
            return SamplesReport(self._plan.run, self._plan.start_ms, seconds, stopped, counts, written)
        finally:
            close_shelf(self._plan.progress_url, self._plan.run)
            close_tickets(self._plan.progress_url, self._plan.run)
            self._let_go()

    def _wait_for_end(self, stop: threading.Event) -> tuple[bool, bool]:
        """Whether it was told to stop before it had ended; and whether it was over before its runner saw that."""
        told, over, gone_s = False, False, 0.0
        with ExitStack() as stack:
            asked = stack.enter_context(self._progress()) if self._kind == "flink" else None
            while not self._done.wait(_LOOK_S):
                # On Flink work is elsewhere, and Flink looks after it.
                if self._kind != "prism" or ROUNDS.have_gone_on():
                    PULSE.ready()
                    PULSE.beat()
                if stop.is_set() and not told:
                    told = True
                    PULSE.stopping()
                    _LOG.info("run %d has stopped reading; due samples are written", self._plan.run)
                    with self._progress() as log:
                        log.stop(self._plan.run, self._plan.lineage)
                if asked is not None and not over and self._has_ended(asked):
                    over = True
                    self._result.cancel()
                if self._prism is not None and (failure := self._prism.failure()) is not None:
                    # Its connections end with it, and the job hears of that; nobody waits for a job that does not.
                    gone_s += _LOOK_S
                    if gone_s > _GONE_S_MAX:
                        raise failure
        return told, over

    def _progress(self) -> ProgressLog:
        return ProgressLog.open(self._plan.progress_url, self._plan.access, clock=self._clock)

    def _failure(self, error: Exception) -> StreamlearnError:
        """What ended the job: the end of its runner, or what a worker raised."""
        gone = self._prism and self._prism.failure(error)
        return gone or failure_of([*self._heard.texts, str(error)])

    def _let_go(self) -> None:
        self._heard.end()
        if self._prism is not None:
            self._prism.stop()

    def _has_ended(self, log: ProgressLog) -> bool:
        """Whether nothing more follows, and it is only the runner that does not see it; asked about every second."""
        now_s = self._clock.monotonic_s()
        if now_s - self._asked_s < _ASK_S:
            return False
        self._asked_s = now_s
        try:
            return log.check(self._plan.run).has_ended(self._plan.run, self._plan.lineage.lots_count)
        except IngestOver:  # Flink would start what raises that again and again
            self._result.cancel()
            raise
        except TopicUnreachable as error:  # a broker that is away is the workers' to wait for
            _LOG.info("cannot ask for the progress of run %d: %s", self._plan.run, error.message)
            return False

    def _started(self, pipeline: beam.Pipeline) -> Any:
        """Have the runner begin."""
        try:
            return pipeline.run()
        except Exception as error:  # of whatever kind each runner has
            self._let_go()
            message = f"the runner did not start: {str(error)[:_TEXT_CHARS_MAX]}"
            help = (
                "prism is a binary: `make fetch` builds it, and ingest.prism_location names another one; "
                "flink needs a job server at ingest.job_endpoint"
            )
            raise PipelineFailed(message, help=help) from error

    def _wait(self) -> None:
        try:
            self._result.wait_until_finish()
        except Exception as error:  # whatever it is, whoever waits is told
            self._error = error
        finally:
            self._done.set()

    def _say_end(self) -> None:
        """Every lot is as far as the one that is furthest, once nothing follows: whoever merges partitions hears it."""
        folder, plan = self._folder, self._plan
        with ExitStack() as stack:
            log = stack.enter_context(ProgressLog.open(plan.progress_url, plan.access, clock=self._clock))
            own = [one.reached_ms for one in log.check(plan.run).lots.values() if one.ingest_run == plan.run]
            if not own:
                return
            topic = stack.enter_context(folder.open_topic("samples"))
            writer = stack.enter_context(topic.writer(folder.writer_settings))
            maker = self._maker_of(folder, plan)
            stack.callback(maker.close)
            codec, lots_count = SampleCodec(folder.app, folder.settings.samples), plan.lineage.lots_count
            for lot in range(lots_count):
                message = codec.encode(maker.empty(lot, max(own)))
                for partition in partitions_of(lot, lots_count, topic.partitions):
                    writer.send(partition, message)
            writer.flush()
            log.write(plan.run, plan.lineage, dict.fromkeys(range(lots_count), max(own)))


def run_samples(
    folder: AppFolder,
    stop: threading.Event,
    *,
    changes: Sequence[str] = (),
    runner: str = "",
    accept_lost: bool = False,
    more: Sequence[str] = (),
) -> SamplesReport:
    """Run ingest, from its beginning to its end.

    Args:
        folder: The application.
        stop: Once it is set, the run is told to stop.
        changes: What `--set` says.
        runner: A runner's name; the settings' when empty.
        accept_lost: Begin where the topics still have records, even if some that are needed were deleted.
        more: Further Beam options.

    Raises:
        StreamlearnError: It could not begin, or a worker raised it.
    """
    job = SamplesJob(folder, _maker_of, changes=changes, runner=runner, accept_lost=accept_lost, more=more)
    return job.wait(stop)


def _maker_of(folder: AppFolder, plan: ReadPlan) -> MakesSamples:
    return SampleMaker(folder, plan.lineage, plan.run)


def _require_topics(folder: AppFolder) -> None:
    """See that what is written to is there; it is never made by being written to."""
    for name in ("samples", "progress", "dead_letters"):
        try:
            folder.open_topic(name).close()
        except TopicMissing as error:
            hint = "streamlearn topics APP --create PARTITIONS creates all missing topics"
            raise TopicMissing(error.message, help=hint) from None
