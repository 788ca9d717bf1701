"""Answers: the versions that a node answers a constant caller with, by time."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from streamlearn.errors import StreamlearnError
from streamlearn.load.load_run import Load

__all__ = ["Answers", "VersionChange"]

_PAUSE_S = 0.02
_WAIT_S = 0.1


@dataclass(frozen=True)
class VersionChange:
    """A node's first answer with another version than before; `wall_ms` is the time of its arrival."""

    wall_ms: float
    version: int


class Answers:
    """A thread that sends a request to a node's gRPC address again and again, also while the node is down."""

    def __init__(self, address: str, message: bytes) -> None:
        self._address, self._message = address, message
        self._stop, self._changed = threading.Event(), threading.Condition()
        self._seen: list[VersionChange] = []
        self._count, self._last_ms = 0, 0.0
        self._thread = threading.Thread(target=self._ask, name=f"answers-{address}", daemon=True)
        self._thread.start()

    @property
    def seen(self) -> list[VersionChange]:
        """The changes of version, in order."""
        with self._changed:
            return list(self._seen)

    @property
    def count(self) -> int:
        """Number of answers."""
        return self._count

    def first_after(self, wall_ms: float, wait_s: float, version: int | None = None) -> float | None:
        """Return the time of the first answer after a wall time, with this version or any; None if there is none."""

        def answer_ms() -> float | None:
            if version is None:
                return self._last_ms if self._last_ms > wall_ms else None
            return next(
                (seen.wall_ms for seen in self._seen if seen.version == version and seen.wall_ms > wall_ms), None
            )

        with self._changed:
            return self._changed.wait_for(answer_ms, wait_s)

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        load: Load | None = None
        while not self._stop.is_set():
            try:
                load = load or Load(self._address, [self._message], connections=1)
                version = int(load.probe().version)
            # The node is down or not ready.
            except StreamlearnError:
                load = None
                self._stop.wait(_WAIT_S)
                continue
            self._note(version)
            self._stop.wait(_PAUSE_S)

    def _note(self, version: int) -> None:
        wall_ms = time.time_ns() / 1e6
        with self._changed:
            self._count, self._last_ms = self._count + 1, wall_ms
            if not self._seen or self._seen[-1].version != version:
                self._seen.append(VersionChange(wall_ms, version))
            self._changed.notify_all()
