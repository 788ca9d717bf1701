"""Merge: orders the messages of all partitions by their content alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from streamlearn.trainer.intake.message import Message, Reached

__all__ = ["Merge"]

_BEFORE_ALL = -(1 << 63)


class Merge:
    """Orders messages by the highest watermark up to them in their partition, then by partition and offset.

    Guaranteed: if every partition has a message or has ended, the order is the same in every run, wherever the run
    began. Not guaranteed: the order of `take(wait=False)`, which leaves out partitions that are silent now.

    Examples:
        >>> merge = Merge(Reached((0, 0), (None, None)))
        >>> merge.take(), merge.bytes
        (None, 0)
    """

    def __init__(self, reached: Reached) -> None:
        self._heads: list[deque[tuple[int, Message]]] = [deque() for _ in reached.offsets]
        self._offsets = list(reached.offsets)
        self._leader_epochs = list(reached.leader_epochs) or [-1] * len(reached.offsets)
        self._watermarks: list[int | None] = list(reached.watermarks_ms)
        self._clock_ms, self._lots = reached.clock_ms, list(reached.lots_ms)
        self._put_ms = [_BEFORE_ALL if mark is None else mark for mark in reached.watermarks_ms]
        self._ended: set[int] = set()
        self.bytes = 0

    def put(self, message: Message) -> None:
        """Add a message that follows those already added of its partition."""
        partition = message.partition
        self._put_ms[partition] = max(self._put_ms[partition], message.batch.header.watermark_ms)
        self._heads[partition].append((self._put_ms[partition], message))
        self.bytes += message.bytes

    def end(self, partition: int) -> None:
        """Declare that a partition has no more messages."""
        self._ended.add(partition)

    def take(self, *, wait: bool = True) -> Message | None:
        """Return the next message; None without one, or with `wait` while a partition that has not ended is silent."""
        first: tuple[int, int] | None = None
        for partition, head in enumerate(self._heads):
            if head:
                key = (head[0][0], partition)
                first = key if first is None else min(first, key)
            elif wait and partition not in self._ended:
                return None
        if first is None:
            return None
        watermark_ms, partition = first
        _, message = self._heads[partition].popleft()
        self.bytes -= message.bytes
        self._clock_ms = watermark_ms if self._clock_ms is None else max(self._clock_ms, watermark_ms)
        return message

    def consume(self, message: Message) -> None:
        """Note that all of a message went into steps: the position moves past it."""
        partition = message.partition
        before = self._watermarks[partition]
        header = message.batch.header
        watermark_ms, lot = header.watermark_ms, header.lot
        self._watermarks[partition] = watermark_ms if before is None else max(before, watermark_ms)
        if len(self._lots) != header.lots_count:  # ingest was restarted with another number of lots
            self._lots = [None] * header.lots_count
        # A lot's samples are in one partition; its watermark counts only there, since other partitions are behind.
        if partition == lot % len(self._offsets):
            lot_before = self._lots[lot]
            self._lots[lot] = watermark_ms if lot_before is None else max(lot_before, watermark_ms)
        self._offsets[partition], self._leader_epochs[partition] = message.offset + 1, message.leader_epoch

    @property
    def reached(self) -> Reached:
        """The position up to which messages were consumed."""
        watermarks, lots = tuple(self._watermarks), tuple(self._lots)
        return Reached(tuple(self._offsets), watermarks, self._clock_ms, lots, tuple(self._leader_epochs))

    @property
    def waiting(self) -> Sequence[int]:
        """The number of waiting messages of each partition."""
        return [len(head) for head in self._heads]
