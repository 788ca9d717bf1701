"""EventSource: Beam's view of reading. A split has some partitions of both event topics, a `PairReader` for each.

`PairReader` decides; this module translates. Finalizing commits nothing, since some runners finalize long before events
are joined: a run continues from acknowledged progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from apache_beam import coders
from apache_beam.io.unbounded_source import CheckpointMark, UnboundedReader, UnboundedSource
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp

from streamlearn.errors import ConfigError
from streamlearn.ingest.beam.handover import Handover, open_tickets
from streamlearn.ingest.beam.read_source import ReadSource
from streamlearn.ingest.beam.state_cache import use_byte_sizes
from streamlearn.ingest.reading.blob import Blob, decode_blob, encode_blob
from streamlearn.ingest.reading.mark import PairMark, decode_marks, encode_marks
from streamlearn.ingest.reading.pair import PairReader
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.ingest.reading.watermark import AFTER_ALL, BEFORE_ALL

__all__ = ["EventMark", "EventMarkCoder", "EventReader", "EventSource", "blob_handing", "read_events", "timestamp_of"]

# The latest time of an endless split, before the end of time: after everything that is due, before windows end.
_SHORT_OF_END_S = 2 * 86_400


def timestamp_of(time_ms: int) -> Timestamp:
    """Return an event time as Beam's timestamp.

    Examples:
        >>> timestamp_of(1_500)
        Timestamp(1.500000)
    """
    if time_ms <= BEFORE_ALL:
        return MIN_TIMESTAMP
    return MAX_TIMESTAMP if time_ms >= AFTER_ALL else Timestamp(micros=time_ms * 1_000)


@dataclass(frozen=True)
class EventMark(CheckpointMark):
    """The marks of a split's readers, in the order of its partitions."""

    marks: tuple[PairMark, ...]

    def finalize_checkpoint(self) -> None:
        """Do nothing: acknowledged progress counts, and the sink writes it."""


class EventMarkCoder(coders.Coder):
    """Encodes marks. Equal marks have equal bytes, by which Beam finds a reader again."""

    def encode(self, value: EventMark) -> bytes:
        """See Beam."""
        return encode_marks(value.marks)

    def decode(self, encoded: bytes) -> EventMark:
        """See Beam."""
        return EventMark(decode_marks(encoded))

    def is_deterministic(self) -> bool:
        """See Beam."""
        return True


class EventReader(UnboundedReader):
    """Reads the partitions of one split in turn. If `endless`, its watermark never reaches the end of time."""

    def __init__(self, readers: Sequence[PairReader], handing: Handover[Blob], *, endless: bool = False) -> None:
        self._readers, self._handing = tuple(readers), handing
        self._latest = MAX_TIMESTAMP - _SHORT_OF_END_S if endless else MAX_TIMESTAMP
        self._next = 0
        self._current, self._time_ms = b"", BEFORE_ALL

    def start(self) -> bool:
        """Take the first element; whether there is one."""
        return self.advance()

    def advance(self) -> bool:
        """Take the next element; whether there is one. Never waits for a topic."""
        for _ in self._readers:
            reader = self._readers[self._next]
            self._next = (self._next + 1) % len(self._readers)
            taken = reader.take()
            if taken is not None:
                self._current, self._time_ms = self._handing.give(taken.blob), taken.time_ms
                return True
        return False

    def get_current(self) -> bytes:
        """Return the blob, as bytes or as a ticket."""
        return self._current

    def get_current_timestamp(self) -> Timestamp:
        """Return the watermark of the blob's partition before it, so that it is never late."""
        return timestamp_of(self._time_ms)

    def get_watermark(self) -> Timestamp:
        """Return the event time up to which everything was emitted."""
        return min(self._latest, timestamp_of(min(reader.watermark_ms for reader in self._readers)))

    def get_checkpoint_mark(self) -> EventMark:
        """Return the position to continue from."""
        return EventMark(tuple(reader.mark() for reader in self._readers))

    def close(self) -> None:
        """Close topics and threads."""
        with ExitStack() as stack:
            for reader in self._readers:
                stack.callback(reader.close)
                reader.end()


@dataclass(frozen=True)
class EventSource(UnboundedSource):
    """Both event topics.

    Attributes:
        partitions: Of a split; empty before the split: all.
        whole: Whether there is one split only. Prism takes as the time of all splits that of those whose bundle ended
            last, so elements of the others would be late; and there one process reads all of them anyway.
        endless: Whether a split never ends. Flink sometimes does not pass on the time of a split's end; it keeps
            polling an endless one, and passes on its time. The run cancels the job.
        in_process: Whether blobs stay in the process, and tickets go through the runner.
    """

    plan: ReadPlan
    partitions: tuple[int, ...] = ()
    whole: bool = False
    endless: bool = False
    in_process: bool = False

    def split(self, desired_num_splits: int, options: Any = None) -> list[EventSource]:
        """Return a split for each partition, or a single one; the desired number has no effect."""
        if self.partitions:
            return [self]
        every = range(self.plan.partitions)
        shares = [tuple(every)] if self.whole else [(partition,) for partition in every]
        return [replace(self, partitions=share) for share in shares]

    def create_reader(self, options: Any, checkpoint_mark: CheckpointMark | None) -> EventReader:
        """Return a reader, from a mark or from where the run begins.

        Raises:
            TopicReplaced: A topic is not the one that the run, or the mark, began with.
            PositionLost: Records that are needed were deleted.
        """
        use_byte_sizes()
        partitions = self.partitions or tuple(range(self.plan.partitions))
        assert checkpoint_mark is None or isinstance(checkpoint_mark, EventMark)
        marks = checkpoint_mark.marks if checkpoint_mark else (None,) * len(partitions)
        with ExitStack() as stack:
            readers = []
            for partition, mark in zip(partitions, marks, strict=True):
                readers.append(PairReader(self.plan, partition, mark))
                stack.callback(readers[-1].close)
            stack.pop_all()
        return EventReader(readers, blob_handing(self.plan, in_process=self.in_process), endless=self.endless)

    def renewed(self, kept: EventSource) -> EventSource:
        """Return a split that a runner kept, with this run's plan: a job may begin at an earlier run's savepoint.

        Raises `ConfigError` if the savepoint has other topics, lots, features or windows.
        """
        if kept.plan.run == self.plan.run:
            return kept
        if kept.plan.lineage != self.plan.lineage:
            message = f"the savepoint is from run {kept.plan.run}, which had other topics, lots, features or windows"
            raise ConfigError(message, help="start without the savepoint: the run continues from acknowledged progress")
        return replace(kept, plan=self.plan)

    def get_checkpoint_mark_coder(self) -> EventMarkCoder:
        """See Beam."""
        return EventMarkCoder()

    def default_output_coder(self) -> coders.BytesCoder:
        """Blobs are bytes."""
        return coders.BytesCoder()


def blob_handing(plan: ReadPlan, *, in_process: bool) -> Handover[Blob]:
    """Return how blobs are handed on: as bytes, or by tickets."""
    return Handover(encode_blob, decode_blob, open_tickets(plan.progress_url, plan.run) if in_process else None)


def read_events(plan: ReadPlan, *, whole: bool, endless: bool = False, in_process: bool = False) -> ReadSource:
    """Return the step that reads; its elements are blobs, as bytes or as tickets. See `EventSource` for the options."""
    source = EventSource(plan, whole=whole, endless=endless, in_process=in_process)
    return ReadSource(source, source.renewed, plan.settings)
