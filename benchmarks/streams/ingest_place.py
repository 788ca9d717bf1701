"""Place of a measured job: its own topics on a broker; and processes that always end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
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
    """An application with its own topics; `changes` are the settings for `--set` that name them."""

    folder: AppFolder
    changes: tuple[str, ...]

    @classmethod
    def make(cls, address: str, events: str, job: str, changes: tuple[str, ...] = (), *, partitions: int = 2) -> Place:
        """Create the missing topics of events and of a job that reads them."""
        owners = {"impressions": events, "actions": events, "samples": job, "progress": job, "dead_letters": job}
        topics = [f"topics.{name}=kafka://{address}/{owner}.{name}" for name, owner in owners.items()]
        changes = (*topics, *changes)
        folder = load_app(APP, changes)
        create_topics(folder, partitions)
        return cls(folder, changes)

    def words(self, module: str, *words: str) -> list[str]:
        """Return a command of the benchmarks with this application's settings."""
        return [sys.executable, "-m", f"benchmarks.{module}", *words, *self._sets]

    def verb(self, name: str) -> list[str]:
        """Return a command of streamlearn with this application and its settings."""
        return [sys.executable, "-m", "streamlearn", name, str(self.folder.folder), *self._sets]

    @property
    def _sets(self) -> list[str]:
        return [word for change in self.changes for word in ("--set", change)]


@contextmanager
def running(
    words: list[str], log: Path, *, tree: Path = ROOT, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a process of a source tree in a new process group, and kill the group at the end."""
    with log.open("ab") as errors:
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=tree, env=env, start_new_session=True
        )
        try:
            yield process
        finally:
            if process.poll() is None or _is_alive(process.pid):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def result_of(process: subprocess.Popen[str], log: Path, wait_s: float, *, lines: int = 1) -> dict[str, Any]:
    """Wait for a process and return the JSON of its last lines; 0 for all of them.

    Raises:
        ServiceError: The process failed, or did not end in time.
    """
    try:
        output, _ = process.communicate(timeout=wait_s)
    except subprocess.TimeoutExpired as error:
        message = f"{' '.join(map(str, process.args[1:4]))} did not end within {wait_s:.0f} s"  # type: ignore[index]
        raise ServiceError(message, help=f"the end of its log: {end_of(log)}") from error
    if process.returncode:
        message = f"{' '.join(map(str, process.args[1:4]))} ended with status {process.returncode}"  # type: ignore[index]
        raise ServiceError(message, help=f"the end of its log: {end_of(log)}")
    result: dict[str, Any] = json.loads("\n".join(output.splitlines()[-lines:]))
    return result


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def end_of(log: Path) -> str:
    """Return the end of a log."""
    return log.read_text(errors="replace")[-2_000:]
