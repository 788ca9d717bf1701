"""Answers: which version a node answered with when, seen by a caller who asks all the while."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from streamlearn.errors import StreamlearnError
from streamlearn.serving.load.load_run import Load

__all__ = ["Answered", "Answers"]

_PAUSE_S = 0.02
_WAIT_S = 0.1


@dataclass(frozen=True)
class Answered:
    """A node's first answer with another version than the one before.

    Attributes:
        wall_ms: When it was here.
        version: Which one.
    """

    wall_ms: float
    version: int


class Answers:
    """A thread that asks a node, also one that is away until it is back.

    Args:
        address: Where it serves gRPC.
        message: What it is asked.
    """

    def __init__(self, address: str, message: bytes) -> None:
        self._address, self._message = address, message
        self._stop, self._changed = threading.Event(), threading.Condition()
        self._seen: list[Answered] = []
        self._count, self._last_ms = 0, 0.0
        self._thread = threading.Thread(target=self._ask, name=f"answers-{address}", daemon=True)
        self._thread.start()

    @property
    def seen(self) -> list[Answered]:
        """Every change of version, in order."""
        with self._changed:
            return list(self._seen)

    @property
    def count(self) -> int:
        """How many answers there were."""
        return self._count

    def first_after(self, wall_ms: float, wait_s: float, version: int | None = None) -> float | None:
        """When it first answered after some time, with a version or with any; None if it does not in time."""

        def found() -> float | None:
            if version is None:
                return self._last_ms if self._last_ms > wall_ms else None
            return next((one.wall_ms for one in self._seen if one.version == version and one.wall_ms > wall_ms), None)

        with self._changed:
            return self._changed.wait_for(found, wait_s)

    def close(self) -> None:
        """Ask no more."""
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        load: Load | None = None
        while not self._stop.is_set():
            try:
                load = load or Load(self._address, [self._message], connections=1)
                version = int(load.probe().version)
            # It is away, or says that it is not ready: it is asked again.
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
                self._seen.append(Answered(wall_ms, version))
            self._changed.notify_all()
