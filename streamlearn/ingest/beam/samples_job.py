"""SamplesJob: one run of ingest, from events to samples, until its topics end or it is stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
import msgspec

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import IngestOver, PipelineFailed, StreamlearnError, TopicMissing, TopicUnreachable
from streamlearn.ingest.beam.cut_lots import CutLots
from streamlearn.ingest.beam.handover import close_tickets
from streamlearn.ingest.beam.join_lots import METRICS, JoinLots, JoinLotsInProcess
from streamlearn.ingest.beam.prism import Prism
from streamlearn.ingest.beam.rounds import ROUNDS
from streamlearn.ingest.beam.runners import (
    counters_of,
    has_own_workers,
    kind_of,
    require_job_server,
    runner_options,
)
from streamlearn.ingest.beam.source import read_events
from streamlearn.ingest.beam.worker_errors import WorkerErrors, failure_of
from streamlearn.ingest.beam.worker_pool import listen_on_loopback
from streamlearn.ingest.join.join_cache import close_shelf
from streamlearn.ingest.output.fingerprint_check import require_alike
from streamlearn.ingest.output.progress_log import ProgressLog
from streamlearn.ingest.output.sample_sink import write_watermark
from streamlearn.ingest.output.sink_counts import Written
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.ingest.reading.start import begin_run
from streamlearn.pulse import PULSE

__all__ = ["SamplesJob", "SamplesReport", "run_samples", "samples_pipeline"]

_LOG = logging.getLogger(__name__)
_LOOK_S, _PROGRESS_S, _GONE_S_MAX = 0.25, 1.0, 5.0
_TEXT_CHARS_MAX = 8_000
# Flink's job servers count whole seconds, and fire a timer once event time is beyond it. They take a shorter wait
# before the next poll as none.
_FLINK_LAG_MS, _FLINK_POLL_S_MIN = 1_000, 1.0


@dataclass(frozen=True)
class SamplesReport:
    """The result of a run.

    Attributes:
        start_ms: T0; None: it read everything.
        seconds: Its duration.
        stopped: Whether the run, or its Flink job, was stopped before its topics ended.
        counts: Outcomes of events and rows, by name; docs/internals/join.md lists them.
        written: Samples and dead letters; None if the runner does not report them, as for a cancelled Flink job.
    """

    run: int
    start_ms: int | None
    seconds: float
    stopped: bool
    counts: Mapping[str, int]
    written: Written | None


def samples_pipeline(pipeline: beam.Pipeline, plan: ReadPlan, *, kind: str) -> None:
    """Add the steps of ingest to a pipeline, for a runner of `kind_of`."""
    in_process = kind == "prism"  # it runs all work in one process, and delivers nothing twice
    plan = _for_flink(plan) if kind == "flink" else plan
    read = read_events(plan, whole=in_process, endless=kind == "flink", in_process=in_process)
    cut: Any = beam.ParDo(CutLots(plan, in_process=in_process))  # type: ignore[no-untyped-call]
    lag_ms = _FLINK_LAG_MS if kind == "flink" else 0
    join_lots = JoinLotsInProcess(plan) if in_process else JoinLots(plan, timer_lag_ms=lag_ms)
    join: Any = beam.ParDo(join_lots)  # type: ignore[no-untyped-call]
    _ = pipeline | "Read" >> read | "Cut" >> cut | "Join" >> join


class SamplesJob:
    """A run of ingest on a runner; workers load the application from the same folder.

    Guaranteed: after a stop it reads nothing more; samples due by then are written, then its progress, and the next run
    continues from there. The progress topic carries the stop to readers, wherever they are.

    `changes` are the values of `--set`. Without a `runner` the setting counts. With `accept_lost` the run begins where
    the topics still have records, even if records that it needs were deleted. `more` are further Beam options.

    Raises:
        UsageError: The runner is wrong for topics, or lacks something that it needs.
        TopicError: A topic is missing, or cannot be reached.
        ConfigError: The topic has samples with other features.
    """

    def __init__(
        self,
        folder: AppFolder,
        *,
        changes: Sequence[str] = (),
        runner: str = "",
        accept_lost: bool = False,
        more: Sequence[str] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        options = runner_options(folder.settings.ingest, runner=runner, more=more)
        require_job_server(options)
        _require_topics(folder)  # before `begin_run` ends the run before
        require_alike(folder)
        self._folder, self._clock = folder, clock
        self._begun_s = self._asked_s = clock.monotonic_s()
        self._opened = ExitStack()
        plan = begin_run(folder, accept_lost=accept_lost, clock=clock)
        self._plan = replace(plan, app=str(folder.folder.resolve()), changes=tuple(changes))
        self._prism = Prism.of(options)
        if self._prism is not None:
            self._opened.callback(self._prism.stop)
        self._errors = self._opened.enter_context(WorkerErrors())
        pipeline = self._prism.pipeline() if self._prism else beam.Pipeline(options=options)
        self._kind = kind_of(runner or folder.settings.ingest.runner)
        self._has_own_workers = has_own_workers(options)
        samples_pipeline(pipeline, self._plan, kind=self._kind)
        self._result: Any = self._begin(pipeline)
        self._done = threading.Event()
        self._error: Exception | None = None
        # Signals reach the main thread, which therefore must not block in a runner.
        threading.Thread(target=self._wait, name="streamlearn-ingest-job", daemon=True).start()

    def wait(self, stop: threading.Event) -> SamplesReport:
        """Wait for the end of the run; tell it to stop once `stop` is set.

        Raises the error of a worker, or `PipelineFailed` if the runner gave up for another reason.
        """
        try:
            was_stopped, is_over = self._wait_for_end(stop)
            if self._error is not None and not is_over:
                raise self._failure(self._error) from self._error
            # A Flink job that ended before its lots was stopped there, perhaps with a savepoint.
            stopped = was_stopped or (self._kind == "flink" and not is_over)
            if not stopped:
                self._write_end()
            seconds = self._clock.monotonic_s() - self._begun_s
            counts, written = counters_of(self._result, METRICS), None if is_over else Written.of(self._result)
            return SamplesReport(self._plan.run, self._plan.start_ms, seconds, stopped, counts, written)
        finally:
            close_shelf(self._plan.progress_url, self._plan.run)
            close_tickets(self._plan.progress_url, self._plan.run)
            self._opened.close()

    def _wait_for_end(self, stop: threading.Event) -> tuple[bool, bool]:
        """Return whether `stop` ended the run, and whether all its lots ended before its runner noticed."""
        was_stopped, is_over, gone_s = False, False, 0.0
        with ExitStack() as stack:
            progress = stack.enter_context(self._progress()) if self._kind == "flink" else None
            while not self._done.wait(_LOOK_S):
                # Where workers run elsewhere, the runner watches and restarts them.
                if ROUNDS.is_set() or not self._has_own_workers:
                    ROUNDS.clear()
                    PULSE.ready()
                    PULSE.beat()
                if stop.is_set() and not was_stopped:
                    was_stopped = True
                    PULSE.stopping()
                    _LOG.info("run %d has stopped reading; due samples are written", self._plan.run)
                    with self._progress() as log:
                        log.stop(self._plan.run, self._plan.lineage)
                if progress is not None and not is_over and self._has_ended(progress):
                    is_over = True
                    self._result.cancel()
                if self._prism is not None and (failure := self._prism.failure()) is not None:
                    # Its connections end with it, and so should the job; do not wait for one that hangs.
                    gone_s += _LOOK_S
                    if gone_s > _GONE_S_MAX:
                        raise failure
        return was_stopped, is_over

    def _progress(self) -> ProgressLog:
        plan = self._plan
        return ProgressLog.open(plan.progress_url, plan.access, plan.writing, clock=self._clock)

    def _failure(self, error: Exception) -> StreamlearnError:
        """Return what ended the job: the end of its runner, or a worker's error."""
        return (self._prism and self._prism.failure(error)) or failure_of([*self._errors.texts, str(error)])

    def _has_ended(self, log: ProgressLog) -> bool:
        """Whether all lots have ended although the runner still runs; asked about every second."""
        now_s = self._clock.monotonic_s()
        if now_s - self._asked_s < _PROGRESS_S:
            return False
        self._asked_s = now_s
        try:
            return log.check(self._plan.run).has_ended(self._plan.run, self._plan.lineage.lots_count)
        except IngestOver:  # Flink would restart the failing tasks forever
            self._result.cancel()
            raise
        except TopicUnreachable as error:  # the workers wait for the broker
            _LOG.info("cannot ask for the progress of run %d: %s", self._plan.run, error.message)
            return False

    def _begin(self, pipeline: beam.Pipeline) -> Any:
        listen_on_loopback()
        try:
            return pipeline.run()
        except Exception as error:  # each runner raises its own kinds
            self._opened.close()
            message = f"the runner did not start: {str(error)[:_TEXT_CHARS_MAX]}"
            help = (
                "prism is a binary: `make fetch` builds it, and ingest.prism_location names another one; "
                "flink needs a job server at ingest.job_endpoint"
            )
            raise PipelineFailed(message, help=help) from error

    def _wait(self) -> None:
        try:
            self._result.wait_until_finish()
        except Exception as error:  # `wait` raises it
            self._error = error
        finally:
            self._done.set()

    def _write_end(self) -> None:
        """Advance every lot to the one that is furthest, so that consumers that merge partitions see the end."""
        plan = self._plan
        with self._progress() as log:
            lots = log.check(plan.run).lots.values()
            reached_ms = [progress.reached_ms for progress in lots if progress.ingest_run == plan.run]
            if reached_ms:
                end_ms = max(reached_ms)
                write_watermark(self._folder, plan, end_ms)
                log.write(plan.run, plan.lineage, dict.fromkeys(range(plan.lineage.lots_count), end_ms))


def run_samples(
    folder: AppFolder,
    stop: threading.Event,
    *,
    changes: Sequence[str] = (),
    runner: str = "",
    accept_lost: bool = False,
    more: Sequence[str] = (),
) -> SamplesReport:
    """Run ingest until its topics end, or until `stop` is set; see `SamplesJob` for the options.

    Raises a `StreamlearnError` if it could not begin, and the error of a worker.
    """
    job = SamplesJob(folder, changes=changes, runner=runner, accept_lost=accept_lost, more=more)
    return job.wait(stop)


def _for_flink(plan: ReadPlan) -> ReadPlan:
    poll_s = max(plan.settings.poll_s, _FLINK_POLL_S_MIN)
    return replace(plan, settings=msgspec.structs.replace(plan.settings, poll_s=poll_s))


def _require_topics(folder: AppFolder) -> None:
    """Check that the output topics exist: writing does not create them."""
    for name in folder.topics[2:]:
        try:
            folder.open_topic(name).close()
        except TopicMissing as error:
            hint = "`streamlearn topics APP --create 4` creates all missing topics, with 4 partitions"
            raise TopicMissing(error.message, help=hint) from None
