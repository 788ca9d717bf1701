"""A record under construction, with events of one partition. It does not know topics or clocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from streamlearn.schemas import EVENT_PACK
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.settings.join import RECORD_ITEMS_MAX

__all__ = ["PACK_PLAN", "Pack"]

PACK_PLAN = EVENT_PACK.plan


@dataclass
class Pack:
    """Events that wait to become one record."""

    # Avro adds at most five bytes for each event's length and five for its item count, and to the whole the framing,
    # two counts and two end marks.
    EVENT_COST_BYTES: ClassVar[int] = 10
    COST_BYTES: ClassVar[int] = PREFIX_BYTES + 24

    events: list[bytes] = field(default_factory=list)  # each with its framing
    items: list[int] = field(default_factory=list)  # the number of items that each event shows
    items_count: int = 0
    bytes_at_most: int = COST_BYTES  # an upper bound of the record's size
    # The latest event time, which stamps the record. A reader that searches the first record at or after a time
    # therefore misses no event.
    time_ms: int = -(2**63)
    key: bytes = b""  # the request id of the first event
    begun_s: float = 0.0  # arrival of the first event, on the monotonic clock

    def fits(self, event_bytes: int, items: int, events_max: int, bytes_max: int) -> bool:
        """Return whether one more event stays within the bounds, also within `RECORD_ITEMS_MAX`."""
        has_room = len(self.events) < events_max and self.items_count + items <= RECORD_ITEMS_MAX
        return has_room and self.bytes_at_most + event_bytes + self.EVENT_COST_BYTES <= bytes_max

    def add(self, event: bytes, items: int, time_ms: int) -> None:
        """Add an event."""
        self.events.append(event)
        self.items.append(items)
        self.items_count += items
        self.bytes_at_most += len(event) + self.EVENT_COST_BYTES
        self.time_ms = max(self.time_ms, time_ms)

    def record(self) -> bytes:
        """Return the record: a single event as it is, several as a pack."""
        if len(self.events) == 1:
            return self.events[0]
        return EVENT_PACK.write({"events": self.events, "items": self.items})
