"""Ingest: a broker's events to samples, on Prism and on Flink, against a pipeline of single events."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.join import measure_join
from benchmarks.result import Result
from benchmarks.streams.ingest_before import prism_of, tree_of
from benchmarks.streams.ingest_events import EventCounts, history_of, write_events
from benchmarks.streams.ingest_place import ROOT, Place, end_of, result_of, running
from benchmarks.streams.ingest_rescale import rescaled
from benchmarks.streams.ingest_samples import made_of, watch
from streamlearn.apps import AppFolder
from streamlearn.errors import ServiceError
from streamlearn.ingest import ProgressLog
from tools.services import FlinkJobServer, Kafka, prism_path
from tools.services.cache import Cache

__all__ = ["run"]

Note = Callable[[str], None]

JOB_S_MAX, BEGIN_S_MAX = 600.0, 60.0
# Event time is replayed. A history spans more than a window, so that requests expire as fast as they arrive.
SPAN_S = 900
LIVE_RATE = 20_000.0
# On Flink a reader continues delayed work only at the end of a bundle; a checkpoint ends bundles.
FLINK_CHECKPOINT_S = 1
# A rescaled job has to keep pace with its traffic, however busy the machine is.
RESCALE_RATE = 500.0
PARTS = ("prism", "flink", "rescale", "per_event", "latency")
# A live producer writes a block every 50 ms; an event is on the broker within twice that.
LIVE_DISORDER_S = 0.2


@dataclass(frozen=True)
class _Sizes:
    """The sizes of a run."""

    events: int
    per_event_events: int
    live_s: float
    live_warm_s: float
    turns: int


FULL = _Sizes(events=1_000_000, per_event_events=20_000, live_s=60.0, live_warm_s=10.0, turns=5)
QUICK = _Sizes(events=150_000, per_event_events=3_000, live_s=14.0, live_warm_s=6.0, turns=2)


def run(quick: bool, note: Note, before: str = "", only: str = "") -> Result:
    """Measure jobs on a local broker, and the join alone; jobs on Prism also beside those of the commit `before`.

    `only` is one part: a method of `_Bench`.
    """
    result, sizes = Result("ingest"), QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as name:
        folder = Path(name)
        with Kafka.start(folder / "kafka") as kafka:
            bench = _Bench(kafka.address, folder, sizes, result, note)
            if before and only in ("", "before"):
                bench.before(before)
            for name in PARTS if not only else (only,) if only in PARTS else ():
                getattr(bench, name)()
    if only:
        return result
    note("the join alone")
    few, many = 100_000, 1_000_000 if quick else 10_000_000
    costs = [measure_join(pending, 400_000 if quick else 2_000_000, result.figures) for pending in (few, many)]
    result.figures["joincore_events_per_s_core"] = 1 / costs[1]
    result.figures["joincore_cost_growth"] = costs[1] / costs[0]
    result.figures["joincore_pending"] = many
    return result


class _Bench:
    """The jobs on one broker."""

    def __init__(self, address: str, folder: Path, sizes: _Sizes, result: Result, note: Note) -> None:
        self._address, self._folder, self._sizes, self._result, self._note = address, folder, sizes, result, note
        self._written: dict[str, EventCounts] = {}
        self._prism = [f"--prism_location={prism_path()}", "--prism_log_level=error"]

    def prism(self) -> None:
        """Measure the source alone and whole jobs, with packed events and with one event per record."""
        events = self._sizes.events
        for name, is_packed in (("packed", True), ("alone", False)):
            place = self._place(name, f"{name}-prism")
            self._write(name, place, events, is_packed=is_packed)
            figure = "prism_packed" if is_packed else "prism"
            self._note(f"{figure}: the source alone")
            self._source(name, f"{figure}_source_events_per_s")
            self._note(f"{figure}: whole jobs")
            self._whole(name, place, self._prism, f"{figure}_events_per_s")

    def flink(self) -> None:
        """Measure a whole job on a local Flink, with one event per record. Without Flink, it is not measured."""
        try:
            server = FlinkJobServer.start(self._folder / "flink")
        except ServiceError as error:
            self._result.unmeasured["flink_events_per_s"] = error.message
            self._note(f"no Flink, so flink_events_per_s is not measured: {error.message}")
            return
        with server:
            self._note("flink: a whole job")
            changes = (
                "ingest.runner=flink",
                f"ingest.job_endpoint={server.job_endpoint}",
                f"ingest.artifact_endpoint={server.artifact_endpoint}",
                f"ingest.checkpoint_s={FLINK_CHECKPOINT_S}",
            )
            self._until_made("alone", self._place("alone", "alone-flink", changes), "flink_events_per_s")

    def before(self, commit: str) -> None:
        """Measure the processor time of an event on Prism, packed, in turns with the tree of an earlier commit."""
        self._note(f"before: a build of {commit}")
        costs: dict[str, list[tuple[float, float]]] = {"before": [], "now": []}
        with tree_of(commit, self._folder) as tree:
            trees = {"before": tree, "now": ROOT}
            flags = {side: [f"--prism_location={prism_of(at)}", self._prism[1]] for side, at in trees.items()}
            for turn in range(self._sizes.turns):
                for side, at in trees.items():
                    place = self._place("turns", f"turns-{side}-{turn}")
                    if "turns" not in self._written:
                        self._write("turns", place, self._sizes.events, is_packed=True)
                    written = self._written["turns"]
                    counts = self._job("samples", place, flags[side], at)
                    if made_of(place.folder).first_rows != written.items:
                        self._result.failures.append("prism_packed_cpu_to_before")
                        return
                    own, prism = (1e6 * counts[name] / written.events for name in ("cpu_s", "children_cpu_s"))
                    costs[side].append((own, prism))
                    self._note(f"{side}, turn {turn + 1}: {own:.2f} us an event in our process, {prism:.2f} in Prism's")
        before, now = (np.array(costs[side]) for side in ("before", "now"))
        figures = self._result.figures
        for side, figure in (("_before", before), ("", now)):
            own, prism = np.median(figure, axis=0).tolist()
            figures |= {f"turns_cpu{side}_us_per_event": own, f"turns_prism_cpu{side}_us_per_event": prism}
        whole = now.sum(axis=1) / before.sum(axis=1)
        figures["prism_packed_cpu_to_before"] = float(np.median(whole))
        figures["prism_packed_cpu_to_before_least"] = float(now.sum(axis=1).min() / before.sum(axis=1).min())
        figures["prism_packed_own_cpu_to_before"] = float(np.median(now[:, 0] / before[:, 0]))

    def rescale(self) -> None:
        """Count the rows of a job on two task managers that is rescaled in the midst of traffic."""
        try:
            FlinkJobServer.fetch(Cache())
        except ServiceError as error:
            self._result.unmeasured["flink_rescaled_lost"] = error.message
            self._note(f"no Flink, so flink_rescaled_lost is not measured: {error.message}")
            return
        counts = rescaled(self._address, self._folder, RESCALE_RATE, self._prism, self._note)
        written = [report["written"] or {} for report in counts.reports]
        self._note(f"rescaled: task managers of each run {counts.task_managers}; what they report: {written}")
        self._result.figures |= {
            "flink_rescaled_lost": counts.lost,
            "flink_rescaled_doubled": counts.doubled,
            "flink_rescaled_events": counts.events,
            "flink_rescaled_rows": counts.rows,
            "flink_rescaled_task_managers": min(counts.task_managers),
        }
        if counts.lost or counts.doubled or min(counts.task_managers) < 2:
            self._result.failures.append("flink_rescaled_lost")

    def per_event(self) -> None:
        """Measure the peer, on fewer events, because it is slow."""
        self._note("per_event_beam: a pipeline of single events")
        place = self._place("few", "few-per-event")
        written = self._write("few", place, self._sizes.per_event_events, is_packed=False)
        counts = self._job("per_event", place, self._prism)
        if counts["rows"] < written.items:
            message = f"the peer made {counts['rows']:.0f} rows of {written.items} items"
            raise ServiceError(message, help="its figure would be wrong: see benchmarks/streams/per_event_beam.py")
        rate = written.events / (counts["last_s"] - counts["begun_s"])
        self._result.figures["per_event_beam_events_per_s"] = rate
        for name in ("prism", "prism_packed"):
            ours = self._result.figures.get(f"{name}_events_per_s")
            if ours is not None:
                self._result.ratios[f"{name}_to_per_event_beam"] = ours / rate

    def latency(self) -> None:
        """Measure live traffic: the time from when a row is due until it can be read."""
        self._note(f"latency: {LIVE_RATE:,.0f} events a second for {self._sizes.live_s:.0f} s")
        # Idle lots report soon, so that the beginning of the job is visible.
        changes = (f"ingest.out_of_orderness_s={LIVE_DISORDER_S}", "ingest.idle_s=0.5")
        place, log = self._place("live", "live", changes, time="wall"), self._folder / "live.log"
        live = place.words("streams.ingest_live", str(place.folder.folder))
        live += ["--rate", str(LIVE_RATE), "--seconds", str(self._sizes.live_s)]
        job = [*place.words("streams.ingest_job", "samples", str(place.folder.folder)), *self._prism]
        until_s = time.monotonic() + self._sizes.live_s + JOB_S_MAX
        with running(job, log) as ingest:
            if not _report_all_lots(place.folder, lambda: ingest.poll() is not None):
                result_of(ingest, log, 1.0)  # raises with the reason
            with running(live, log) as producer:
                arrivals = watch(place.folder, lambda: ingest.poll() is not None or time.monotonic() > until_s)
                sent = result_of(producer, log, 1.0)
            result_of(ingest, log, 1.0)
        begin_ms = sent["begin_ms"] + 1_000 * self._sizes.live_warm_s
        # The end mark settles all remaining rows at once: they are not live.
        is_live = (arrivals.settle_ms >= begin_ms) & (arrivals.settle_ms < sent["reached_ms"] - 1_000)
        delay_s = (arrivals.arrived_ms - arrivals.settle_ms)[is_live] / 1_000
        if not len(delay_s):
            self._result.failures.append("emit_latency_p99_s")
            return
        for share in (50, 99):
            self._result.figures[f"emit_latency_p{share}_s"] = float(np.percentile(delay_s, share))
        self._result.figures["live_events_per_s"] = sent["events"] / sent["seconds"]

    def _place(self, events: str, job: str, changes: tuple[str, ...] = (), *, time: str = "event") -> Place:
        return Place.make(self._address, events, job, (f"topics.time={time}", *changes))

    def _write(self, name: str, place: Place, events: int, *, is_packed: bool) -> EventCounts:
        written = write_events(place.folder, history_of(events, events / SPAN_S), is_packed=is_packed)
        self._written[name] = written
        self._note(f"wrote {written.events:,} events, {written.events / written.seconds:,.0f} a second")
        self._result.figures["impression_bytes"] = written.impressions_bytes / written.impressions
        return written

    def _source(self, name: str, figure: str) -> None:
        counts = self._job("source", self._place(name, f"{name}-source"), self._prism)
        if counts["events"] != self._written[name].events:
            self._result.failures.append(figure)
        self._result.figures[figure] = counts["events"] / (counts["last_s"] - counts["begun_s"])

    def _whole(self, name: str, place: Place, flags: list[str], figure: str) -> None:
        """Measure a job from its first blob to its last sample. It fails without a row for every item."""
        written = self._written[name]
        counts = self._job("samples", place, flags)
        made = made_of(place.folder)
        if made.first_rows != written.items:
            self._note(f"{figure}: {made.first_rows} rows of {written.items} items")
            self._result.failures.append(figure)
            return
        self._result.figures[figure] = written.events / (made.last_ms / 1_000 - counts["begun_s"])
        name = figure.removesuffix("_events_per_s")
        self._result.figures[f"{name}_cpu_us_per_event"] = 1e6 * counts["cpu_s"] / written.events
        self._result.figures[f"{name}_runner_cpu_us_per_event"] = 1e6 * counts["children_cpu_s"] / written.events

    def _until_made(self, name: str, place: Place, figure: str) -> None:
        """Measure a job that its runner does not end: stop it when every row was read."""
        items, log = self._written[name].items, self._folder / f"{figure}.log"
        until_s = time.monotonic() + JOB_S_MAX
        with running(place.words("streams.ingest_job", "samples", str(place.folder.folder)), log) as process:

            def is_over(rows: int) -> bool:
                return rows >= items or process.poll() is not None or time.monotonic() > until_s

            made = made_of(place.folder, is_over)
            if made.first_rows != items:
                self._note(f"{figure}: {made.first_rows} rows of {items} items; {end_of(log)}")
                self._result.failures.append(figure)
                return
            assert process.stdout is not None
            begun_s = json.loads(process.stdout.readline())["begun_s"]
        self._result.figures[figure] = self._written[name].events / (made.last_ms / 1_000 - begun_s)

    def _job(self, shape: str, place: Place, flags: list[str], tree: Path = ROOT) -> dict[str, float]:
        log = self._folder / f"{shape}.log"
        words = [*place.words("streams.ingest_job", shape, str(place.folder.folder)), *flags]
        with running(words, log, tree=tree) as process:
            return result_of(process, log, JOB_S_MAX)


def _report_all_lots(folder: AppFolder, is_over: Callable[[], bool]) -> bool:
    """Wait until every lot of a job has reported, which shows that the job reads. Return whether they have."""
    until_s = time.monotonic() + BEGIN_S_MAX
    with ProgressLog.open(folder.topic_url("progress"), folder.access) as log:
        while time.monotonic() < until_s and not is_over():
            if len(log.standing().lots) == folder.settings.ingest.lots:
                return True
            time.sleep(0.1)
    return False
