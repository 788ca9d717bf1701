"""Acknowledged: how far all lots of a run are, followed on the progress topic by one thread a process.

The word comes through the topic and not within the process: the sink may run anywhere, and what is acknowledged is
what would count after a crash.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.ingest.output.progress_log import ProgressLog
from streamlearn.ingest.reading.watermark import BEFORE_ALL
from streamlearn.topics import AccessSettings

__all__ = ["Acknowledged", "follow", "unfollow"]

_CLOSE_S_MAX = 1.0


class Acknowledged:
    """The least event time up to which one run has acknowledged every lot.

    Args:
        open_log: Opens the progress topic, within the thread that reads it.
        run: Whose progress counts.
        lots_count: How many lots there are.
        every_s: How often the topic is looked at.
    """

    def __init__(self, open_log: Callable[[], ProgressLog], *, run: int, lots_count: int, every_s: float) -> None:
        self._open_log, self._run, self._lots_count, self._every_s = open_log, run, lots_count, every_s
        self._reached_ms = BEFORE_ALL
        self._is_stopped = False
        self._error: Exception | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="streamlearn-ingest-progress", daemon=True)
        self._thread.start()

    def reached_ms(self) -> int:
        """That event time; `BEFORE_ALL` before every lot was heard of.

        Raises:
            IngestOver: A newer run has taken over.
            TopicError: The progress topic cannot be read.
        """
        if self._error is not None:
            raise self._error
        return self._reached_ms

    @property
    def is_stopped(self) -> bool:
        """Whether the run was told to stop reading."""
        return self._is_stopped

    def close(self) -> None:
        """Have the thread end; it is waited for briefly, since a broker may be silent."""
        self._closing.set()
        self._thread.join(_CLOSE_S_MAX)

    def _follow(self) -> None:
        try:
            with self._open_log() as log:
                while True:
                    standing = log.check(self._run)
                    reached_ms = standing.reached_ms(self._run, self._lots_count)
                    self._is_stopped = standing.stopped >= self._run
                    self._reached_ms = max(self._reached_ms, BEFORE_ALL if reached_ms is None else reached_ms)
                    if self._closing.wait(self._every_s):
                        return
        except Exception as error:  # whatever it is, every reader is told
            self._error = error


_LOCK = threading.Lock()
_FOLLOWED: dict[tuple[str, int], tuple[Acknowledged, int]] = {}


def follow(
    url: str, access: AccessSettings, *, run: int, lots_count: int, every_s: float, clock: Clock = SYSTEM_CLOCK
) -> Acknowledged:
    """The process's own `Acknowledged` of a run; give it back with `unfollow`."""
    with _LOCK:
        found = _FOLLOWED.get((url, run))
        if found is None:
            one = Acknowledged(
                lambda: ProgressLog.open(url, access, clock=clock), run=run, lots_count=lots_count, every_s=every_s
            )
            found = (one, 0)
        _FOLLOWED[url, run] = (found[0], found[1] + 1)
        return found[0]


def unfollow(url: str, run: int) -> None:
    """Give it back; the last who does ends its thread."""
    with _LOCK:
        one, users = _FOLLOWED.pop((url, run))
        if users > 1:
            _FOLLOWED[url, run] = (one, users - 1)
            return
    one.close()
