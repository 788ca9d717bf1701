"""Rescaling on Flink: a job on two task managers, stopped with a savepoint and begun with other parallelism.

Traffic goes on meanwhile. At the end its rows are compared with those that Prism makes of the same events.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.streams.ingest_place import Place, end_of, result_of, running
from streamlearn.apps import AppFolder
from streamlearn.errors import ServiceError
from streamlearn.ingest import ProgressLog
from streamlearn.samples import SampleCodec
from tools.services import FlinkJobServer, free_ports
from tools.services.flink_cluster import FlinkJobs, flink_cluster
from tools.services.ports import is_taken

__all__ = ["RescaleCounts", "rescaled"]

PARALLELISM, PARTITIONS = (2, 4, 2), 4
STEP_S_MAX, POLL_S = 300.0, 0.2
TRAFFIC_S = 5.0
# A loaded machine sends events late: they must not count as late.
CHANGES = ("topics.time=wall", "ingest.out_of_orderness_s=5", "ingest.idle_s=0.5", "ingest.checkpoint_s=1")


@dataclass(frozen=True)
class RescaleCounts:
    """What became of the events.

    Attributes:
        events: Events that were written.
        rows: Rows that are due.
        lost: Due rows that the job did not write.
        doubled: Rows that it wrote more than once, or that are not due.
        reports: What each run of the job has reported, as `streamlearn ingest --json` prints it.
        task_managers: Task managers that worked on each run.
    """

    events: int
    rows: int
    lost: int
    doubled: int
    reports: tuple[dict[str, Any], ...]
    task_managers: tuple[int, ...]


def rescaled(
    address: str, folder: Path, rate: float, prism: Sequence[str], note: Callable[[str], None]
) -> RescaleCounts:
    """Run the job with each parallelism in turn, at `rate` events a second.

    Raises:
        ServiceError: There is no Flink, or a step did not end in time.
    """
    log, reports, managers = folder / "rescale.log", [], []
    with ExitStack() as stack:
        cluster = stack.enter_context(flink_cluster(folder / "cluster", tasks=2))
        server = stack.enter_context(FlinkJobServer.start(folder / "job-server"))
        pool = stack.enter_context(_worker_pool(log))
        place = Place.make(address, "rescale", "rescale-flink", CHANGES, partitions=PARTITIONS)
        flink = [
            f"--set=ingest.{setting}"
            for setting in (
                "runner=flink",
                f"job_endpoint={server.job_endpoint}",
                f"artifact_endpoint={server.artifact_endpoint}",
                "environment=EXTERNAL",
                f"environment_config={pool}",
            )
        ]
        flink.append(f"--beam=--flink_master={cluster.address}")
        traffic = stack.enter_context(_Traffic(place, rate, log))
        savepoint: list[str] = []
        for number, parallelism in enumerate(PARALLELISM, 1):
            note(f"rescaled: run {number} of {len(PARALLELISM)}, {parallelism} instances of each step")
            words = [*place.verb("ingest"), "--json", *flink, *savepoint]
            words.append(f"--set=ingest.parallelism={parallelism}")
            with running(words, log) as process:
                job = _wait(lambda: _goes_on(cluster, place.folder), process, "acknowledges all lots", log)
                managers.append(len(cluster.task_managers(job)))
                if number < len(PARALLELISM):
                    savepoint = [f"--beam=--savepoint_path={cluster.stop_with_savepoint(job, STEP_S_MAX)}"]
                else:
                    traffic.end()
                reports.append(result_of(process, log, STEP_S_MAX, lines=0))
    found, expected = _rows_of(place.folder), _rows_of(_joined_by_prism(address, folder, prism))
    return RescaleCounts(
        events=traffic.events,
        rows=expected.total(),
        lost=(expected - found).total(),
        doubled=(found - expected).total(),
        reports=tuple(reports),
        task_managers=tuple(managers),
    )


class _Traffic:
    """Live events, from one producer after the other, until the end is asked for."""

    def __init__(self, place: Place, rate: float, log: Path) -> None:
        self._place, self._rate, self._log = place, rate, log
        self._ending, self.events = threading.Event(), 0
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="benchmark-traffic", daemon=True)

    def __enter__(self) -> _Traffic:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._thread.join()

    def end(self) -> None:
        """Write a last part with the end marks. Raises what a producer has raised."""
        self._ending.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        seed, is_last = 1, False
        try:
            while not is_last:
                is_last, seed = self._ending.is_set(), seed + 1
                words = self._place.words("streams.ingest_live", str(self._place.folder.folder))
                words += ["--rate", str(self._rate), "--seconds", str(TRAFFIC_S), "--seed", str(seed)]
                with running([*words, *([] if is_last else ["--go-on"])], self._log) as process:
                    self.events += result_of(process, self._log, STEP_S_MAX)["events"]
        except Exception as error:  # `end` raises it
            self._error = error


@contextmanager
def _worker_pool(log: Path) -> Iterator[str]:
    """Yield the address of a pool that starts a process for each worker that a task manager asks for."""
    (port,) = free_ports(1)
    words = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={port}"]
    # It starts workers with the first `python`.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with running(words, log, env=os.environ | {"PATH": path}) as process:
        _wait(lambda: is_taken(port), process, "listens", log)
        yield f"127.0.0.1:{port}"


def _goes_on(cluster: FlinkJobs, folder: AppFolder) -> str:
    """Return the running job once its run has acknowledged every lot; else an empty string."""
    job = cluster.running()
    if not job:
        return ""
    with ProgressLog.open(folder.topic_url("progress"), folder.access) as log:
        standing = log.standing()
    lots = [lot for lot in standing.lots.values() if lot.ingest_run == standing.run]
    return job if len(lots) == folder.settings.ingest.lots else ""


def _wait(found: Callable[[], Any], process: subprocess.Popen[str], what: str, log: Path) -> Any:
    until_s = time.monotonic() + STEP_S_MAX
    while time.monotonic() < until_s and process.poll() is None:
        if value := found():
            return value
        time.sleep(POLL_S)
    how = f"ended with status {process.returncode}" if process.returncode is not None else f"took {STEP_S_MAX:.0f} s"
    message = f"a process that {what} {how} before it did"
    raise ServiceError(message, help=f"the end of its log: {end_of(log)}")


def _joined_by_prism(address: str, folder: Path, prism: Sequence[str]) -> AppFolder:
    place, log = Place.make(address, "rescale", "rescale-prism", CHANGES, partitions=PARTITIONS), folder / "prism.log"
    words = place.words("streams.ingest_job", "samples", str(place.folder.folder))
    with running([*words, *prism], log) as process:
        result_of(process, log, STEP_S_MAX)
    return place.folder


def _rows_of(folder: AppFolder) -> Counter[tuple[int, ...]]:
    """Count the rows of a samples topic, each by its identity, what it settles and when, and its labels."""
    codec, rows = SampleCodec(folder.app, folder.settings.samples), Counter[tuple[int, ...]]()
    with folder.open_topic("samples") as topic, topic.reader() as reader:
        offsets = {partition: reader.earliest(partition) for partition in range(topic.partitions)}
        while any(offset < reader.end(partition) for partition, offset in offsets.items()):
            for records in reader.read_many(offsets, max_records=1_000, max_bytes=64 << 20, wait_ms=20):
                offsets[records.partition] = records.next_offset
                for batch in map(codec.decode, filter(None, records.values)):
                    requests, index = batch.requests, batch.request_index
                    columns: list[npt.NDArray[Any]]
                    columns = [requests.partition[index], requests.offset[index], batch.item_index]
                    columns += [batch.settle_time_ms, *(np.stack((one.settles, one.value)) for one in batch.labels)]
                    rows.update(map(tuple, np.vstack(columns).T.tolist()))
    return rows
