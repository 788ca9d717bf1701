"""Acknowledged: the event time that all lots of a run have reached; one thread a process reads the progress topic.

It comes through the topic, not within the process: the sink may run anywhere, and the topic has what counts after a
crash.
"""

from __future__ import annotations

import threading

from streamlearn.ingest.output.progress_log import ProgressLog
from streamlearn.ingest.process_registry import ProcessRegistry
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.ingest.reading.watermark import BEFORE_ALL

__all__ = ["FOLLOWED", "Acknowledged"]

_CLOSE_S_MAX = 1.0


class Acknowledged:
    """The least event time up to which a plan's run has acknowledged every lot; and whether it `is_stopped`.

    `read` has what this process's readers have read, as `Standing.read`. It is written once a partition is quiet: only
    then may a later start find all its older records deleted, although it needs none of them.
    """

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan
        self._reached_ms = BEFORE_ALL
        self.is_stopped = False
        self.read: dict[int, tuple[int, int]] = {}
        self._error: Exception | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="streamlearn-ingest-progress", daemon=True)
        self._thread.start()

    def reached_ms(self) -> int:
        """Return that event time; `BEFORE_ALL` until every lot has reported.

        Raises `IngestOver` if a newer run has taken over, `TopicError` if the progress topic cannot be read.
        """
        if self._error is not None:
            raise self._error
        return self._reached_ms

    def close(self) -> None:
        """End the thread. Waits briefly, since a broker may be silent."""
        self._closing.set()
        self._thread.join(_CLOSE_S_MAX)

    def _follow(self) -> None:
        run, plan, before = self._plan.run, self._plan, set[tuple[int, tuple[int, int]]]()
        try:
            with ProgressLog.open(plan.progress_url, plan.access, plan.writing) as log:
                while True:
                    standing = log.check(run)
                    reached_ms = standing.reached_ms(run, plan.lineage.lots_count)
                    self.is_stopped = standing.stopped >= run
                    self._reached_ms = max(self._reached_ms, BEFORE_ALL if reached_ms is None else reached_ms)
                    is_over = self._closing.wait(plan.settings.flush_s / 2)
                    read = set(self.read.copy().items())
                    log.note_read(run, plan.lineage, dict(read if is_over else read & before))
                    before = read
                    if is_over:
                        return
        except Exception as error:  # `reached_ms` raises it in every reader
            self._error = error


FOLLOWED: ProcessRegistry[tuple[str, int], Acknowledged] = ProcessRegistry(Acknowledged.close)
"""The process's own `Acknowledged` of each run, by `ReadPlan.run_key`."""
