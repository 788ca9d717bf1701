"""Bases: requests a base of a version when the chain of deltas has become long. It writes none itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from streamlearn.errors import StreamlearnError
from streamlearn.niceness import give_way
from streamlearn.publisher.meters import Meters
from streamlearn.versions import Chain

__all__ = ["Bases", "Compact"]

# Writes the base that stands for a version.
Compact = Callable[[int], object]

_NICE = 19
_log = logging.getLogger(__name__)


class Bases:
    """Has a base written after every `deltas_max` deltas, one at a time, in a thread of low priority.

    Without `compact` it writes none.
    """

    def __init__(self, compact: Compact | None, deltas_max: int, meters: Meters) -> None:
        self._compact, self._deltas_max, self._meters = compact, deltas_max, meters
        self._deltas: list[int] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def deltas(self) -> int:
        """The number of deltas since the newest known base."""
        with self._lock:
            return len(self._deltas)

    def stand_at(self, chain: Chain | None) -> None:
        """Count from the deltas of a chain."""
        with self._lock:
            links = () if chain is None else chain.links
            self._deltas = [link.manifest.version for link in links if link.manifest.kind != "base"]

    def committed(self, version: int, *, is_base: bool) -> None:
        """Count a committed version, and begin a base if one is due."""
        with self._lock:
            self._deltas = [] if is_base else [*self._deltas, version]
            is_running = self._thread is not None and self._thread.is_alive()
            if self._compact is None or is_running or len(self._deltas) < self._deltas_max:
                return
            self._thread = threading.Thread(
                target=self._run, args=(self._compact, version), name="streamlearn-compact", daemon=True
            )
            self._thread.start()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for a base that is being written."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, compact: Compact, version: int) -> None:
        give_way(_NICE)
        try:
            compact(version)
        # Nothing waits for the base: the chain stays longer, and the next version requests it again.
        except Exception as error:
            reason = error.message if isinstance(error, StreamlearnError) else repr(error)
            self._meters.compactions.labels("failed").inc()
            _log.warning("cannot write a base of version %d: %s", version, reason)
            return
        self._meters.compactions.labels("done").inc()
        with self._lock:
            self._deltas = [delta for delta in self._deltas if delta > version]
        _log.info("version %d now has a base", version)
