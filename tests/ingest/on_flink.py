"""Runs of ingest on a Flink of this machine, each in a process of its own; and all that a Flink job leaves, ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamlearn.apps import AppFolder
from streamlearn.testing import wait_until
from tests.ingest.history import fill, watched
from tools.services import FlinkJobServer, free_ports
from tools.services.ports import is_taken

__all__ = ["CHECKPOINT_S", "DEADLINE_S", "Feed", "children", "code_of", "ended", "log_of", "run_on", "worker_pool"]

DEADLINE_S = 300.0
# So often that one comes while a job begins.
CHECKPOINT_S = 0.1
_THREADS_CHARS_MAX = 20_000
# Whoever feeds takes processors from the run that reads.
_MORE_S = 0.2


@contextmanager
def run_on(
    flink: FlinkJobServer, app: AppFolder, *changes: str, checkpoint_s: float = CHECKPOINT_S, beam: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A run in a process of its own, which says where its threads are when it is aborted; what is left is killed."""
    sets = [
        "ingest.runner=flink",
        f"ingest.job_endpoint={flink.job_endpoint}",
        f"ingest.artifact_endpoint={flink.artifact_endpoint}",
        f"ingest.checkpoint_s={checkpoint_s}",
        *changes,
    ]
    call = [sys.executable, "-m", "streamlearn", "ingest", str(app.folder), "--json"]
    call += [part for change in sets for part in ("--set", change)]
    call += [f"--beam={flag}" for flag in beam]
    env = os.environ | {"PYTHONFAULTHANDLER": "1"}
    with (app.folder / "job.log").open("a") as log:
        process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=log, text=True, env=env, start_new_session=True)
        try:
            yield process
        finally:
            subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], capture_output=True, check=False)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@contextmanager
def worker_pool(app: AppFolder) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """What starts workers for Flink, each a process of its own, and its address."""
    (port,) = free_ports(1)
    call = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={port}"]
    # It starts workers with the `python` that it finds first.
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with (app.folder / "pool.log").open("ab") as log:
        process = subprocess.Popen(call, stdout=log, stderr=log, env=env, start_new_session=True)
        try:
            wait_until(lambda: is_taken(port), "the worker pool listens", DEADLINE_S)
            yield process, f"127.0.0.1:{port}"
        finally:
            subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], capture_output=True, check=False)
            process.wait()


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(one) for one in found.stdout.split()]


def log_of(app: AppFolder) -> str:
    """The end of what the runs of an application logged."""
    return (app.folder / "job.log").read_text()[-4000:]


def code_of(app: AppFolder, process: subprocess.Popen[str]) -> int:
    """The exit code of a run, which says little; one that does not end has to say what its threads wait for."""
    try:
        return process.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGABRT)
        process.wait(DEADLINE_S)
        threads = (app.folder / "job.log").read_text()[-_THREADS_CHARS_MAX:]
    message = f"the run did not end within {DEADLINE_S:.0f} s:\n{threads}"
    raise AssertionError(message)


def ended(app: AppFolder, process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a run says that has ended well; it fits into a pipe."""
    assert code_of(app, process) == 0, log_of(app)
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.read())
    return found


class Feed:
    """Events of the small application, written on while a run reads them, as traffic would.

    Args:
        app: The application.
    """

    def __init__(self, app: AppFolder) -> None:
        self._app = app
        self.requests = 0

    def more(self, requests: int, *, end: bool = False) -> None:
        """So many requests, after those before."""
        fill(self._app, self.requests, requests, end=end)
        self.requests += requests

    def until(self, is_so: Callable[[], bool], what: str, process: subprocess.Popen[str]) -> None:
        """A few more, again and again, until something is so."""
        due_s = 0.0

        def look() -> bool:
            nonlocal due_s
            assert process.poll() is None, log_of(self._app)
            if time.monotonic() < due_s:
                return False
            self.more(5)
            due_s = time.monotonic() + _MORE_S
            return is_so()

        wait_until(look, what, DEADLINE_S)

    def until_acknowledged(self, time_ms: int, process: subprocess.Popen[str]) -> None:
        """Until a run has acknowledged all lots up to an event time."""
        with watched(self._app) as reached_ms:
            self.until(lambda: reached_ms() >= time_ms, f"progress of {time_ms} ms", process)
