"""A job of processes: shards, a leader and workers that learn the trainer's samples."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.nodes.serving_nodes import cpu_s_of
from benchmarks.trainer_samples import STEP_SAMPLES, Workload
from benchmarks.trainer_topic import samples_folder, write_samples
from benchmarks.workers.timed import TIMES
from streamlearn.errors import ServiceError

__all__ = ["Job", "Process", "made", "running", "waited"]

_APP = """
from pathlib import Path

from benchmarks.trainer_topic import samples_folder

app = samples_folder(Path("."), {keys}).app
"""
_KEYS, _SEED = 100_000, 1
_END_S_MAX, _WAIT_S_MAX = 60.0, 180.0
_TIMED = "benchmarks.workers.timed"


class Process:
    """A process of a job.

    Attributes:
        process: It.
    """

    def __init__(self, words: Sequence[str], log: Path, variables: Mapping[str, str]) -> None:
        self._log, self._cpu_s = log, 0.0
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words],
                stdout=out,
                stderr=out,
                env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | dict(variables),
            )

    @property
    def cpu_s(self) -> float:
        """The processor time that it has used, as far as was asked before it ended."""
        with suppress(FileNotFoundError):
            self._cpu_s = cpu_s_of(self.process.pid)
        return self._cpu_s

    @property
    def log(self) -> str:
        """What it has written."""
        return self._log.read_text()

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Ask it to end, and kill it if it does not."""
        if self.runs:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()


def made(folder: Path, steps: int, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Make the application of a job in a folder, with samples of some steps; settings are by section."""
    folder.mkdir(parents=True)
    base = samples_folder(folder, _KEYS)
    (folder / "app.py").write_text(_APP.format(keys=_KEYS))
    sections: dict[str, dict[str, Any]] = {
        "trainer": {"step_rows": STEP_SAMPLES, "row_gradients": "mean", "xla": "on", "order": "strict"},
        "tables": {"rows_max": base.settings.tables.rows_max},
        "versions": {"store": f"file://{folder}/store"},
        "publisher": {"publish_interval_s": 3_600.0},
        "workers": {"listen": [f"unix:{folder}/leader.sock"]},
    }
    for name, values in settings.items():
        sections.setdefault(name, {}).update(values)
    lines = [
        line
        for name, values in sections.items()
        for line in (f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()))
    ]
    (folder / "app.toml").write_text("\n".join(lines) + "\n")
    if steps:
        write_samples(base, Workload(_KEYS, _SEED).steps(steps))


class Job:
    """Shards of an application, and what is started beside them.

    Attributes:
        folder: The folder of the application.
        shards: The shards.
        times: The file with the times of the leader's steps.
    """

    def __init__(self, folder: Path, shards: int, changes: Sequence[str] = ()) -> None:
        self.folder, self._logs, self._changes = folder, folder / "logs", list(changes)
        self._logs.mkdir(exist_ok=True)
        self.times, self._count = self._logs / "times", shards
        self.times.unlink(missing_ok=True)
        self._processes = list[Process]()
        self.shards = [self.shard(number, "127.0.0.1:0") for number in range(shards)]
        self.addresses = [listening(shard) for shard in self.shards]
        self._changes.append(f"ps.addresses={json.dumps(self.addresses)}")

    def shard(self, number: int, listen: str) -> Process:
        """Start a shard."""
        words = ["ps", "--app", str(self.folder), "--shard", f"{number}/{self._count}", "--listen", listen]
        return self._start("streamlearn", words, {})

    def train(self, *, ends: bool = True, **variables: object) -> Process:
        """Start the leader, which learns to the end of the samples, or without end; see `timed` for the variables."""
        words = ["train", str(self.folder), "--json", *(["--until-offset", "end"] if ends else [])]
        given = {name: str(value) for name, value in variables.items()} | {TIMES: str(self.times)}
        return self._start(_TIMED, words, given)

    def work(self, **variables: object) -> Process:
        """Start a worker; see `timed` for the variables."""
        given = {name: str(value) for name, value in variables.items()}
        return self._start(_TIMED, ["work", str(self.folder)], given)

    def steps(self) -> list[tuple[float, int]]:
        """Return when each step was complete, and how many the model had learned then."""
        if not self.times.exists():
            return []
        lines = self.times.read_text().splitlines(keepends=True)
        whole = [line.split() for line in lines if line.endswith("\n")]
        return [(float(at_s), int(steps)) for at_s, steps in whole]

    def cpu_s(self) -> float:
        """The processor time of all its processes that were asked for theirs before they ended."""
        return sum(process.cpu_s for process in self._processes)

    def close(self) -> None:
        """End all processes, workers and leaders first."""
        for process in reversed(self._processes):
            process.end()

    def _start(self, module: str, words: Sequence[str], variables: Mapping[str, str]) -> Process:
        changes = [word for change in self._changes for word in ("--set", change)]
        log = self._logs / f"{len(self._processes):03}-{words[0]}.log"
        self._processes.append(Process([module, *words, *changes], log, variables))
        return self._processes[-1]


def listening(shard: Process) -> str:
    """Wait until a shard listens, and return where."""

    def address() -> str:
        return next((line.split()[-1] for line in shard.log.splitlines() if "listens at" in line), "")

    return waited(address, shard)


def waited(found: Callable[[], str], process: Process, wait_s: float = _WAIT_S_MAX) -> str:
    """Wait for what a process does; raises ServiceError if it ends before, or if it takes too long."""
    deadline_s = time.monotonic() + wait_s
    while not (text := found()):
        if not process.runs or time.monotonic() > deadline_s:
            message = f"a process of the job ended or was silent for {wait_s:g} s: {process.log[-2_000:]}"
            raise ServiceError(message, help="look at what it wrote")
        time.sleep(0.01)
    return text


@contextmanager
def running(folder: Path, shards: int, changes: Sequence[str] = ()) -> Iterator[Job]:
    """A job that ends with the block."""
    job = Job(folder, shards, changes)
    try:
        yield job
    finally:
        job.close()
