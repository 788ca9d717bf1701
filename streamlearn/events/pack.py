"""One record being filled with the events of one partition. It knows no topic and no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from streamlearn.native import native
from streamlearn.schemas import EVENT_PACK
from streamlearn.schemas.schema import PREFIX_BYTES

__all__ = ["PACK_PLAN", "Pack"]

PACK_PLAN = native.AvroPlan(EVENT_PACK.text, EVENT_PACK.text)


@dataclass
class Pack:
    """Events waiting to become one record.

    Attributes:
        events: Each event with its framing.
        items: How many items each shows.
        bytes_at_most: What the record will take at most.
        time_ms: The latest event time, which stamps the record: a reader that looks for the first record of a
            time then misses no event of that time or later.
        key: The request id of the first event.
        begun_s: When its first event came, on the monotonic clock.
    """

    # What Avro adds: a length of at most five bytes before each event and as much for its item count; and to
    # the whole the framing, two counts and two ends.
    EVENT_COST_BYTES: ClassVar[int] = 10
    COST_BYTES: ClassVar[int] = PREFIX_BYTES + 24

    events: list[bytes] = field(default_factory=list)
    items: list[int] = field(default_factory=list)
    bytes_at_most: int = COST_BYTES
    time_ms: int = -(2**63)
    key: bytes = b""
    begun_s: float = 0.0

    def fits(self, event_bytes: int, events_max: int, bytes_max: int) -> bool:
        """Whether one more event stays within the bounds."""
        grown = self.bytes_at_most + event_bytes + self.EVENT_COST_BYTES
        return len(self.events) < events_max and grown <= bytes_max

    def add(self, event: bytes, items: int, time_ms: int) -> None:
        """Take one more event."""
        self.events.append(event)
        self.items.append(items)
        self.bytes_at_most += len(event) + self.EVENT_COST_BYTES
        self.time_ms = max(self.time_ms, time_ms)

    def record(self) -> bytes:
        """The record: the event itself when it is alone, else a pack."""
        if len(self.events) == 1:
            return self.events[0]
        return EVENT_PACK.write({"events": self.events, "items": self.items})
