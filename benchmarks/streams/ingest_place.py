"""Where a measured job reads and writes: topics of its own on a broker; and processes that end whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.streams.ingest_events import create_topics
from streamlearn.apps import AppFolder, load_app
from streamlearn.errors import ServiceError

__all__ = ["Place", "end_of", "result_of", "running"]

ROOT = Path(__file__).parents[2]
APP = ROOT / "benchmarks" / "ingest_app"


@dataclass(frozen=True)
class Place:
    """An application with topics that nobody else has.

    Attributes:
        folder: The application.
        changes: What `--set` says of it.
    """

    folder: AppFolder
    changes: tuple[str, ...]

    @classmethod
    def make(cls, address: str, events: str, job: str, more: tuple[str, ...] = (), *, partitions: int = 2) -> Place:
        """Topics of events, made unless they are there, and topics of a job that reads them."""
        owners = {"impressions": events, "actions": events, "samples": job, "progress": job, "dead_letters": job}
        topics = [f"topics.{name}=kafka://{address}/{owner}.{name}" for name, owner in owners.items()]
        changes = (*topics, *more)
        folder = load_app(APP, changes)
        create_topics(folder, partitions)
        return cls(folder, changes)

    def words(self, module: str, *words: str) -> list[str]:
        """A command of the benchmarks on this application."""
        sets = [word for change in self.changes for word in ("--set", change)]
        return [sys.executable, "-m", f"benchmarks.{module}", *words, *sets]


@contextmanager
def running(words: list[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of a group of its own; what is left of the group in the end is killed."""
    with log.open("ab") as errors:
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, start_new_session=True
        )
        try:
            yield process
        finally:
            if process.poll() is None or _is_alive(process.pid):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def result_of(process: subprocess.Popen[str], log: Path, wait_s: float) -> dict[str, Any]:
    """What a process says in its last line.

    Raises:
        ServiceError: It failed, or did not end in time.
    """
    try:
        said, _ = process.communicate(timeout=wait_s)
    except subprocess.TimeoutExpired as error:
        message = f"{' '.join(map(str, process.args[1:4]))} did not end within {wait_s:.0f} s"  # type: ignore[index]
        raise ServiceError(message, help=f"the end of its log: {end_of(log)}") from error
    if process.returncode:
        message = f"{' '.join(map(str, process.args[1:4]))} ended with status {process.returncode}"  # type: ignore[index]
        raise ServiceError(message, help=f"the end of its log: {end_of(log)}")
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def end_of(log: Path) -> str:
    """The end of a log."""
    return log.read_text(errors="replace")[-2_000:]
