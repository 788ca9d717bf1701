"""LoopRows: the rows of a samples topic, with the times at which each was in a version and in an answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.loops.loop_answers import VersionChange
from streamlearn.apps import AppFolder
from streamlearn.samples import SampleCodec
from streamlearn.versions import open_store
from streamlearn.versions.format.log import Log
from streamlearn.versions.format.manifest import Manifest

__all__ = ["Float64s", "Learned", "LoopRows", "first_written", "known_ms", "learned_of", "read_rows"]

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]
_RECORDS, _BYTES, _WAIT_MS = 10_000, 64 << 20, 20


@dataclass(frozen=True, eq=False)
class LoopRows:
    """Rows in the order of the topic.

    Attributes:
        partition: int64[n].
        offset: int64[n]. Offset of the message.
        sent_ms: int64[n]. Wall time at which the producer got the impression.
        due_ms: int64[n]. End of the wait, after which the row can be learned.
        written_ms: int64[n]. Wall time at which the message was written.
    """

    partition: Int64s
    offset: Int64s
    sent_ms: Int64s
    due_ms: Int64s
    written_ms: Int64s

    def __len__(self) -> int:
        return len(self.offset)

    def due_between(self, begin_ms: float, end_ms: float) -> LoopRows:
        """Return the rows that were due within a period."""
        is_due = (self.due_ms >= begin_ms) & (self.due_ms < end_ms)
        return LoopRows(*(getattr(self, name)[is_due] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Learned:
    """The progress of a version.

    Attributes:
        version: Its number.
        offsets: By partition, the first message that was not completely learned.
        written_ms: Wall time at which it was written.
    """

    version: int
    offsets: tuple[int, ...]
    written_ms: int


def read_rows(folder: AppFolder) -> LoopRows:
    """Read all rows of the topic."""
    codec = SampleCodec(folder.app, folder.settings.samples)
    blocks: list[Int64s] = [np.zeros((5, 0), np.int64)]
    with folder.open_topic("samples") as topic, topic.reader() as reader:
        offsets = {partition: reader.earliest(partition) for partition in range(topic.partitions)}
        ends = {partition: reader.end(partition) for partition in offsets}
        while any(offset < ends[partition] for partition, offset in offsets.items()):
            for records in reader.read_many(offsets, max_records=_RECORDS, max_bytes=_BYTES, wait_ms=_WAIT_MS):
                messages = zip(records.offsets.tolist(), records.timestamps_ms.tolist(), records.values, strict=True)
                for offset, time_ms, value in messages:
                    assert value is not None
                    batch = codec.decode(value)
                    rows = np.empty((5, len(batch)), np.int64)
                    rows[0], rows[1], rows[4] = records.partition, offset, time_ms
                    rows[2], rows[3] = batch.requests.shown_wall_ms[batch.request_index], batch.settle_time_ms
                    blocks.append(rows)
                offsets[records.partition] = records.next_offset
    return LoopRows(*np.concatenate(blocks, axis=1))


def first_written(folder: AppFolder, due_ms: float, wait_s: float) -> float | None:
    """Wait for a row that was due after a time, and return the wall time of its arrival; None if none arrives."""
    codec, until_s = SampleCodec(folder.app, folder.settings.samples), time.monotonic() + wait_s
    with folder.open_topic("samples") as topic, topic.reader() as reader:
        offsets = {partition: reader.end(partition) for partition in range(topic.partitions)}
        while time.monotonic() < until_s:
            for records in reader.read_many(offsets, max_records=_RECORDS, max_bytes=_BYTES, wait_ms=_WAIT_MS):
                offsets[records.partition] = records.next_offset
                for value in records.values:
                    assert value is not None
                    if (codec.decode(value).settle_time_ms > due_ms).any():
                        return time.time() * 1e3
    return None


def learned_of(folder: AppFolder) -> list[Learned]:
    """Return the committed versions, oldest first."""
    log = Log(open_store(folder.store_url), folder.app.name)
    committed = {
        entry.manifest.version: entry.manifest for path in log.folders if (entry := log.read(path)) is not None
    }
    return [_learned(committed[version]) for version in sorted(committed)]


def _learned(manifest: Manifest) -> Learned:
    by_partition = sorted(manifest.positions, key=lambda position: position.partition)
    return Learned(manifest.version, tuple(position.offset for position in by_partition), manifest.written_wall_ms)


def known_ms(
    rows: LoopRows, versions: Sequence[Learned], answered: Sequence[VersionChange]
) -> tuple[Float64s, Float64s]:
    """Return, by row, when the first version with it was written, and when it was first answered with; NaN for never.

    Args:
        rows: The rows.
        versions: The progress of each version, oldest first.
        answered: A node's changes of version.

    Examples:
        >>> rows = LoopRows(*np.array([[0, 0, 0], [0, 1, 2], [0, 0, 0], [5, 6, 7], [5, 6, 7]]))
        >>> versions = [Learned(1, (1,), 10), Learned(2, (2,), 20)]
        >>> known_ms(rows, versions, [VersionChange(12.0, 1), VersionChange(24.0, 2)])
        (array([10., 20., nan]), array([12., 24., nan]))
    """
    by_version = {version.version: version for version in versions if version.offsets}
    answers = [(by_version[seen.version].offsets, seen.wall_ms) for seen in answered if seen.version in by_version]
    writes = [(version.offsets, float(version.written_ms)) for version in by_version.values()]
    return _first(rows, writes), _first(rows, answers)


def _first(rows: LoopRows, events: Sequence[tuple[tuple[int, ...], float]]) -> Float64s:
    """Return, by row, the time of the first event whose offset is after the row's message."""
    times = np.array([*(time for _, time in events), np.nan])
    first = np.full(len(rows), np.nan)
    for partition in np.unique(rows.partition).tolist():
        is_here = rows.partition == partition
        # After a rollback an older version has learned no more than those before it.
        passed = np.maximum.accumulate(np.array([offsets[partition] for offsets, _ in events], np.int64))
        first[is_here] = times[np.searchsorted(passed, rows.offset[is_here], side="right")]
    return first
