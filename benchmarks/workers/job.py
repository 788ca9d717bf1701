"""A job of processes: shards, a leader and workers that learn the trainer's samples, each a command of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.nodes.serving_nodes import cpu_s_of
from benchmarks.trainer_samples import STEP_SAMPLES, Workload
from benchmarks.trainer_topic import samples_folder, write_samples
from streamlearn.apps import AppFolder, load_app
from streamlearn.errors import ServiceError

__all__ = ["Job", "Process", "made"]

_APP = """
from pathlib import Path

from benchmarks.trainer_topic import samples_folder

app = samples_folder(Path("."), {keys}).app
"""
_KEYS, _SEED = 100_000, 1
_END_S_MAX = 60.0


class Process:
    """A process of a job, with its log.

    Attributes:
        process: It.
    """

    def __init__(self, words: list[str], log: Path) -> None:
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        self._log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words], stdout=out, stderr=out, env=environment, start_new_session=True
            )
        self._cpu_s = 0.0

    @property
    def cpu_s(self) -> float:
        """The processor time that it has used, as far as was asked before it ended."""
        with suppress(FileNotFoundError):
            self._cpu_s = cpu_s_of(self.process.pid)
        return self._cpu_s

    @property
    def said(self) -> str:
        """What it has said."""
        return self._log.read_text()

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Ask it to end and return its status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL


def made(folder: Path, steps: int, settings: Mapping[str, Mapping[str, object]]) -> AppFolder:
    """Make the application of a job in a folder, with samples of some steps; settings are by section."""
    folder.mkdir(parents=True)
    base = samples_folder(folder, _KEYS)
    (folder / "app.py").write_text(_APP.format(keys=_KEYS))
    trainer = {"step_rows": STEP_SAMPLES, "row_gradients": "mean", "xla": "on", "order": "strict"}
    sections: dict[str, Mapping[str, object]] = {
        "tables": {"rows_max": base.settings.tables.rows_max},
        "versions": {"store": f"file://{folder}/store"},
        "workers": {"listen": [f"unix:{folder}/leader.sock"]},
        "ps": {"listen": ["127.0.0.1:0"]},
    }
    sections |= {name: {**sections.get(name, {}), **values} for name, values in settings.items()}
    sections["trainer"] = trainer | dict(settings.get("trainer", {}))
    lines = [
        line
        for name, values in sections.items()
        for line in (f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()))
    ]
    (folder / "app.toml").write_text("\n".join(lines) + "\n")
    write_samples(base, Workload(_KEYS, _SEED).steps(steps))
    return load_app(folder)


class Job:
    """Shards of an application, and the processes that are started beside them.

    Attributes:
        folder: The folder of the application.
        shards: The shards.
    """

    def __init__(self, folder: Path, shards: int, logs: Path) -> None:
        self.folder, self._logs, self._started = folder, logs, 0
        logs.mkdir(parents=True, exist_ok=True)
        words = ["streamlearn", "ps", "--app", str(folder)]
        self.shards = [self.start([*words, "--shard", f"{number}/{shards}"]) for number in range(shards)]
        addresses = [_listening(shard) for shard in self.shards]
        self.addresses = f"ps.addresses={json.dumps(addresses)}"

    def start(self, words: list[str]) -> Process:
        """Start a module with arguments."""
        self._started += 1
        name = words[1] if words[0] == "streamlearn" else "other"
        return Process(words, self._logs / f"{self._started:03}-{name}.log")

    def train(self, *changes: str) -> Process:
        """Start the leader, which learns to the end of the samples."""
        words = ["streamlearn", "train", str(self.folder), "--until-offset", "end", "--json"]
        return self.start([*words, *self._set(changes)])

    def work(self, *changes: str) -> Process:
        """Start a worker."""
        return self.start(["streamlearn", "work", str(self.folder), *self._set(changes)])

    def close(self) -> None:
        """End the shards."""
        for shard in self.shards:
            shard.end()

    def _set(self, changes: tuple[str, ...]) -> Iterator[str]:
        for change in (self.addresses, "telemetry.log_level=info", *changes):
            yield from ("--set", change)


def _listening(shard: Process) -> str:
    def address() -> str:
        return next((line.split()[-1] for line in shard.said.splitlines() if "listens at" in line), "")

    return waited(address, shard)


def waited(found: Callable[[], str], process: Process, wait_s: float = 120.0) -> str:
    """Wait for what a process says or does."""
    deadline_s = time.monotonic() + wait_s
    while not (text := found()):
        if process.process.poll() is not None or time.monotonic() > deadline_s:
            message = f"a process of the job ended or was silent for {wait_s:g} s: {process.said[-2_000:]}"
            raise ServiceError(message, help="look at what it said")
        time.sleep(0.01)
    return text


@contextmanager
def running(folder: Path, shards: int, logs: Path) -> Iterator[Job]:
    """A job that ends with the block."""
    job = Job(folder, shards, logs)
    try:
        yield job
    finally:
        job.close()
