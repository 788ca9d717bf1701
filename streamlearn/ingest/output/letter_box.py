"""LetterBox: what could not be used, to the dead-letter topic, counted by where it came from.

It does not judge: it is told why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.events import Failure, Origin
from streamlearn.events.dead_letter import dead_letter
from streamlearn.ingest.output.sink_counts import count_letters
from streamlearn.ingest.reading.meters import count_dead_letters
from streamlearn.topics import AccessSettings, Topic, Writer, open_topic

__all__ = ["LetterBox"]


class LetterBox:
    """Writes dead letters.

    Guaranteed: what was given is acknowledged when `flush` returns. Not guaranteed: that a letter is there once: what
    is read again after a crash is set aside again, with the same origin.
    The classic mistake is to let a runner commit before `flush`.

    Args:
        url: The dead-letter topic.
        access: How it is reached.
        clock: When a letter is written.
    """

    def __init__(self, url: str, access: AccessSettings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._url, self._access, self._clock = url, access, clock
        self._topic: Topic | None = None
        self._writer: Writer | None = None

    def give(self, failures: Iterable[tuple[Failure, Origin]]) -> None:
        """Set records and events aside; the topic is opened by the first.

        Raises:
            NotDelivered: What was given before could not be written.
        """
        counts: Counter[tuple[str, int, str]] = Counter()
        for failure, origin in failures:
            writer, topic = self._open()
            letter = dead_letter(failure, origin, self._clock.wall_ms())
            writer.send(origin.partition % topic.partitions, letter)
            counts[origin.topic, origin.partition, failure.reason] += 1
        for where, count in counts.items():
            count_dead_letters(*where, count)
            count_letters(where[2], count)

    def flush(self) -> None:
        """Wait until all that was given is acknowledged.

        Raises:
            NotDelivered: Some of it is not.
        """
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flush, and let go of the topic."""
        writer, topic = self._writer, self._topic
        self._writer = self._topic = None
        try:
            if writer is not None:
                writer.close()
        finally:
            if topic is not None:
                topic.close()

    def _open(self) -> tuple[Writer, Topic]:
        if self._topic is None:
            self._topic = open_topic(self._url, self._access, clock=self._clock)
        if self._writer is None:
            self._writer = self._topic.writer()
        return self._writer, self._topic
