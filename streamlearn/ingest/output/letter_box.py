"""LetterBox: writes unusable records and events to the dead-letter topic, and counts them by origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.events import Failure, Origin
from streamlearn.events.dead_letter import dead_letter
from streamlearn.ingest.output.sink_counts import count_letters
from streamlearn.ingest.reading.meters import count_dead_letters
from streamlearn.topics import Writer, open_topic

__all__ = ["LetterBox"]


class LetterBox:
    """Writes dead letters.

    Guaranteed: everything given is acknowledged when `flush` returns; `give` and `flush` raise `NotDelivered` if
    letters could not be written. Not guaranteed: that a letter comes once: records that are read again after a crash
    make the same letters again, with the same origin. The classic mistake is to let a runner commit before `flush`.
    """

    def __init__(self, folder: AppFolder, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._folder, self._clock = folder, clock
        self._opened = ExitStack()
        self._writer: Writer | None = None
        self._partitions = 0

    def give(self, failures: Iterable[tuple[Failure, Origin]]) -> None:
        """Write records and events as dead letters. The first one opens the topic."""
        counts: Counter[tuple[str, int, str]] = Counter()
        for failure, origin in failures:
            writer = self._writer or self._open()
            letter = dead_letter(failure, origin, self._clock.wall_ms())
            writer.send(origin.partition % self._partitions, letter)
            counts[origin.topic, origin.partition, failure.reason] += 1
        for (topic_name, partition, reason), count in counts.items():
            count_dead_letters(topic_name, partition, reason, count)
            count_letters(reason, count)

    def flush(self) -> None:
        """Wait until all letters are acknowledged."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flush, and close the topic."""
        self._writer = None
        self._opened.close()

    def _open(self) -> Writer:
        folder, url = self._folder, self._folder.topic_url("dead_letters")
        topic = self._opened.enter_context(open_topic(url, folder.access, clock=self._clock))
        self._writer, self._partitions = topic.writer(folder.writer_settings), topic.partitions
        self._opened.callback(self._writer.close)
        return self._writer
