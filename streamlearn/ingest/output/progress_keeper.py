"""ProgressKeeper: one thread that writes the progress of a process's lots, after their samples were acknowledged.

It also writes empty messages to silent partitions of the samples topic, so that consumers that merge them by watermark
never wait. It makes and writes no samples.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack

from streamlearn.apps import AppFolder
from streamlearn.ingest.output.progress_log import ProgressLog
from streamlearn.ingest.output.sample_maker import SampleMaker
from streamlearn.ingest.process_registry import ProcessRegistry
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.ingest.reading.watermark import BEFORE_ALL
from streamlearn.samples import SampleCodec

__all__ = ["KEEPERS", "ProgressKeeper", "is_due", "partitions_of", "silent_partitions"]

_CLOSE_S_MAX = 150.0
# Without samples, progress is written once in this many intervals: an idle application must cost next to nothing.
_SILENT_INTERVALS = 8


def partitions_of(lot: int, lots_count: int, partitions: int) -> list[int]:
    """Return the partitions of the samples topic that a lot writes to; the first has its samples.

    Examples:
        >>> partitions_of(5, 16, 4), partitions_of(1, 2, 5)
        ([1], [1, 3])
    """
    return list(range(lot, partitions, lots_count)) or [lot % partitions]


def silent_partitions(
    reached_ms: Mapping[int, int], spoken: Iterable[int], lots_count: int, partitions: int
) -> dict[int, int]:
    """Return partitions that need an empty message, each with the lot that sends it.

    `reached_ms` has the progress of lots since the last call, `spoken` the partitions that had messages since then.

    Examples:
        >>> silent_partitions({0: 700, 4: 900, 1: 800}, [1], lots_count=8, partitions=4)
        {0: 4}
    """
    senders: dict[int, int] = {}
    had_messages = set(spoken)
    for lot, reached in reached_ms.items():
        for partition in partitions_of(lot, lots_count, partitions):
            if partition not in had_messages and reached > reached_ms.get(senders.get(partition, -1), BEFORE_ALL):
                senders[partition] = lot
    return senders


def is_due(silent: int) -> bool:
    """Return whether to write progress after this many intervals in a row without samples.

    Examples:
        >>> [silent for silent in range(18) if is_due(silent)]
        [0, 1, 9, 17]
    """
    return silent == 0 or silent % _SILENT_INTERVALS == 1


class ProgressKeeper:
    """Writes progress about every `every_s`, and less often while no samples are sent.

    Guaranteed: the progress given to `reached` with samples is written within about twice that time, other progress
    within nine times, even if nothing more comes; never before it is given. Not guaranteed: every value: a lot's newer
    one replaces the one before. The classic mistake is to report samples that are not acknowledged.

    `reached`, `flush` and `end` raise `IngestOver` if a newer run has taken over, and `NotDelivered` if a topic did not
    accept this or earlier progress.

    The keeper owns `maker`, which makes the empty messages: a maker serves one thread. `dead_share` returns the share
    of recent events that became dead letters.
    """

    def __init__(
        self,
        folder: AppFolder,
        plan: ReadPlan,
        maker: SampleMaker,
        *,
        every_s: float,
        dead_share: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._run, self._lineage, self._every_s, self._dead_share = plan.run, plan.lineage, every_s, dead_share
        self._codec, self._maker = SampleCodec(folder.app, folder.settings.samples), maker
        self._reached_ms: dict[int, int] = {}
        self._written_ms: dict[int, int] = {}
        self._partitions_sent: set[int] = set()
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._closing = threading.Event()
        self._error: Exception | None = None
        with ExitStack() as stack:
            writing = folder.writer_settings
            self._log = stack.enter_context(ProgressLog.open(plan.progress_url, plan.access, writing))
            stack.callback(maker.close)
            topic = stack.enter_context(folder.open_topic("samples"))
            self._writer, self._partitions = stack.enter_context(topic.writer(writing)), topic.partitions
            self._opened = stack.pop_all()
        self._thread = threading.Thread(target=self._write_regularly, name="streamlearn-ingest-keeper", daemon=True)
        self._thread.start()

    def reached(self, reached_ms: Mapping[int, int], spoken: Iterable[int]) -> None:
        """Report lots whose samples are acknowledged up to an event time, and partitions that had messages."""
        self.check()
        with self._lock:
            for lot, reached in reached_ms.items():
                self._reached_ms[lot] = max(reached, self._reached_ms.get(lot, reached))
            self._partitions_sent.update(spoken)

    def check(self) -> None:
        """Raise the error of an earlier write."""
        if self._error is not None:
            raise self._error

    def flush(self) -> None:
        """Write reported progress now."""
        self.check()
        with self._writing:
            with self._lock:
                reached_ms, self._reached_ms = self._reached_ms, {}
                sent, self._partitions_sent = self._partitions_sent, set()
            moved = {lot: at for lot, at in reached_ms.items() if at > self._written_ms.get(lot, BEFORE_ALL)}
            if not moved:
                return
            silent = silent_partitions(moved, sent, self._lineage.lots_count, self._partitions)
            for partition, lot in silent.items():
                self._writer.send(partition, self._codec.encode(self._maker.empty(lot, moved[lot])))
            self._writer.flush()
            self._log.write(self._run, self._lineage, moved, self._dead_share())
            self._written_ms.update(moved)

    def end(self, lots: Iterable[int]) -> None:
        """Write reported progress, and mark lots as finished."""
        self.flush()
        with self._writing:
            self._log.end(self._run, self._lineage, lots)

    def close(self) -> None:
        """Write reported progress, and close topics."""
        self._closing.set()
        self._thread.join(_CLOSE_S_MAX)
        try:
            if self._error is None:
                self.flush()
        finally:
            self._opened.close()

    def _write_regularly(self) -> None:
        silent = 0
        try:
            while not self._closing.wait(self._every_s):
                silent = 0 if self._partitions_sent else silent + 1
                if is_due(silent):
                    self.flush()
        except Exception as error:  # `check` raises it
            self._error = error


KEEPERS: ProcessRegistry[tuple[str, int], ProgressKeeper] = ProcessRegistry(ProgressKeeper.close)
"""The process's own keeper of each run, by `ReadPlan.run_key`."""
