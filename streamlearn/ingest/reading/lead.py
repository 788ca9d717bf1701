"""Lead: which of a partition's two topics may be read now, so that neither runs far ahead of the other.

Pure. Actions that are read hours before their impressions would wait in memory for hours. So the topic that is behind
may always be read, and the other one only within two bounds.
"""

from __future__ import annotations

from collections import deque

from streamlearn.ingest.reading.watermark import BEFORE_ALL, TopicClock

__all__ = ["Lead"]


class Lead:
    """How far each of two topics was read ahead of the other: at most `ahead_ms` of event time and `ahead_bytes`.

    Guaranteed: at least one of the two may be read, unless both have ended.
    """

    def __init__(self, ahead_ms: int, ahead_bytes: int) -> None:
        self._ahead_ms, self._ahead_bytes = ahead_ms, ahead_bytes
        self._read: tuple[deque[tuple[int, int]], ...] = (deque(), deque())
        self._bytes = [0, 0]

    def note(self, topic: int, time_ms: int, size_bytes: int) -> None:
        """Record that records of one topic were read, up to an event time."""
        self._read[topic].append((time_ms, size_bytes))
        self._bytes[topic] += size_bytes

    def allowed(self, clocks: tuple[TopicClock, TopicClock], waited_for: tuple[bool, bool]) -> list[int]:
        """Return the topics that may be read, the one that is behind first.

        `waited_for` is False where a topic has ended or is proven empty, so that the other does not wait for it.
        """
        allowed = []
        for topic in (0, 1):
            mine_ms, other_ms = clocks[topic].now_ms, clocks[1 - topic].now_ms
            self._forget(topic, other_ms)
            is_behind = not waited_for[1 - topic] or mine_ms <= other_ms
            has_room = self._bytes[topic] < self._ahead_bytes and self._is_near(mine_ms, other_ms)
            if is_behind or has_room:
                allowed.append(topic)
        return sorted(allowed, key=lambda topic: clocks[topic].now_ms)

    def bytes_ahead(self, topic: int) -> int:
        """Return the bytes that a topic was read ahead of the other, as of the last `allowed`."""
        return self._bytes[topic]

    def _is_near(self, mine_ms: int, other_ms: int) -> bool:
        """While the other topic's time is unknown, bytes alone are the bound."""
        return other_ms == BEFORE_ALL or mine_ms - other_ms < self._ahead_ms

    def _forget(self, topic: int, other_ms: int) -> None:
        """Drop entries that the other topic has caught up with."""
        read = self._read[topic]
        while read and read[0][0] <= other_ms:
            self._bytes[topic] -= read.popleft()[1]
