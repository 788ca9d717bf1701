"""ProgressLog: the progress topic, read on as it grows and written by one run at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import ConfigError, IngestOver, StreamlearnError
from streamlearn.ingest.output.progress import (
    Lineage,
    LotProgress,
    Standing,
    claim_record,
    dead_record,
    encode_progress,
    end_record,
    fold,
    stop_record,
)
from streamlearn.topics import AccessSettings, Topic, open_topic

__all__ = ["DeadShare", "ProgressLog"]

_READ_WAIT_MS = 50
_SHARE_STEP = 0.001


class ProgressLog:
    """What is known of every lot, and this run's part of it. For one thread at a time.

    Guaranteed: a lot's watermark never goes back, also where a run reads again what another has acknowledged; of two
    runs that begin at once one has the higher number, and the other hears of it before its next write. Not
    guaranteed: that a run which was taken over writes nothing more at all: what it writes is true, and left out by
    whoever reads.
    The classic mistake is to write before the samples are acknowledged.

    Args:
        topic: The progress topic; closed with the log.
        clock: When records are written.

    Raises:
        ConfigError: The topic has several partitions.
    """

    def __init__(self, topic: Topic, *, clock: Clock = SYSTEM_CLOCK) -> None:
        if topic.partitions != 1:
            topic.close()
            message = f"{topic.url} has {topic.partitions} partitions"
            raise ConfigError(
                message, help="create the progress topic with one partition: its order decides which run is newest"
            )
        self._topic, self._clock = topic, clock
        self._reader = topic.reader()
        self._writer = topic.writer()
        self._offset: int | None = None
        self._standing = Standing()

    @classmethod
    def open(cls, url: str, access: AccessSettings, *, clock: Clock = SYSTEM_CLOCK) -> Self:
        """The log at an address."""
        return cls(open_topic(url, access, clock=clock), clock=clock)

    def standing(self) -> Standing:
        """What the topic says now: everything that was acknowledged before the call is in it.

        Raises:
            BadRecord: A record is no progress.
            TopicError: The topic cannot be read.
        """
        end = self._reader.end(0)
        if self._offset is None:
            self._offset = self._reader.earliest(0)
        while self._offset < end:
            records = self._reader.read(0, self._offset, wait_ms=_READ_WAIT_MS)
            self._standing = fold(self._standing, records)
            self._offset = records.next_offset
        return self._standing

    def begin(self, lineage: Lineage) -> int:
        """Begin a run, and end whichever there is: its number, above all others.

        Raises:
            NotDelivered: The topic did not take it.
        """
        key, value = claim_record(lineage, self._clock.wall_ms())
        offsets = self._writer.append(0, [value], [key])
        return int(offsets[0]) + 1

    def stop(self, run: int, lineage: Lineage) -> None:
        """Tell a run to stop reading, wherever its readers are: they hear of it here.

        Raises:
            NotDelivered: The topic did not take it.
        """
        key, value = stop_record(run, lineage, self._clock.wall_ms())
        self._writer.append(0, [value], [key])

    def write(self, run: int, lineage: Lineage, reached_ms: Mapping[int, int], dead_share: float = 0.0) -> None:
        """Say how far lots are, after their samples were acknowledged.

        Args:
            run: The run that says so.
            lineage: What its samples are joined by.
            reached_ms: For each lot the event time before which every sample due is acknowledged.
            dead_share: The share of its recent events that became dead letters; written where it has changed.

        Raises:
            IngestOver: A newer run has begun.
            NotDelivered: The topic did not take it.
        """
        standing = self.check(run)
        wall_ms, records = self._clock.wall_ms(), []
        for lot, reached in reached_ms.items():
            known = standing.lots.get(lot)
            watermark_ms = reached if known is None else max(reached, known.watermark_ms)
            records.append(encode_progress(LotProgress(lot, run, watermark_ms, reached, lineage, wall_ms)))
        if abs(dead_share - standing.dead_share) >= _SHARE_STEP:
            records.append(dead_record(run, dead_share, lineage, wall_ms))
        if records:
            self._writer.append(0, [value for _, value in records], [key for key, _ in records])

    def end(self, run: int, lineage: Lineage, lots: Iterable[int]) -> None:
        """Say that nothing more follows of lots, after all that was due in them was acknowledged.

        Raises:
            IngestOver: A newer run has begun.
            NotDelivered: The topic did not take it.
        """
        self.check(run)
        records = [end_record(run, lot, lineage, self._clock.wall_ms()) for lot in lots]
        self._writer.append(0, [value for _, value in records], [key for key, _ in records])

    def check(self, run: int) -> Standing:
        """What the topic says, as long as a run is the newest.

        Raises:
            IngestOver: A newer one has begun.
        """
        standing = self.standing()
        if standing.run > run:
            message = f"{self._topic.url}: run {standing.run} of ingest has taken over from run {run}"
            raise IngestOver(
                message, help="only the newest run continues; end this one, or find out who started the other"
            )
        return standing

    def close(self) -> None:
        """Let go of the topic."""
        try:
            self._writer.close()
        finally:
            self._reader.close()
            self._topic.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class DeadShare:
    """The share of the newest run's recent events that became dead letters, as it last said; for one thread.

    It reads on with each call, and is 0 where the progress topic cannot be read.

    Args:
        folder: The application.
    """

    def __init__(self, folder: AppFolder) -> None:
        self._folder, self._log = folder, ExitStack()
        self._open: ProgressLog | None = None

    def __call__(self) -> float:
        """The share, now."""
        try:
            if self._open is None:
                log = ProgressLog.open(self._folder.topic_url("progress"), self._folder.access)
                self._open = self._log.enter_context(log)
            return self._open.standing().dead_share
        except StreamlearnError:
            self.close()
            return 0.0

    def close(self) -> None:
        """Let go of the topic."""
        self._open = None
        self._log.close()
