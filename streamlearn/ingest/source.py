"""The source: Beam's view of reading, one split for each partition index of both event topics.

It decides nothing: `PairReader` reads, and this says so in Beam's words. Finalizing commits nothing, since on some
runners it comes long before anything was joined: a run goes on from what was acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from apache_beam import coders
from apache_beam.io.unbounded_source import CheckpointMark, ReadFromUnboundedSource, UnboundedReader, UnboundedSource
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp

from streamlearn.errors import UsageError
from streamlearn.ingest.mark import PairMark, decode_mark, encode_mark
from streamlearn.ingest.pair import PairReader, Taken
from streamlearn.ingest.plan import ReadPlan
from streamlearn.ingest.statecache import use_byte_sizes
from streamlearn.ingest.watermark import AFTER_ALL, BEFORE_ALL

__all__ = ["EventMark", "EventMarkCoder", "EventReader", "EventSource", "read_events", "timestamp_of"]


def timestamp_of(time_ms: int) -> Timestamp:
    """An event time as Beam has it.

    Examples:
        >>> timestamp_of(1_500)
        Timestamp(1.500000)
    """
    if time_ms <= BEFORE_ALL:
        return MIN_TIMESTAMP
    return MAX_TIMESTAMP if time_ms >= AFTER_ALL else Timestamp(micros=time_ms * 1_000)


@dataclass(frozen=True)
class EventMark(CheckpointMark):
    """A `PairMark` as Beam carries it.

    Attributes:
        mark: Where the reader stood.
    """

    mark: PairMark

    def finalize_checkpoint(self) -> None:
        """Nothing: what counts is what was acknowledged, and the sink says so."""


class EventMarkCoder(coders.Coder):
    """Marks as bytes: equal marks have equal bytes, by which Beam finds a reader again."""

    def encode(self, value: EventMark) -> bytes:
        """See Beam."""
        return encode_mark(value.mark)

    def decode(self, encoded: bytes) -> EventMark:
        """See Beam."""
        return EventMark(decode_mark(encoded))

    def is_deterministic(self) -> bool:
        """See Beam."""
        return True


class EventReader(UnboundedReader):
    """Reads one split.

    Args:
        reader: What reads.
    """

    def __init__(self, reader: PairReader) -> None:
        self._reader = reader
        self._taken: Taken | None = None

    def start(self) -> bool:
        """The first element, when there is one."""
        return self.advance()

    def advance(self) -> bool:
        """The next element, when there is one; it never waits for a topic."""
        self._taken = self._reader.take()
        return self._taken is not None

    def get_current(self) -> bytes:
        """The blob."""
        assert self._taken is not None
        return self._taken.data

    def get_current_timestamp(self) -> Timestamp:
        """The watermark before it, so that it is never late."""
        assert self._taken is not None
        return timestamp_of(self._taken.time_ms)

    def get_watermark(self) -> Timestamp:
        """Up to which event time everything was given."""
        return timestamp_of(self._reader.watermark_ms)

    def get_checkpoint_mark(self) -> EventMark:
        """Where to go on."""
        return EventMark(self._reader.mark())

    def close(self) -> None:
        """Let go of topics and threads."""
        self._reader.close()


@dataclass(frozen=True)
class EventSource(UnboundedSource):
    """Both event topics.

    Attributes:
        plan: What is read.
        partition: Of a split; None before it is split.
    """

    plan: ReadPlan
    partition: int | None = None

    def split(self, desired_num_splits: int, options: Any = None) -> list[EventSource]:
        """One for each partition, whatever number is desired: partition i of both topics is read by one reader."""
        if self.partition is not None:
            return [self]
        return [EventSource(self.plan, partition) for partition in range(self.plan.partitions)]

    def create_reader(self, options: Any, checkpoint_mark: CheckpointMark | None) -> EventReader:
        """A reader, from a mark or from where the run begins.

        Raises:
            TopicReplaced: A topic is another one than the run, or the mark, is of.
            PositionLost: What is wanted was deleted.
        """
        if self.partition is None:
            if self.plan.partitions != 1:
                message = f"a source of {self.plan.partitions} partitions was not split"
                raise UsageError(message, help="use a runner that splits sources, Prism or Flink")
            return EventSource(self.plan, 0).create_reader(options, checkpoint_mark)
        use_byte_sizes()
        assert checkpoint_mark is None or isinstance(checkpoint_mark, EventMark)
        mark = checkpoint_mark.mark if checkpoint_mark is not None else None
        return EventReader(PairReader(self.plan, self.partition, mark))

    def get_checkpoint_mark_coder(self) -> EventMarkCoder:
        """See Beam."""
        return EventMarkCoder()

    def default_output_coder(self) -> coders.BytesCoder:
        """Blobs are bytes."""
        return coders.BytesCoder()


def read_events(plan: ReadPlan) -> ReadFromUnboundedSource:
    """The step that reads; what it gives are blobs, as bytes."""
    limits = plan.limits
    return ReadFromUnboundedSource(
        EventSource(plan),
        poll_interval=limits.poll_s,
        max_records_per_bundle=limits.bundle_blobs_max,
        max_read_time_seconds=limits.bundle_s_max,
    )
