"""Message: a decoded message of the samples topic, and the position that training has reached."""

from __future__ import annotations

from dataclasses import dataclass

from streamlearn.samples import SampleBatch

__all__ = ["Message", "Reached"]


@dataclass(frozen=True, eq=False)
class Message:
    """Samples and their position in the topic."""

    partition: int
    offset: int
    bytes: int  # the encoded size
    batch: SampleBatch
    leader_epoch: int = -1  # Kafka's leader epoch of the record; -1 if it is unknown


@dataclass(frozen=True)
class Reached:
    """The position up to which messages have been learned.

    `leader_epochs` has, by partition, Kafka's leader epoch of the record before the offset; -1 if it is unknown. It is
    empty in positions that an older release wrote.
    """

    offsets: tuple[int, ...]  # by partition, the first offset that is not fully learned
    watermarks_ms: tuple[int | None, ...]  # by partition, the highest watermark of earlier messages; None before any
    clock_ms: int | None = None  # table time: the highest watermark of messages in their order; None before any
    lots_ms: tuple[int | None, ...] = ()  # by lot of ingest, the highest watermark of its messages; None before any
    leader_epochs: tuple[int, ...] = ()

    @property
    def watermark_ms(self) -> int | None:
        """The event time up to which samples are complete: the minimum of all lots; None until each has a watermark.

        A lot's watermark covers that lot only: one that catches up may be hours ahead of the next.
        """
        known = [mark for mark in self.lots_ms if mark is not None]
        return min(known) if known and len(known) == len(self.lots_ms) else None
