"""Ledger: bytes that were read and whose samples are not acknowledged yet. Pure; it knows no topic."""

from __future__ import annotations

from collections import deque

__all__ = ["Ledger"]


class Ledger:
    """What one reader has given away and nobody has finished.

    A blob is finished once every lot's progress has reached the watermark that was given with it: a runner lets a
    watermark pass only behind what came before it. Guaranteed: with nothing unfinished there is room, however large
    a blob; so reading never stops for good over its own bound.

    Args:
        bound_bytes: From how many unfinished bytes on there is no room.

    Examples:
        >>> ledger = Ledger(bound_bytes=100)
        >>> ledger.add(watermark_ms=1000, size_bytes=60)
        >>> ledger.add(watermark_ms=2000, size_bytes=60)
        >>> ledger.has_room(acknowledged_ms=0), ledger.has_room(acknowledged_ms=1000)
        (False, True)
    """

    def __init__(self, bound_bytes: int) -> None:
        self._bound_bytes = bound_bytes
        self._entries: deque[tuple[int, int]] = deque()
        self._bytes = 0

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes that are not finished, as of the last `has_room`."""
        return self._bytes

    def add(self, watermark_ms: int, size_bytes: int) -> None:
        """A blob was given away, and with it a watermark."""
        self._entries.append((watermark_ms, size_bytes))
        self._bytes += size_bytes

    def has_room(self, acknowledged_ms: int) -> bool:
        """Whether another blob may be given away.

        Args:
            acknowledged_ms: The least watermark of all lots whose samples are acknowledged.
        """
        while self._entries and self._entries[0][0] <= acknowledged_ms:
            self._bytes -= self._entries.popleft()[1]
        return self._bytes < self._bound_bytes
