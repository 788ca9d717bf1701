"""Message: one message of the samples topic, read. It knows no order."""

from __future__ import annotations

from dataclasses import dataclass

from streamlearn.samples import SampleBatch

__all__ = ["Message", "Reached"]


@dataclass(frozen=True, eq=False)
class Message:
    """Samples, and where they were.

    Attributes:
        partition: Of the samples topic.
        offset: Its own.
        bytes: Its size.
        batch: What it says.
    """

    partition: int
    offset: int
    bytes: int
    batch: SampleBatch


@dataclass(frozen=True)
class Reached:
    """Up to where messages have been learned from.

    Attributes:
        offsets: By partition, the first offset that is not wholly learned from.
        watermarks_ms: By partition, the highest watermark of the messages before it; None before any.
        clock_ms: The highest watermark in the order of messages; None before any. The time of tables.
    """

    offsets: tuple[int, ...]
    watermarks_ms: tuple[int | None, ...]
    clock_ms: int | None = None

    @property
    def watermark_ms(self) -> int | None:
        """Event time up to which samples are complete: the lowest of all partitions; None before they have one."""
        known = [one for one in self.watermarks_ms if one is not None]
        return min(known) if len(known) == len(self.watermarks_ms) and known else None
