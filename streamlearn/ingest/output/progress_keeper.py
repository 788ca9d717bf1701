"""ProgressKeeper: how far a process's lots are, written down by one thread, after the samples were acknowledged.

With it go the empty messages to partitions of the samples topic that had none, so that whoever merges them by their
watermarks never waits. It does not know how samples are made or written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack

from streamlearn.ingest.output.progress import Lineage
from streamlearn.ingest.output.progress_log import ProgressLog
from streamlearn.ingest.reading.watermark import BEFORE_ALL
from streamlearn.topics import Writer

__all__ = ["ProgressKeeper", "close_keeper", "open_keeper", "partitions_of", "silent_partitions"]

_CLOSE_S_MAX = 150.0


def partitions_of(lot: int, lots_count: int, partitions: int) -> list[int]:
    """The partitions of the samples topic that a lot speaks in: the first has its samples.

    Examples:
        >>> partitions_of(5, 16, 4), partitions_of(1, 2, 5)
        ([1], [1, 3])
    """
    return list(range(lot, partitions, lots_count)) or [lot % partitions]


def silent_partitions(
    reached_ms: Mapping[int, int], spoken: Iterable[int], lots_count: int, partitions: int
) -> dict[int, int]:
    """Partitions to which an empty message is due, each with the lot in whose name.

    Args:
        reached_ms: What lots have reached since the last time.
        spoken: Partitions that had samples since then.
        lots_count: How many lots there are.
        partitions: Of the samples topic.

    Examples:
        >>> silent_partitions({0: 700, 4: 900, 1: 800}, [1], lots_count=8, partitions=4)
        {0: 4}
    """
    found: dict[int, int] = {}
    heard = set(spoken)
    for lot, reached in reached_ms.items():
        for partition in partitions_of(lot, lots_count, partitions):
            if partition not in heard and reached > reached_ms.get(found.get(partition, -1), BEFORE_ALL):
                found[partition] = lot
    return found


class ProgressKeeper:
    """Writes progress about every `every_s`.

    Guaranteed: what is told to `reached` is written within about twice that time, also when nothing more comes; never
    before it is told. Not guaranteed: every word: a lot's newer one replaces the one before.
    The classic mistake is to tell it of samples that are not acknowledged.

    Args:
        open_log: Opens the progress topic.
        open_writer: Opens a writer of the samples topic, and says how many partitions it has.
        empty_message: Makes the empty message of a lot at a watermark.
        run: The run's number.
        lineage: What its samples are joined by.
        every_s: How often.
        dead_share: Gives the share of recent events that became dead letters.
    """

    def __init__(
        self,
        open_log: Callable[[], ProgressLog],
        open_writer: Callable[[ExitStack], tuple[Writer, int]],
        empty_message: Callable[[int, int], bytes],
        *,
        run: int,
        lineage: Lineage,
        every_s: float,
        dead_share: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._empty_message, self._run, self._lineage, self._every_s = empty_message, run, lineage, every_s
        self._dead_share = dead_share
        self._reached_ms: dict[int, int] = {}
        self._told_ms: dict[int, int] = {}
        self._spoken: set[int] = set()
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._closing = threading.Event()
        self._error: Exception | None = None
        with ExitStack() as stack:
            self._log = stack.enter_context(open_log())
            self._writer, self._partitions = open_writer(stack)
            self._opened = stack.pop_all()
        self._thread = threading.Thread(target=self._keep, name="streamlearn-ingest-keeper", daemon=True)
        self._thread.start()

    def reached(self, reached_ms: Mapping[int, int], spoken: Iterable[int]) -> None:
        """Say how far lots are. Their samples are acknowledged.

        Args:
            reached_ms: For each lot the event time before which every sample due is acknowledged.
            spoken: Partitions of the samples topic that had messages.

        Raises:
            IngestOver: A newer run has taken over.
            NotDelivered: What was to be written before could not be.
        """
        self.check()
        with self._lock:
            for lot, reached in reached_ms.items():
                self._reached_ms[lot] = max(reached, self._reached_ms.get(lot, reached))
            self._spoken.update(spoken)

    def check(self) -> None:
        """Raise what writing has raised."""
        if self._error is not None:
            raise self._error

    def flush(self) -> None:
        """Write what is to be written now.

        Raises:
            IngestOver: A newer run has taken over.
            NotDelivered: The topic did not take it.
        """
        self.check()
        with self._writing:
            with self._lock:
                reached_ms, self._reached_ms = self._reached_ms, {}
                spoken, self._spoken = self._spoken, set()
            moved = {lot: at for lot, at in reached_ms.items() if at > self._told_ms.get(lot, BEFORE_ALL)}
            if not moved:
                return
            silent = silent_partitions(moved, spoken, self._lineage.lots_count, self._partitions)
            for partition, lot in silent.items():
                self._writer.send(partition, self._empty_message(lot, moved[lot]))
            self._writer.flush()
            self._log.write(self._run, self._lineage, moved, self._dead_share())
            self._told_ms.update(moved)

    def end(self, lots: Iterable[int]) -> None:
        """Write what is to be written, and that nothing more follows of lots.

        Raises:
            IngestOver: A newer run has taken over.
            NotDelivered: The topic did not take it.
        """
        self.flush()
        with self._writing:
            self._log.end(self._run, self._lineage, lots)

    def close(self) -> None:
        """Write what is left, and let go of topics."""
        self._closing.set()
        self._thread.join(_CLOSE_S_MAX)
        try:
            if self._error is None:
                self.flush()
        finally:
            self._opened.close()

    def _keep(self) -> None:
        try:
            while not self._closing.wait(self._every_s):
                self.flush()
        except Exception as error:  # whatever it is, whoever gives samples is told
            self._error = error


_LOCK = threading.Lock()
_KEEPERS: dict[tuple[str, int], tuple[ProgressKeeper, int]] = {}


def open_keeper(progress_url: str, run: int, make: Callable[[], ProgressKeeper]) -> ProgressKeeper:
    """The process's own keeper of a run, made when there is none; give it back with `close_keeper`."""
    with _LOCK:
        keeper, users = _KEEPERS.get((progress_url, run)) or (make(), 0)
        _KEEPERS[progress_url, run] = (keeper, users + 1)
        return keeper


def close_keeper(progress_url: str, run: int) -> None:
    """Give it back; the last who does ends it."""
    with _LOCK:
        keeper, users = _KEEPERS.pop((progress_url, run))
        if users > 1:
            _KEEPERS[progress_url, run] = (keeper, users - 1)
            return
    keeper.close()
