"""ProgressLog: the progress topic, read as it grows and written by one run at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import ConfigError, IngestOver, StreamlearnError
from streamlearn.ingest.output.progress import (
    SHARE_PARTS,
    ControlLot,
    Lineage,
    LotProgress,
    Standing,
    encode_progress,
    fold,
)
from streamlearn.topics import AccessSettings, Topic, WriterSettings, open_topic

__all__ = ["DeadShare", "ProgressLog"]

_READ_WAIT_MS = 50
_SHARE_STEP = 0.001


class ProgressLog:
    """The progress of every lot, and this run's part of it. For one thread at a time. Closing it closes the topic.

    Guaranteed: a lot's watermark never goes back, even if a run reads again what another has acknowledged; of two runs
    that begin at once one has the higher number, and the other sees that before its next write. Not guaranteed: that a
    run which was taken over writes nothing more: its records are true, and readers ignore them. The classic mistake is
    to write before the samples are acknowledged.

    `check`, `write` and `end` raise `IngestOver` once a newer run has begun. Every write raises `NotDelivered` if the
    topic does not accept it. A topic with several partitions raises `ConfigError`.
    """

    def __init__(self, topic: Topic, writing: WriterSettings | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        if topic.partitions != 1:
            topic.close()
            message = f"{topic.url} has {topic.partitions} partitions"
            hint = "create the progress topic with one partition: its order decides which run is newest"
            raise ConfigError(message, help=hint)
        self._topic, self._clock = topic, clock
        self._reader = topic.reader()
        self._writer = topic.writer(writing)
        self._offset: int | None = None
        self._standing = Standing()

    @classmethod
    def open(
        cls, url: str, access: AccessSettings, writing: WriterSettings | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> Self:
        """Open the log at a URL."""
        return cls(open_topic(url, access, clock=clock), writing, clock=clock)

    def standing(self) -> Standing:
        """Return the current content: everything that was acknowledged before the call.

        Raises `BadRecord` if a record is not progress, `TopicError` if the topic cannot be read.
        """
        end = self._reader.end(0)
        if self._offset is None:
            self._offset = self._reader.earliest(0)
        while self._offset < end:
            records = self._reader.read(0, self._offset, wait_ms=_READ_WAIT_MS)
            self._standing = fold(self._standing, records)
            self._offset = records.next_offset
        return self._standing

    def begin(self, lineage: Lineage, window_ms: int = 0, inherited_ms: int = 0) -> int:
        """Begin a run, which ends the run before; return its number, the highest so far. See `Standing` for windows."""
        times = (window_ms, inherited_ms)
        return self._append([LotProgress(ControlLot.CLAIM, 0, *times, lineage, self._clock.wall_ms())]) + 1

    def stop(self, run: int, lineage: Lineage) -> None:
        """Tell a run to stop reading; its readers follow this topic, wherever they are."""
        self._append([LotProgress(ControlLot.STOP, run, 0, 0, lineage, self._clock.wall_ms())])

    def write(self, run: int, lineage: Lineage, reached_ms: Mapping[int, int], dead_share: float = 0.0) -> None:
        """Write the time up to which each lot's samples are acknowledged; and a changed share of dead letters."""
        standing = self.check(run)
        wall_ms, records = self._clock.wall_ms(), []
        for lot, reached in reached_ms.items():
            known = standing.lots.get(lot)
            watermark_ms = reached if known is None else max(reached, known.watermark_ms)
            records.append(LotProgress(lot, run, watermark_ms, reached, lineage, wall_ms))
        if abs(dead_share - standing.dead_share) >= _SHARE_STEP:
            records.append(LotProgress(ControlLot.DEAD, run, round(dead_share * SHARE_PARTS), 0, lineage, wall_ms))
        if records:
            self._append(records)

    def note_read(self, run: int, lineage: Lineage, read: Mapping[int, tuple[int, int]]) -> None:
        """Write up to which offset topics were read, and the latest timestamp before it; see `Standing.read`.

        Without later timestamps a lower offset says less. With them the topic has lost its end and was written again.
        """
        known, wall_ms = self.check(run).read, self._clock.wall_ms()
        news = []
        for place, (offset, latest_ms) in read.items():
            known_offset, known_ms = known.get(place, (-1, 0))
            if offset > known_offset or (offset < known_offset and latest_ms > known_ms):
                news.append(LotProgress(ControlLot.READ - place, run, latest_ms, offset, lineage, wall_ms))
        if news:
            self._append(news)

    def end(self, run: int, lineage: Lineage, lots: Iterable[int]) -> None:
        """Mark lots as finished, after everything due in them was acknowledged."""
        self.check(run)
        self._append([LotProgress(ControlLot.END - lot, run, 0, 0, lineage, self._clock.wall_ms()) for lot in lots])

    def check(self, run: int) -> Standing:
        """Return the current content while `run` is the newest run."""
        standing = self.standing()
        if standing.run > run:
            message = f"{self._topic.url}: run {standing.run} of ingest has taken over from run {run}"
            hint = "only the newest run continues; end this one, or find out who started the other"
            raise IngestOver(message, help=hint)
        return standing

    def close(self) -> None:
        """Close the topic."""
        try:
            self._writer.close()
        finally:
            self._reader.close()
            self._topic.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, records: Sequence[LotProgress]) -> int:
        """Append records, and return the offset of the first."""
        encoded = [encode_progress(record) for record in records]
        return int(self._writer.append(0, [value for _, value in encoded], [key for key, _ in encoded])[0])


class DeadShare:
    """The share of the newest run's recent events that became dead letters; for one thread.

    Each call reads on. The share is 0 while the progress topic cannot be read.
    """

    def __init__(self, folder: AppFolder) -> None:
        self._folder = folder
        self._log: ProgressLog | None = None

    def __call__(self) -> float:
        """Return the current share."""
        try:
            if self._log is None:
                self._log = ProgressLog.open(self._folder.topic_url("progress"), self._folder.access)
            return self._log.standing().dead_share
        except StreamlearnError:
            self.close()
            return 0.0

    def close(self) -> None:
        """Close the topic."""
        log, self._log = self._log, None
        if log is not None:
            log.close()
