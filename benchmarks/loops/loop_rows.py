"""LoopRows: the rows of a samples topic, and when an answer came from a version that had learned each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.loops.loop_answers import Answered
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
    """Rows as they lie in the topic.

    Attributes:
        partition: int64[n].
        offset: int64[n]. Of the message that holds it.
        sent_ms: int64[n]. When its impression was given to the producer, wall time.
        due_ms: int64[n]. When its wait was over: from then on it may be learned.
        written_ms: int64[n]. When its message was written, wall time.
    """

    partition: Int64s
    offset: Int64s
    sent_ms: Int64s
    due_ms: Int64s
    written_ms: Int64s

    def __len__(self) -> int:
        return len(self.offset)

    def due_between(self, begin_ms: float, end_ms: float) -> LoopRows:
        """Those that were due within a time."""
        kept = (self.due_ms >= begin_ms) & (self.due_ms < end_ms)
        return LoopRows(*(getattr(self, name)[kept] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Learned:
    """What a version had learned.

    Attributes:
        version: Its number.
        offsets: By partition, the first message that was not wholly learned.
        written_ms: When it was written.
    """

    version: int
    offsets: tuple[int, ...]
    written_ms: int


def read_rows(folder: AppFolder) -> LoopRows:
    """All rows that are there now."""
    codec = SampleCodec(folder.app, folder.settings.samples)
    found: list[Int64s] = [np.zeros((5, 0), np.int64)]
    with folder.open_topic("samples") as topic, topic.reader() as reader:
        offsets = {partition: reader.earliest(partition) for partition in range(topic.partitions)}
        ends = {partition: reader.end(partition) for partition in offsets}
        while any(offsets[one] < ends[one] for one in offsets):
            for records in reader.read_many(offsets, max_records=_RECORDS, max_bytes=_BYTES, wait_ms=_WAIT_MS):
                messages = zip(records.offsets.tolist(), records.timestamps_ms.tolist(), records.values, strict=True)
                for offset, time_ms, value in messages:
                    assert value is not None
                    batch = codec.decode(value)
                    rows = np.empty((5, len(batch)), np.int64)
                    rows[0], rows[1], rows[4] = records.partition, offset, time_ms
                    rows[2], rows[3] = batch.requests.shown_wall_ms[batch.request_index], batch.settle_time_ms
                    found.append(rows)
                offsets[records.partition] = records.next_offset
    return LoopRows(*np.concatenate(found, axis=1))


def first_written(folder: AppFolder, due_ms: float, wait_s: float) -> float | None:
    """When a row that was due after some time was read from the topic, wall time; None if none is in time."""
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
    """Every version that was committed, oldest first."""
    log = Log(open_store(folder.store_url), folder.app.name)
    committed = {one.manifest.version: one.manifest for path in log.folders if (one := log.read(path)) is not None}
    return [_learned(committed[version]) for version in sorted(committed)]


def _learned(manifest: Manifest) -> Learned:
    by_partition = sorted(manifest.positions, key=lambda one: one.partition)
    return Learned(manifest.version, tuple(one.offset for one in by_partition), manifest.written_wall_ms)


def known_ms(rows: LoopRows, versions: Sequence[Learned], answered: Sequence[Answered]) -> tuple[Float64s, Float64s]:
    """By row, when the first version that holds it was written, and the first answer came from one; NaN for never.

    Args:
        rows: The rows.
        versions: What each version had learned, oldest first.
        answered: A node's changes of version.

    Examples:
        >>> rows = LoopRows(*np.array([[0, 0, 0], [0, 1, 2], [0, 0, 0], [5, 6, 7], [5, 6, 7]]))
        >>> versions = [Learned(1, (1,), 10), Learned(2, (2,), 20)]
        >>> known_ms(rows, versions, [Answered(12.0, 1), Answered(24.0, 2)])
        (array([10., 20., nan]), array([12., 24., nan]))
    """
    by_version = {one.version: one for one in versions if one.offsets}
    seen = [(by_version[one.version].offsets, one.wall_ms) for one in answered if one.version in by_version]
    kept = [(one.offsets, float(one.written_ms)) for one in by_version.values()]
    return _first(rows, kept), _first(rows, seen)


def _first(rows: LoopRows, events: Sequence[tuple[tuple[int, ...], float]]) -> Float64s:
    """By row, the time of the first of some events that has passed its message."""
    times = np.array([*(time for _, time in events), np.nan])
    found = np.full(len(rows), np.nan)
    for partition in np.unique(rows.partition).tolist():
        mine = rows.partition == partition
        # A version that was gone back to has passed no more than those before it.
        passed = np.maximum.accumulate(np.array([offsets[partition] for offsets, _ in events], np.int64))
        found[mine] = times[np.searchsorted(passed, rows.offset[mine], side="right")]
    return found
