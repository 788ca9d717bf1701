"""Samples of a job: their number, the time of the last one, and the times at which a reader got them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.samples import SampleBatch, SampleCodec

__all__ = ["Arrivals", "TopicCounts", "made_of", "watch"]

_RECORDS, _BYTES, _WAIT_MS = 10_000, 64 << 20, 20


@dataclass(frozen=True)
class TopicCounts:
    """The content of a samples topic.

    Attributes:
        first_rows: Number of first rows: one for each shown item.
        corrections: Number of corrections.
        last_ms: Wall time at which the last message with rows was written.
        message_bytes: Bytes of all messages.
    """

    first_rows: int
    corrections: int
    last_ms: int
    message_bytes: int


@dataclass(frozen=True)
class Arrivals:
    """Rows in the order of their arrival at a reader.

    Attributes:
        settle_ms: int64[n]. Event time at which each was due.
        arrived_ms: int64[n]. Wall time at which it was read.
    """

    settle_ms: npt.NDArray[np.int64]
    arrived_ms: npt.NDArray[np.int64]


def made_of(folder: AppFolder, is_over: Callable[[int], bool] = lambda rows: True) -> TopicCounts:
    """Read a samples topic to its end, and further until `is_over`, which gets the number of first rows."""
    codec, wait_ms = SampleCodec(folder.app, folder.settings.samples), 1_000 * folder.app.groups[0].wait_s
    first = corrections = last_ms = size = 0
    with folder.open_topic("samples") as topic, topic.reader() as reader:
        offsets = {partition: reader.earliest(partition) for partition in range(topic.partitions)}
        while any(offset < reader.end(partition) for partition, offset in offsets.items()) or not is_over(first):
            for records in reader.read_many(offsets, max_records=_RECORDS, max_bytes=_BYTES, wait_ms=_WAIT_MS):
                offsets[records.partition] = records.next_offset
                for time_ms, value in zip(records.timestamps_ms.tolist(), records.values, strict=True):
                    assert value is not None
                    batch = codec.decode(value)
                    due_ms = batch.requests.event_time_ms[batch.request_index] + wait_ms
                    rows = int((batch.settle_time_ms == due_ms).sum())
                    first, corrections = first + rows, corrections + len(batch) - rows
                    last_ms = max(last_ms, time_ms) if len(batch) else last_ms
                    size += len(value)
    return TopicCounts(first, corrections, last_ms, size)


def watch(folder: AppFolder, is_over: Callable[[], bool]) -> Arrivals:
    """Read samples as they arrive, until `is_over`; rows of one read get the same arrival time."""
    codec = SampleCodec(folder.app, folder.settings.samples)
    settled: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    arrived: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    with folder.open_topic("samples") as topic, topic.reader() as reader:
        positions = {partition: reader.end(partition) for partition in range(topic.partitions)}
        while not is_over():
            batches = reader.read_many(positions, max_records=_RECORDS, max_bytes=_BYTES, wait_ms=_WAIT_MS)
            now_ms = time.time_ns() // 1_000_000
            for records in batches:
                positions[records.partition] = records.next_offset
                for value in records.values:
                    assert value is not None
                    batch: SampleBatch = codec.decode(value)
                    settled.append(batch.settle_time_ms)
                    arrived.append(np.full(len(batch), now_ms, np.int64))
    return Arrivals(np.concatenate(settled), np.concatenate(arrived))
