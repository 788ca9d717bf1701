"""Merge: messages of all partitions in one order, which depends on nothing but what they say."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from streamlearn.trainer.intake.message import Message, Reached

__all__ = ["Merge"]

_BEFORE_ALL = -(1 << 63)


class Merge:
    """Gives messages by the highest watermark up to them in their partition, then by partition and offset.

    Guaranteed: where every partition has a message, or nothing more will come, the order is the same in every run,
    from wherever it began. Not guaranteed: anything of `take(wait=False)`, which leaves out partitions that are
    silent now.

    Args:
        reached: Where messages go on.

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
        self._put_ms = [_BEFORE_ALL if one is None else one for one in reached.watermarks_ms]
        self._ended: set[int] = set()
        self.bytes = 0

    def put(self, message: Message) -> None:
        """A message that comes after those of its partition that were put before."""
        partition = message.partition
        self._put_ms[partition] = max(self._put_ms[partition], message.batch.header.watermark_ms)
        self._heads[partition].append((self._put_ms[partition], message))
        self.bytes += message.bytes

    def end(self, partition: int) -> None:
        """Nothing more comes of a partition."""
        self._ended.add(partition)

    def take(self, *, wait: bool = True) -> Message | None:
        """The next message; None where there is none, or a partition that may have one has none yet.

        Args:
            wait: Whether partitions that are silent are waited for.
        """
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
        """All of a message was given to steps: what follows goes on after it."""
        partition = message.partition
        before = self._watermarks[partition]
        header = message.batch.header
        mark, lot = header.watermark_ms, header.lot
        self._watermarks[partition] = mark if before is None else max(before, mark)
        if len(self._lots) != header.lots_count:  # ingest began anew, with lots of its own
            self._lots = [None] * header.lots_count
        # Its samples stand in one partition alone; in others it says how far it is ahead of them.
        if partition == lot % len(self._offsets):
            heard = self._lots[lot]
            self._lots[lot] = mark if heard is None else max(heard, mark)
        self._offsets[partition], self._leader_epochs[partition] = message.offset + 1, message.leader_epoch

    @property
    def reached(self) -> Reached:
        """Up to where messages were consumed."""
        marks, lots = tuple(self._watermarks), tuple(self._lots)
        return Reached(tuple(self._offsets), marks, self._clock_ms, lots, tuple(self._leader_epochs))

    @property
    def waiting(self) -> Sequence[int]:
        """How many messages of each partition wait."""
        return [len(head) for head in self._heads]
