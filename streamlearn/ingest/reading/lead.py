"""Lead: which of a partition's two topics may be read now, so that neither runs away from the other.

Pure. Actions that are read hours before their impressions would wait in memory for all that time; so the topic that
is behind is always read, and the other within two bounds.
"""

from __future__ import annotations

from collections import deque

from streamlearn.ingest.reading.watermark import BEFORE_ALL, TopicClock

__all__ = ["Lead"]


class Lead:
    """How far each of two topics was read ahead of the other.

    Guaranteed: at least one of the two may be read, unless both have ended.

    Args:
        ahead_ms: Event time that one may be ahead.
        ahead_bytes: Bytes that were read while it was.
    """

    def __init__(self, ahead_ms: int, ahead_bytes: int) -> None:
        self._ahead_ms, self._ahead_bytes = ahead_ms, ahead_bytes
        self._read: tuple[deque[tuple[int, int]], ...] = (deque(), deque())
        self._bytes = [0, 0]

    def note(self, topic: int, time_ms: int, size_bytes: int) -> None:
        """Records of one topic were read, up to an event time."""
        self._read[topic].append((time_ms, size_bytes))
        self._bytes[topic] += size_bytes

    def allowed(self, clocks: tuple[TopicClock, TopicClock], waited_for: tuple[bool, bool]) -> list[int]:
        """Which topics may be read, the one that is behind first.

        Args:
            clocks: How far each was read.
            waited_for: False where a topic has ended or is proven empty: nobody waits for it.
        """
        found = []
        for topic in (0, 1):
            mine_ms, other_ms = clocks[topic].now_ms, clocks[1 - topic].now_ms
            self._forget(topic, other_ms)
            is_behind = not waited_for[1 - topic] or mine_ms <= other_ms
            has_room = self._bytes[topic] < self._ahead_bytes and self._is_near(mine_ms, other_ms)
            if is_behind or has_room:
                found.append(topic)
        return sorted(found, key=lambda topic: clocks[topic].now_ms)

    def bytes_ahead(self, topic: int) -> int:
        """Bytes of a topic that were read ahead of the other, as of the last `allowed`."""
        return self._bytes[topic]

    def _is_near(self, mine_ms: int, other_ms: int) -> bool:
        """Of a topic that nothing was read of yet no time is known: bytes alone bound the other."""
        return other_ms == BEFORE_ALL or mine_ms - other_ms < self._ahead_ms

    def _forget(self, topic: int, other_ms: int) -> None:
        """What the other has caught up with is no lead."""
        read = self._read[topic]
        while read and read[0][0] <= other_ms:
            self._bytes[topic] -= read.popleft()[1]
