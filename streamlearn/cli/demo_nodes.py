"""The demo's nodes: processes of `streamlearn serve`, asked all the while for what the history's users were shown."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np

from streamlearn.apps import AppFolder
from streamlearn.errors import ServiceError, StreamlearnError
from streamlearn.replay import History
from streamlearn.serving.load import Load, LoadFound, LoadPlan
from streamlearn.serving.recorded import of_history, recorded

__all__ = ["DemoNodes"]

_NODES = 2
_REQUESTS, _IMPRESSIONS_MAX = 200, 2_000
_RATE, _RUN_S_MAX = 20.0, 3_600
# Training takes the processors as well: whoever asks waits longer than callers would.
_SETTINGS = (
    "front.deadline_ms=20000",
    "serving.users_buckets=[4]",
    "serving.candidates_buckets=[16]",
    "telemetry.log_level=warning",
)
_READY_S_MAX, _END_S_MAX = 180.0, 30.0


class DemoNodes:
    """Nodes that serve, each in a process of its own; each is asked by a caller of its own from when it is ready.

    Args:
        folder: The application, with store and registry in its settings.
        history: Whose impressions are asked for again.
    """

    def __init__(self, folder: AppFolder, history: History) -> None:
        asked = recorded(of_history(history), _REQUESTS, _IMPRESSIONS_MAX, np.random.default_rng(1))
        self._messages = asked.messages(folder.app.features, folder.app.name)
        self._stop, self._ready = threading.Event(), [threading.Event() for _ in range(_NODES)]
        self._probes: dict[int, Load] = {}
        self._found: list[LoadFound] = []
        self._errors: list[BaseException] = []
        self._processes = [_started(folder, number) for number in range(_NODES)]
        self._callers = [threading.Thread(target=self._call, args=(number,), daemon=True) for number in range(_NODES)]
        for caller in self._callers:
            caller.start()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._processes)

    def ask(self) -> list[int]:
        """One request to each: the version that answered. Waits until they are ready.

        Raises:
            StreamlearnError: One is not, or refuses.
        """
        until_s = time.monotonic() + _READY_S_MAX
        for number, ready in enumerate(self._ready):
            if not ready.wait(max(0.0, until_s - time.monotonic())):
                message = f"node {number + 1} is not ready after {_READY_S_MAX:.0f} s"
                raise ServiceError(message, help="what it said is above")
        if self._errors:
            raise self._errors[0]
        return [int(self._probes[number].probe().version) for number in range(self.count)]

    def facts(self) -> dict[str, Any]:
        """Let callers end, and say what they were answered.

        Raises:
            StreamlearnError: A caller failed, or none was answered.
        """
        self._stop.set()
        for caller in self._callers:
            caller.join()
        if self._errors:
            raise self._errors[0]
        due, answered = (sum(getattr(one, name) for one in self._found) for name in ("due", "ok"))
        if not answered:
            message = f"none of {due} requests was answered: {[dict(one.said) for one in self._found]}"
            raise StreamlearnError(message, help="this is a defect: please report it with this output")
        p50 = max(one.latency_ms["p50"] or 0.0 for one in self._found)
        return {
            "requests answered by both nodes": answered,
            "requests not answered": due - answered,
            "an answer took, p50 in ms, beside training": round(p50, 1),
        }

    def close(self) -> None:
        """End callers and nodes."""
        self._stop.set()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_END_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for caller in self._callers:
            caller.join(_END_S_MAX)

    def _call(self, number: int) -> None:
        try:
            address = _address(self._processes[number], number)
            self._probes[number] = Load(address, self._messages[:1], connections=1)
            load = Load(address, self._messages, connections=1)
            self._ready[number].set()
            self._found.append(load.run(LoadPlan("poisson", _RATE, _RUN_S_MAX), stop=self._stop.is_set))
        # Whoever asks is told; a thread has nobody else to tell.
        except BaseException as error:
            self._errors.append(error)
            self._ready[number].set()


def _started(folder: AppFolder, number: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "streamlearn", "serve", str(folder.folder), "--name", f"node-{number + 1}"]
    command += ["--listen", "127.0.0.1:0", "--http", "none"]
    where = (f"versions.store={folder.store_url}", f"registry.url={folder.registry_url}")
    for setting in (*where, *_SETTINGS):
        command += ["--set", setting]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _address(process: subprocess.Popen[str], number: int) -> str:
    """Where a node serves gRPC, once it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline()
    process.stdout.close()
    _, found, rest = line.partition(" is served at grpc ")
    if not found:
        message = f"node {number + 1} ended with status {process.wait(_END_S_MAX)} before it was ready"
        raise ServiceError(message, help="what it said is above")
    return rest.partition(": version")[0]
