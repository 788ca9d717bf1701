"""Puller: fetches one partition of one topic in a thread of its own, so that the caller of `take` never waits.

It holds a bounded number of bytes and reports when the partition was proven empty. It does not know the other topic,
nor what the records hold.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from streamlearn.clock import Clock
from streamlearn.errors import TopicUnreachable
from streamlearn.topics import Reader, Records

__all__ = ["PullLimits", "Puller"]

_RECORDS_MAX = 4_096
_CLOSE_S_MAX = 1.0
# How often the partition's end is looked at while records come.
_END_LOOK_S = 10.0


@dataclass(frozen=True)
class PullLimits:
    """How much is fetched ahead, and how long the puller waits for a broker.

    Attributes:
        held_bytes: At this bound fetching waits.
        read_bytes: Of one read.
        wait_ms: Of one read without records.
        idle_s: Time without records after which the partition's end is checked.
    """

    held_bytes: int
    read_bytes: int
    wait_ms: int
    idle_s: float


class Puller:
    """Reads continuously from an offset.

    Guaranteed: `take` and `empty_ms` return at once; records come once, in order and without gaps; `take` raises an
    error of the topic after the records that came before it. The puller's thread closes the reader when it ends.
    """

    def __init__(self, reader: Reader, partition: int, offset: int, *, limits: PullLimits, clock: Clock) -> None:
        self._reader, self._partition, self._offset = reader, partition, offset
        self._limits, self._clock = limits, clock
        self._changed = threading.Condition()
        self._held: deque[tuple[Records, int]] = deque()
        self._held_bytes = 0
        self._empty_ms: int | None = None
        self._error: Exception | None = None
        self._closing = self._has_looked = self._at_end = False
        self._quiet_since_s = self._looked_s = clock.monotonic_s()
        self._end, self._end_looked_s = offset, float("-inf")
        name = f"streamlearn-ingest-{reader.url.rpartition('/')[2]}-{partition}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def take(self) -> Records | None:
        """Return the next records, None when there are none now. Raises the errors of the topic's reader."""
        with self._changed:
            if self._held:
                records, size = self._held.popleft()
                self._held_bytes -= size
                self._changed.notify_all()
                return records
            if self._error is not None:
                raise self._error
            return None

    def has_some(self) -> bool:
        """Whether `take` would return records now, or raise."""
        with self._changed:
            return bool(self._held) or self._error is not None

    def has_looked(self) -> bool:
        """Whether the topic has answered once, with records or without, or failed."""
        with self._changed:
            return self._has_looked

    def is_at_end(self) -> bool:
        """Whether the partition ended after the last records when they were read, and all of them were taken."""
        with self._changed:
            return self._at_end and not self._held

    def empty_ms(self) -> int | None:
        """Return the wall time at which the partition was proven empty; None if it was not, or has records since."""
        with self._changed:
            return self._empty_ms

    def behind(self, offset: int) -> int:
        """Return the number of records from an offset to the partition's end, as of the last look at it."""
        return max(0, self._end - offset)

    def end(self) -> None:
        """Tell the thread to end once its broker has answered."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread. Waits briefly, since a broker may be silent."""
        self.end()
        self._thread.join(_CLOSE_S_MAX)

    def _run(self) -> None:
        try:
            with self._reader:
                while (has_room := self._has_room()) is not None:
                    if has_room:
                        self._pull()
                    else:
                        self._look_how_far()
        except Exception as error:  # `take` raises it
            with self._changed:
                self._error, self._has_looked = error, True

    def _has_room(self) -> bool | None:
        """Wait for room, but for no longer than until the next look at the end; None once the thread has to end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closing or self._held_bytes < self._limits.held_bytes, timeout=_END_LOOK_S
            )
            return None if self._closing else self._held_bytes < self._limits.held_bytes

    def _pull(self) -> None:
        limits = self._limits
        bounds = {"max_records": _RECORDS_MAX, "max_bytes": limits.read_bytes, "wait_ms": limits.wait_ms}
        records = self._reader.read(self._partition, self._offset, **bounds)
        now_s = self._clock.monotonic_s()
        if len(records) or records.next_offset > self._offset:
            self._offset, self._quiet_since_s, self._looked_s = records.next_offset, now_s, now_s
            size = _size(records)
            with self._changed:
                self._held.append((records, size))
                self._held_bytes += size
                self._has_looked = True
                self._empty_ms, self._at_end = None, records.is_at_end
            self._look_how_far()
            return
        if now_s - self._quiet_since_s >= limits.idle_s and now_s - self._looked_s >= limits.idle_s / 2:
            self._looked_s = now_s
            self._look_at_end()
        with self._changed:
            self._has_looked = True

    def _look_how_far(self) -> None:
        """Look at the partition's end now and then."""
        now_s = self._clock.monotonic_s()
        if now_s - self._end_looked_s >= _END_LOOK_S:
            self._end_looked_s = now_s
            with suppress(TopicUnreachable):
                self._end = self._reader.end(self._partition)

    def _look_at_end(self) -> None:
        """Silence means empty only at the partition's end. The proof has the time before the check."""
        wall_ms = self._clock.wall_ms()
        self._end = self._reader.end(self._partition)
        with self._changed:
            self._empty_ms = wall_ms if self._end == self._offset else None


def _size(records: Records) -> int:
    return sum(sum(map(len, filter(None, column))) for column in (records.values, records.keys))
