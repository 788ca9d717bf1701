"""SampleSink: what a join gives out, as messages of the samples topic and as dead letters, acknowledged.

It does not know how features and labels are read: a maker does.
"""

from __future__ import annotations

from typing import Protocol

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.events import Failure, Origin
from streamlearn.ingest.join.columns import Joined, Letters
from streamlearn.ingest.join.meters import observe_emitted
from streamlearn.ingest.output.letter_box import LetterBox
from streamlearn.ingest.output.progress_keeper import partitions_of
from streamlearn.ingest.output.sample_sender import Courier
from streamlearn.ingest.output.sink_counts import count_samples
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.samples import SampleBatch, SampleCodec

__all__ = ["MakesSamples", "SampleSink"]


class MakesSamples(Protocol):
    """Reads what impressions hold, and makes samples of them."""

    def make(self, lot: int, joined: Joined, watermark_ms: int) -> list[SampleBatch]:
        """The samples of joined rows, in batches that messages can hold."""
        ...

    def empty(self, lot: int, watermark_ms: int) -> SampleBatch:
        """A batch of no samples, which says how far a lot is."""
        ...

    def letters_of(self, letters: Letters) -> list[tuple[Failure, Origin]]:
        """Events that could not be joined, with where they came from."""
        ...

    def set_aside(self) -> list[tuple[Failure, Origin]]:
        """Rows that became no samples since this was last asked, with where they came from."""
        ...

    def close(self) -> None:
        """Let go of topics."""
        ...


class SampleSink:
    """Writes one instance's samples.

    Guaranteed: what was given is acknowledged when `flush` returns, the samples of a lot in their order and in one
    partition. A broker that is away is waited for as long as `topics.delivery_timeout_s`; then `flush` raises, and
    nothing was said to be done. Not guaranteed: that a message is there once. Not for two threads at once.

    Args:
        folder: The application.
        plan: What the run is.
        maker: Makes samples.
        clock: When a message was acknowledged.
    """

    def __init__(self, folder: AppFolder, plan: ReadPlan, maker: MakesSamples, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._plan, self._maker, self._clock = plan, maker, clock
        self._codec = SampleCodec(folder.app, folder.settings.samples)
        self._letters = LetterBox(folder.topic_url("dead_letters"), folder.access, clock=clock)
        self._topic = folder.open_topic("samples")
        settings = folder.writer_settings
        self._courier = Courier(self._topic.writer(settings), settings.buffer_bytes_max)
        self._spoken: set[int] = set()
        self._settled_ms: list[int] = []

    def give(self, lot: int, joined: Joined, watermark_ms: int) -> None:
        """Take what a join gave out; it is written by `flush` at the latest.

        Raises:
            NotDelivered: What was given before could not be written.
        """
        if len(joined.letters):
            self._letters.give(self._maker.letters_of(joined.letters))
        if not len(joined.rows):
            return
        partition = partitions_of(lot, self._plan.lineage.lots_count, self._topic.partitions)[0]
        for batch in self._maker.make(lot, joined, watermark_ms):
            self._courier.send(partition, self._codec.encode(batch))
            count_samples(len(batch))
            self._spoken.add(partition)
            self._settled_ms.append(int(batch.settle_time_ms.min()))
        self._letters.give(self._maker.set_aside())

    def flush(self) -> set[int]:
        """Wait until all that was given is acknowledged.

        Returns:
            Partitions that had messages since the last flush.

        Raises:
            NotDelivered: Some of it is not.
        """
        self._letters.flush()
        self._courier.flush()
        if self._plan.rules.time == "wall" and self._settled_ms:
            late_by_ms = self._clock.wall_ms() - self._plan.rules.out_of_orderness_ms
            observe_emitted(late_by_ms - settled_ms for settled_ms in self._settled_ms)
        spoken, self._spoken = self._spoken, set()
        self._settled_ms = []
        return spoken

    def close(self) -> None:
        """Let go of topics; what was not flushed belongs to work that failed."""
        try:
            self._letters.close()
        finally:
            self._courier.close()
            self._maker.close()
            self._topic.close()
