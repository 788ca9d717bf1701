"""Ledger: bytes that were read and whose samples are not acknowledged yet. Pure; it knows no topic."""

from __future__ import annotations

from collections import deque

__all__ = ["Ledger"]


class Ledger:
    """Blobs that one reader has emitted and that are not finished, up to `bound_bytes`.

    A blob is finished once the progress of every lot has reached the watermark emitted with it: a runner passes a
    watermark on only behind the elements before it. Guaranteed: with nothing unfinished there is room for a blob of any
    size, so the bound never stops reading for good. `unacknowledged_bytes` is as of the last `has_room`.

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
        self.unacknowledged_bytes = 0

    def add(self, watermark_ms: int, size_bytes: int) -> None:
        """Record a blob, and the watermark emitted with it."""
        self._entries.append((watermark_ms, size_bytes))
        self.unacknowledged_bytes += size_bytes

    def has_room(self, acknowledged_ms: int) -> bool:
        """Whether another blob may be emitted, given the least watermark that all lots have acknowledged."""
        while self._entries and self._entries[0][0] <= acknowledged_ms:
            self.unacknowledged_bytes -= self._entries.popleft()[1]
        return self.unacknowledged_bytes < self._bound_bytes
