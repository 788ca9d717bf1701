"""Feed: reads the samples topic as steps, with bounded read-ahead. It learns nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import BadRecord, Oversize, PositionLost, TopicError
from streamlearn.publisher.publisher import QUIET_S_MAX
from streamlearn.samples import SampleCodec
from streamlearn.topics import Position, Reader, Records, Topic
from streamlearn.topics.topic import pause_s_of
from streamlearn.trainer.intake.merge import Merge
from streamlearn.trainer.intake.message import Message, Reached
from streamlearn.trainer.step import Step

__all__ = ["Feed", "StepSource", "Until", "beginning_of", "quiet_s_max", "skip_lost"]

_LOG = logging.getLogger("streamlearn.trainer.Feed")
_RECORDS, _RECORDS_BYTES = 64, 4 << 20
_SKEW_MS = 300_000  # between the clocks of ingest and of the trainer
_LOOK_S, _QUIET_LOOK_S, _QUIET_WAIT_S = 1.0, 5.0, 1.0
_QUIET_SHARE = 0.1  # of the topic's retention


@dataclass(frozen=True)
class Until:
    """When a feed ends by itself; by default never."""

    offsets: Mapping[int, int] | None = None  # by partition, the first offset that is not read
    idle_s: float | None = None  # the time without new messages; None for no limit


class StepSource(Protocol):
    """Makes steps of messages; see `StepCutter`."""

    @property
    def has_more(self) -> bool:
        """Whether messages were added after the last step."""
        ...

    @property
    def has_rows(self) -> bool:
        """Whether rows wait for a step to fill up."""
        ...

    def add(self, message: Message, before: Reached, after: Reached) -> Iterator[Step]:
        """Yield the steps that a message fills."""
        ...

    def flush(self, reached: Reached) -> Step:
        """Return the waiting rows as a step."""
        ...


class Feed:
    """Reads steps from the samples topic, starting at `reached`.

    `keep_aside` takes the file name and the bytes of each message that cannot be read. `lag` has the unread messages by
    partition, as of the last look at the ends.

    Raises:
        PositionLost: The topic no longer has the next message.
    """

    def __init__(
        self,
        folder: AppFolder,
        topic: Topic,
        reached: Reached,
        step_source: StepSource,
        *,
        until: Until | None = None,
        keep_aside: Callable[[str, bytes], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._settings = folder.settings.trainer
        self._codec = SampleCodec(folder.app, folder.settings.samples)
        window_s = max(group.window_s for group in folder.app.groups)  # an end mark moves time past all windows
        ahead_ms = round(1_000 * (folder.settings.ingest.ahead_s_max + window_s)) + _SKEW_MS
        self._ahead_ms_max = ahead_ms if folder.settings.topics.time == "wall" else None
        self._until, self._keep_aside, self._clock = until or Until(), keep_aside, clock
        self._step_source, self._merge = step_source, Merge(reached)
        self._next = dict(enumerate(reached.offsets))
        self._reader: Reader = topic.reader(positions=_positions(topic, reached))
        self._is_strict = self._settings.order == "strict"
        self._step_begin_s = self._last_message_s = clock.monotonic_s()
        self.bad = 0
        self.lag: dict[int, int] = {}
        self._lag_checked_s = -_LOOK_S

    def steps(self) -> Iterator[Step | None]:
        """Yield steps in order, and None when nothing new arrives within `poll_s`. Ends as `until` states."""
        while True:
            self._end_partitions()
            has_taken = yield from self._take()
            silence_s = self._clock.monotonic_s() - self._last_message_s
            has_read = self._read(0.0 if has_taken else pause_s_of(silence_s, self._settings.poll_s, _QUIET_WAIT_S))
            if self._has_waited():
                yield self._flush()
            if has_taken or has_read:
                continue
            if not self._open or self._is_idle():
                break
            yield None
        yield from self._drain()

    def close(self) -> None:
        """Close the topic's reader."""
        self._reader.close()

    @property
    def _open(self) -> dict[int, int]:
        """The partitions that are still read, with the next offset."""
        ends = self._until.offsets
        return {
            partition: offset
            for partition, offset in self._next.items()
            if ends is None or offset < ends.get(partition, 0)
        }

    def _end_partitions(self) -> None:
        for partition in self._next.keys() - self._open.keys():
            self._merge.end(partition)

    def _take(self) -> Generator[Step | None, None, bool]:
        """Yield the steps of all messages that are next in order; returns whether there was such a message."""
        has_taken = False
        while (message := self._merge.take(wait=self._is_strict)) is not None:
            has_taken = True
            yield from self._learned(message)
        return has_taken

    def _learned(self, message: Message) -> Iterator[Step]:
        if not self._step_source.has_more:
            self._step_begin_s = self._clock.monotonic_s()
        before = self._merge.reached
        self._merge.consume(message)
        for step in self._step_source.add(message, before, self._merge.reached):
            self._step_begin_s = self._clock.monotonic_s()
            yield step

    def _drain(self) -> Iterator[Step]:
        """Yield the steps of messages that wait for silent partitions, then the rows that fill no step."""
        while (message := self._merge.take(wait=False)) is not None:
            yield from self._learned(message)
        if self._step_source.has_more:
            yield self._flush()

    def _flush(self) -> Step:
        return self._step_source.flush(self._merge.reached)

    def _has_waited(self) -> bool:
        """Whether a step that is not full has waited long enough. In strict order only a step without rows may end."""
        if not self._step_source.has_more or (self._is_strict and self._step_source.has_rows):
            return False
        return self._clock.monotonic_s() - self._step_begin_s >= self._settings.step_wait_s

    def _is_idle(self) -> bool:
        idle_s = self._until.idle_s
        return idle_s is not None and self._clock.monotonic_s() - self._last_message_s >= idle_s

    def _read(self, wait_s: float) -> bool:
        """Read more; returns whether a message arrived. Over the bound, read only partitions that others wait for."""
        wanted, waiting = self._open, self._merge.waiting
        if self._merge.bytes >= self._settings.read_ahead_bytes:
            wanted = {partition: offset for partition, offset in wanted.items() if not waiting[partition]}
        if not wanted:
            return False
        read = 0
        for records in self._reader.read_many(
            wanted, max_records=_RECORDS, max_bytes=_RECORDS_BYTES, wait_ms=round(wait_s * 1e3)
        ):
            self._next[records.partition] = records.next_offset
            ends = self._until.offsets
            for offset, value in zip(records.offsets.tolist(), records.values, strict=True):
                if value is not None and (ends is None or offset < ends[records.partition]):
                    self._put(records, offset, value)
                    read += 1
        now_s = self._clock.monotonic_s()
        if read:
            self._last_message_s = now_s
        if now_s - self._lag_checked_s >= (_LOOK_S if read or any(self.lag.values()) else _QUIET_LOOK_S):
            self._lag_checked_s = now_s
            self.lag = {
                partition: max(0, self._reader.end(partition) - offset) for partition, offset in self._next.items()
            }
        return read > 0

    def _put(self, records: Records, offset: int, value: bytes) -> None:
        partition = records.partition
        try:
            batch = self._codec.decode(value)
            self._check_watermark(batch.header.watermark_ms)
        except (BadRecord, Oversize) as error:
            where = f"partition {partition}, offset {offset}"
            self.bad += 1
            self._keep_aside(f"message-{partition}-{offset}.avro", value)
            if self.bad > self._settings.bad_messages_max:
                message = f"{where} of the samples cannot be read: {error.message}"
                help = "raise trainer.bad_messages_max to skip such messages; they are counted and put into quarantine"
                raise BadRecord(message, help=help) from error
            _LOG.error("%s of the samples is skipped and put into quarantine: %s", where, error.message)
            return
        self._merge.put(Message(partition, offset, len(value), batch, records.leader_epoch_at(offset)))

    def _check_watermark(self, watermark_ms: int) -> None:
        """Refuse a watermark that no ingest has: it would make all other samples old, and expire rows."""
        ahead_ms = watermark_ms - self._clock.wall_ms()
        if self._ahead_ms_max is not None and ahead_ms > self._ahead_ms_max:
            message = f"its watermark is {ahead_ms / 1000:.0f} s ahead of the wall clock"
            raise BadRecord(message, help="check the clock of this machine, and who writes to the samples topic")


def beginning_of(topic: Topic) -> Reached:
    """Return the position at which a topic begins."""
    with topic.reader() as reader:
        offsets = tuple(reader.earliest(partition) for partition in range(topic.partitions))
    return Reached(offsets, (None,) * topic.partitions)


def skip_lost(topic: Topic, reached: Reached) -> tuple[Reached, dict[int, tuple[int, int]]]:
    """Move partitions whose next message is gone to their earliest one.

    Also returns, by partition, the lost offset and the one to continue at.
    """
    with topic.reader() as reader:
        lost = {
            position.partition: (position.offset, reader.earliest(position.partition))
            for position in _positions(topic, reached)
            if _is_lost(reader, position)
        }
    offsets, epochs = list(reached.offsets), list(reached.leader_epochs)
    for partition, (gone, earliest) in lost.items():
        _LOG.warning("partition %d of the samples continues at offset %d: %d is gone", partition, earliest, gone)
        offsets[partition] = earliest
        if epochs:
            epochs[partition] = -1
    return replace(reached, offsets=tuple(offsets), leader_epochs=tuple(epochs)), lost


def _positions(topic: Topic, reached: Reached) -> list[Position]:
    epochs = reached.leader_epochs or (-1,) * len(reached.offsets)
    offsets = enumerate(zip(reached.offsets, epochs, strict=True))
    return [Position(topic.topic_id, partition, offset, epoch) for partition, (offset, epoch) in offsets]


def _is_lost(reader: Reader, position: Position) -> bool:
    try:
        reader.check(position)
    except PositionLost:
        return True
    return False


def quiet_s_max(topic: Topic) -> float:
    """How long positions may advance without a learned row before a version records them, given the retention."""
    try:
        retention_ms = topic.settings().retention_ms
    except TopicError as error:
        _LOG.warning("the retention of %s is unknown: %s", topic.url, error.message)
        return QUIET_S_MAX
    return QUIET_S_MAX if retention_ms < 0 else min(QUIET_S_MAX, retention_ms / 1e3 * _QUIET_SHARE)
