"""The source: Beam's view of reading. A split is some partitions of both event topics, each read by one `PairReader`.

It decides nothing: `PairReader` reads, and this says so in Beam's words. Finalizing commits nothing, since on some
runners it comes long before anything was joined: a run goes on from what was acknowledged.
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
from streamlearn.ingest.beam.handover import Handing, open_tickets
from streamlearn.ingest.beam.read_source import ReadSource
from streamlearn.ingest.beam.state_cache import use_byte_sizes
from streamlearn.ingest.reading.blob import Blob, decode_blob, encode_blob
from streamlearn.ingest.reading.mark import PairMark, decode_marks, encode_marks
from streamlearn.ingest.reading.pair import PairReader
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.ingest.reading.watermark import AFTER_ALL, BEFORE_ALL

__all__ = ["EventMark", "EventMarkCoder", "EventReader", "EventSource", "blob_handing", "read_events", "timestamp_of"]


# An end that is never said is a time so long before the last there is: after all that is due, before windows end.
_SHORT_OF_END_S = 2 * 86_400


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
    """The `PairMark`s of a split as Beam carries them.

    Attributes:
        marks: Where the reader stood, in the order of its partitions.
    """

    marks: tuple[PairMark, ...]

    def finalize_checkpoint(self) -> None:
        """Nothing: what counts is what was acknowledged, and the sink says so."""


class EventMarkCoder(coders.Coder):
    """Marks as bytes: equal marks have equal bytes, by which Beam finds a reader again."""

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
    """Reads one split: its partitions take turns.

    Args:
        readers: What reads each of them.
        handing: How blobs are given.
        endless: Whether it never says that it has ended.
    """

    def __init__(self, readers: Sequence[PairReader], handing: Handing[Blob], *, endless: bool = False) -> None:
        self._readers, self._handing = tuple(readers), handing
        self._latest = MAX_TIMESTAMP - _SHORT_OF_END_S if endless else MAX_TIMESTAMP
        self._next = 0
        self._given, self._time_ms = b"", BEFORE_ALL

    def start(self) -> bool:
        """The first element, when there is one."""
        return self.advance()

    def advance(self) -> bool:
        """The next element, when there is one; it never waits for a topic."""
        for _ in self._readers:
            reader = self._readers[self._next]
            self._next = (self._next + 1) % len(self._readers)
            taken = reader.take()
            if taken is not None:
                self._given, self._time_ms = self._handing.give(taken.blob), taken.time_ms
                return True
        return False

    def get_current(self) -> bytes:
        """The blob, as it is handed on."""
        return self._given

    def get_current_timestamp(self) -> Timestamp:
        """The watermark of its partition before it, so that it is never late."""
        return timestamp_of(self._time_ms)

    def get_watermark(self) -> Timestamp:
        """Up to which event time everything was given."""
        return min(self._latest, timestamp_of(min(reader.watermark_ms for reader in self._readers)))

    def get_checkpoint_mark(self) -> EventMark:
        """Where to go on."""
        return EventMark(tuple(reader.mark() for reader in self._readers))

    def close(self) -> None:
        """Let go of topics and threads."""
        with ExitStack() as stack:
            for reader in self._readers:
                stack.callback(reader.close)
                reader.end()


@dataclass(frozen=True)
class EventSource(UnboundedSource):
    """Both event topics.

    Attributes:
        plan: What is read.
        partitions: Of a split; none before it is split: all.
        whole: Whether it is one split. Prism takes for the time of all splits that of those whose bundle ended last,
            so that what others read comes late; and here all of them are read by one process anyway.
        endless: Whether a split never says that it has ended. Flink now and then does not hand on the time of a split's
            end; one that goes on is looked at again, and its time with it. The run cancels the job.
        in_process: Whether blobs stay in the process, and tickets are given for them.
    """

    plan: ReadPlan
    partitions: tuple[int, ...] = ()
    whole: bool = False
    endless: bool = False
    in_process: bool = False

    def split(self, desired_num_splits: int, options: Any = None) -> list[EventSource]:
        """One for each partition, or one in all, whatever number is desired."""
        if self.partitions:
            return [self]
        every = range(self.plan.partitions)
        shares = [tuple(every)] if self.whole else [(partition,) for partition in every]
        return [replace(self, partitions=share) for share in shares]

    def create_reader(self, options: Any, checkpoint_mark: CheckpointMark | None) -> EventReader:
        """A reader, from a mark or from where the run begins.

        Raises:
            TopicReplaced: A topic is another one than the run, or the mark, is of.
            PositionLost: What is wanted was deleted.
        """
        use_byte_sizes()
        partitions = self.partitions or tuple(range(self.plan.partitions))
        marks: Sequence[PairMark | None] = [None] * len(partitions)
        if checkpoint_mark is not None:
            assert isinstance(checkpoint_mark, EventMark)
            marks = checkpoint_mark.marks
        with ExitStack() as stack:
            readers = []
            for partition, mark in zip(partitions, marks, strict=True):
                readers.append(PairReader(self.plan, partition, mark))
                stack.callback(readers[-1].close)
            stack.pop_all()
        return EventReader(readers, blob_handing(self.plan, in_process=self.in_process), endless=self.endless)

    def renewed(self, kept: EventSource) -> EventSource:
        """A split that a runner has kept, to be read by this run: by an earlier one where a job began at its savepoint.

        Args:
            kept: The split.

        Raises:
            ConfigError: The savepoint is of other topics, lots, features or windows.
        """
        if kept.plan.run == self.plan.run:
            return kept
        if kept.plan.lineage != self.plan.lineage:
            message = f"the savepoint is from run {kept.plan.run}, which had other topics, lots, features or windows"
            raise ConfigError(message, help="start without the savepoint: a run continues from what was acknowledged")
        return replace(kept, plan=self.plan)

    def get_checkpoint_mark_coder(self) -> EventMarkCoder:
        """See Beam."""
        return EventMarkCoder()

    def default_output_coder(self) -> coders.BytesCoder:
        """Blobs are bytes."""
        return coders.BytesCoder()


def blob_handing(plan: ReadPlan, *, in_process: bool) -> Handing[Blob]:
    """How blobs are handed on: as bytes, or by tickets."""
    return Handing(encode_blob, decode_blob, open_tickets(plan.progress_url, plan.run) if in_process else None)


def read_events(plan: ReadPlan, *, whole: bool, endless: bool = False, in_process: bool = False) -> ReadSource:
    """The step that reads; what it gives are blobs, as bytes or as tickets for them.

    Args:
        plan: What is read.
        whole: Whether all partitions are one split, as they are to be on Prism.
        endless: Whether no split says that it has ended, as on Flink.
        in_process: Whether blobs stay in the process; for runners that run all in one, and give no element twice.
    """
    limits, source = plan.limits, EventSource(plan, whole=whole, endless=endless, in_process=in_process)
    return ReadSource(
        source,
        source.renewed,
        poll_s=limits.poll_s,
        elements_max=limits.bundle_blobs_max,
        seconds_max=limits.bundle_s_max,
    )
