"""SampleSink: the output of joins, as messages of the samples topic, interactions and dead letters, acknowledged.

It does not know how features and labels are read: a maker does.
"""

from __future__ import annotations

from contextlib import closing
from operator import itemgetter

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.ingest.join.columns import Joined
from streamlearn.ingest.join.meters import observe_emitted
from streamlearn.ingest.output.interaction_sink import InteractionSink
from streamlearn.ingest.output.letter_box import LetterBox
from streamlearn.ingest.output.progress_keeper import partitions_of
from streamlearn.ingest.output.sample_maker import SampleMaker
from streamlearn.ingest.output.sample_sender import Courier
from streamlearn.ingest.output.sink_counts import count_samples
from streamlearn.ingest.reading.plan import ReadPlan
from streamlearn.samples import SampleCodec

__all__ = ["SampleSink", "write_watermark"]


class SampleSink:
    """Writes one instance's samples.

    Guaranteed: everything given is acknowledged when `flush` returns, the samples of a lot in their order and in one
    partition. `give` and `flush` raise `NotDelivered` if output cannot be written, for instance because a broker stays
    unreachable for `topics.delivery_timeout_s`; no progress was reported then. Not guaranteed: that a message comes
    once. Not for two threads at once.
    """

    def __init__(
        self,
        folder: AppFolder,
        plan: ReadPlan,
        maker: SampleMaker,
        *,
        interactions: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._plan, self._maker, self._clock = plan, maker, clock
        self._codec = SampleCodec(folder.app, folder.settings.samples)
        settings = folder.writer_settings
        self._letters = LetterBox(folder, clock=clock)
        self._topic = folder.open_topic("samples")
        self._interactions = InteractionSink(folder) if interactions and folder.app.features.entities else None
        self._bytes_max = settings.buffer_bytes_max
        self._courier = Courier(self._topic.writer(settings), self._bytes_max)
        self._waiting: list[tuple[int, int, bytes]] = []  # the time up to which its lot is, its partition, a message
        self._waiting_bytes, self._reached_ms = 0, dict[int, int]()
        self._partitions: set[int] = set()
        self._settled_ms: list[int] = []

    def give(self, lot: int, joined: Joined, watermark_ms: int) -> None:
        """Take a join's output; `flush` writes it at the latest."""
        if len(joined.letters):
            self._letters.give(self._maker.letters_of(joined.letters))
        if not len(joined.rows) and not len(joined.interactions):
            return
        partition = partitions_of(lot, self._plan.lineage.lots_count, self._topic.partitions)[0]
        for batch in self._maker.make(lot, joined, watermark_ms):
            message, watermark_ms = self._codec.encode(batch), batch.header.watermark_ms
            self._reached_ms[lot] = max(watermark_ms, self._reached_ms.get(lot, watermark_ms))
            self._waiting.append((self._reached_ms[lot], partition, message))
            self._waiting_bytes += len(message)
            count_samples(len(batch))
            self._partitions.add(partition)
            self._settled_ms.append(int(batch.settle_time_ms.min()))
            if self._waiting_bytes >= self._bytes_max:
                self._send()
        if self._interactions is not None:
            self._interactions.give(self._maker.interactions())
        self._letters.give(self._maker.set_aside())

    def flush(self) -> set[int]:
        """Wait until everything given is acknowledged; return the partitions that had messages since the last flush."""
        self._letters.flush()
        if self._interactions is not None:
            self._interactions.flush()
        self._send()
        self._courier.flush()
        if self._plan.rules.time == "wall" and self._settled_ms:
            late_by_ms = self._clock.wall_ms() - self._plan.rules.out_of_orderness_ms
            observe_emitted(late_by_ms - settled_ms for settled_ms in self._settled_ms)
        partitions, self._partitions = self._partitions, set()
        self._settled_ms = []
        return partitions

    def _send(self) -> None:
        """Send what waits in the order of time, since several lots of a history share a partition."""
        waiting, self._waiting, self._waiting_bytes, self._reached_ms = self._waiting, [], 0, {}
        for _, partition, message in sorted(waiting, key=itemgetter(0)):
            self._courier.send(partition, message)

    def close(self) -> None:
        """Close topics; output that was not flushed belongs to failed work."""
        try:
            self._letters.close()
        finally:
            if self._interactions is not None:
                self._interactions.close()
            self._courier.close()
            self._maker.close()
            self._topic.close()


def write_watermark(folder: AppFolder, plan: ReadPlan, watermark_ms: int) -> None:
    """Write every lot's watermark to each of its partitions, so that consumers that merge them wait for none."""
    lots_count, codec = plan.lineage.lots_count, SampleCodec(folder.app, folder.settings.samples)
    maker = SampleMaker(folder, plan.lineage, plan.run)
    with closing(maker), folder.open_topic("samples") as topic, topic.writer(folder.writer_settings) as writer:
        for lot in range(lots_count):
            message = codec.encode(maker.empty(lot, watermark_ms))
            for partition in partitions_of(lot, lots_count, topic.partitions):
                writer.send(partition, message)
        writer.flush()
