"""Bases: asks for a whole form of a version when the chain has become long. It writes none itself."""

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
    """Counts deltas, and has a base written after so many of them, one at a time, in a thread of low priority.

    Args:
        compact: Writes the base of a version; None never asks.
        deltas_max: After how many deltas.
        meters: Where outcomes are counted.
    """

    def __init__(self, compact: Compact | None, deltas_max: int, meters: Meters) -> None:
        self._compact, self._deltas_max, self._meters = compact, deltas_max, meters
        self._deltas: list[int] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def deltas(self) -> int:
        """Deltas since the newest base that is known of."""
        with self._lock:
            return len(self._deltas)

    def stand_at(self, chain: Chain | None) -> None:
        """Begin to count from a chain."""
        with self._lock:
            links = () if chain is None else chain.links
            self._deltas = [one.manifest.version for one in links if one.manifest.kind != "base"]

    def committed(self, version: int, *, is_base: bool) -> None:
        """A version was committed; a base may be due."""
        with self._lock:
            self._deltas = [] if is_base else [*self._deltas, version]
            is_going = self._thread is not None and self._thread.is_alive()
            if self._compact is None or is_going or len(self._deltas) < self._deltas_max:
                return
            self._thread = threading.Thread(
                target=self._run, args=(self._compact, version), name="streamlearn-compact", daemon=True
            )
            self._thread.start()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for a base that is being written."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _run(self, compact: Compact, version: int) -> None:
        give_way(_NICE)
        try:
            compact(version)
        # Nothing waits for it: the chain stays longer, and it is asked for again after the next version.
        except Exception as error:
            said = error.message if isinstance(error, StreamlearnError) else repr(error)
            self._meters.compactions.labels("failed").inc()
            _log.warning("cannot write a base of version %d: %s", version, said)
            return
        self._meters.compactions.labels("done").inc()
        with self._lock:
            self._deltas = [one for one in self._deltas if one > version]
        _log.info("version %d now has a base", version)
