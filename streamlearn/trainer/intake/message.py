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
        leader_epoch: Kafka's leader epoch of it; -1 where it is not known.
    """

    partition: int
    offset: int
    bytes: int
    batch: SampleBatch
    leader_epoch: int = -1


@dataclass(frozen=True)
class Reached:
    """Up to where messages have been learned from.

    Attributes:
        offsets: By partition, the first offset that is not wholly learned from.
        watermarks_ms: By partition, the highest watermark of the messages before it; None before any.
        clock_ms: The highest watermark in the order of messages; None before any. The time of tables.
        lots_ms: By lot of ingest, the highest watermark of its messages; None for one that was not heard yet.
        leader_epochs: By partition, Kafka's leader epoch of the record before its offset; -1 where it is not known.
            Empty in what an older release wrote.
    """

    offsets: tuple[int, ...]
    watermarks_ms: tuple[int | None, ...]
    clock_ms: int | None = None
    lots_ms: tuple[int | None, ...] = ()
    leader_epochs: tuple[int, ...] = ()

    @property
    def watermark_ms(self) -> int | None:
        """Event time up to which samples are complete: the lowest of all lots; None until all were heard.

        A lot says how far it is itself alone: one that catches up may be hours ahead of the next in one partition.
        """
        known = [one for one in self.lots_ms if one is not None]
        return min(known) if known and len(known) == len(self.lots_ms) else None
