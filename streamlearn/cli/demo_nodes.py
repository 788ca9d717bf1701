"""The demo's nodes: two that serve, and callers that ask them all the while for what the history's users were shown."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import structs

from streamlearn.apps import AppFolder
from streamlearn.errors import StreamlearnError
from streamlearn.replay import History
from streamlearn.serving.load import Load, LoadFound, LoadPlan
from streamlearn.serving.node import Node
from streamlearn.serving.recorded import of_history, recorded
from streamlearn.serving.tf_calls import Place
from streamlearn.versions import NodeStatus

__all__ = ["DemoNodes"]

_NODES = 2
_REQUESTS, _IMPRESSIONS_MAX = 200, 2_000
_RATE, _RUN_S_MAX = 20.0, 3_600
# Training takes the processors as well: whoever asks waits longer than callers would.
_DEADLINE_MS = 20_000


class DemoNodes:
    """Nodes that serve; each is asked by a caller of its own.

    Args:
        folder: The application, with store and registry in its settings.
        history: Whose impressions are asked for again.
    """

    def __init__(self, folder: AppFolder, history: History) -> None:
        asked = recorded(of_history(history), _REQUESTS, _IMPRESSIONS_MAX, np.random.default_rng(1))
        self._messages = asked.messages(folder.app.features, folder.app.name)
        self._ends, self._stop = ExitStack(), threading.Event()
        self._found: list[LoadFound] = []
        self._errors: list[BaseException] = []
        small, places = _small(folder), [Place("/CPU:0")]
        with self._closing():
            self._nodes = [
                self._ends.enter_context(Node(small, name=f"node-{number}", places=places))
                for number in range(1, _NODES + 1)
            ]
            for node in self._nodes:
                node.wait_ready()
            self._callers = [self._caller(node) for node in self._nodes]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._nodes)

    def status(self) -> list[NodeStatus]:
        """How each is."""
        return [node.status() for node in self._nodes]

    def ask(self) -> list[tuple[int, float]]:
        """One request to each: the version that answered, and after how many milliseconds."""
        found = []
        for node in self._nodes:
            load, begin_s = Load(node.grpc, self._messages[:1], connections=1), time.perf_counter()
            version = int(load.probe().version)
            found.append((version, (time.perf_counter() - begin_s) * 1e3))
        return found

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
        self._ends.close()

    def _caller(self, node: Node) -> threading.Thread:
        def call() -> None:
            try:
                load = Load(node.grpc, self._messages, connections=1)
                self._found.append(load.run(LoadPlan("poisson", _RATE, _RUN_S_MAX), stop=self._stop.is_set))
            # Whoever asks for facts is told; a thread has nobody else to tell.
            except BaseException as error:
                self._errors.append(error)

        thread = threading.Thread(target=call, name="demo-caller", daemon=True)
        thread.start()
        return thread

    @contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise


def _small(folder: AppFolder) -> AppFolder:
    """With few shapes to compile, and free ports."""
    settings = folder.settings
    serving = structs.replace(settings.serving, users_buckets=[4], candidates_buckets=[16], lanes=1)
    front = structs.replace(
        settings.front, listen="127.0.0.1:0", http="", deadline_ms=_DEADLINE_MS, deadline_ms_max=_DEADLINE_MS
    )
    return replace(folder, settings=structs.replace(settings, serving=serving, front=front))
