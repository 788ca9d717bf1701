"""Samples as a job wrote them: how many, when the last was written, and how long after they were due they were read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.samples import SampleBatch, SampleCodec

__all__ = ["Arrivals", "Made", "made_of", "watch"]

_RECORDS, _BYTES, _WAIT_MS = 10_000, 64 << 20, 20


@dataclass(frozen=True)
class Made:
    """What a samples topic holds.

    Attributes:
        first_rows: Rows that were due when their wait was over: one for each item shown.
        corrections: Rows that came after those.
        last_ms: When the last message with rows was written, wall time.
        message_bytes: Of all messages.
    """

    first_rows: int
    corrections: int
    last_ms: int
    message_bytes: int


@dataclass(frozen=True)
class Arrivals:
    """Rows as a reader met them.

    Attributes:
        settle_ms: int64[n]. When each was due, event time.
        arrived_ms: int64[n]. When it had been read, wall time.
    """

    settle_ms: npt.NDArray[np.int64]
    arrived_ms: npt.NDArray[np.int64]


def made_of(folder: AppFolder, is_over: Callable[[int], bool] = lambda rows: True) -> Made:
    """Read a samples topic to its end, and on until it is over.

    Args:
        folder: The application.
        is_over: Told how many first rows there are; asked wherever the topic has no more now.
    """
    codec, wait_ms = SampleCodec(folder.app, folder.settings.samples), 1_000 * folder.app.groups[0].wait_s
    first = corrections = last_ms = size = 0
    with folder.open_topic("samples") as topic, topic.reader() as reader:
        offsets = {partition: reader.earliest(partition) for partition in range(topic.partitions)}
        while any(offsets[one] < reader.end(one) for one in offsets) or not is_over(first):
            found = reader.read_many(offsets, max_records=_RECORDS, max_bytes=_BYTES, wait_ms=_WAIT_MS)
            for records in found:
                offsets[records.partition] = records.next_offset
                for time_ms, value in zip(records.timestamps_ms.tolist(), records.values, strict=True):
                    assert value is not None
                    batch = codec.decode(value)
                    due_ms = batch.requests.event_time_ms[batch.request_index] + wait_ms
                    rows = int((batch.settle_time_ms == due_ms).sum())
                    first, corrections = first + rows, corrections + len(batch) - rows
                    last_ms = max(last_ms, time_ms) if len(batch) else last_ms
                    size += len(value)
    return Made(first, corrections, last_ms, size)


def watch(folder: AppFolder, is_over: Callable[[], bool]) -> Arrivals:
    """Read samples as they come, until it is over: each read stamps all that it gave."""
    codec = SampleCodec(folder.app, folder.settings.samples)
    settled: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    arrived: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    with folder.open_topic("samples") as topic, topic.reader() as reader:
        positions = {partition: reader.end(partition) for partition in range(topic.partitions)}
        while not is_over():
            found = reader.read_many(positions, max_records=_RECORDS, max_bytes=_BYTES, wait_ms=_WAIT_MS)
            now_ms = time.time_ns() // 1_000_000
            for records in found:
                positions[records.partition] = records.next_offset
                for value in records.values:
                    assert value is not None
                    batch: SampleBatch = codec.decode(value)
                    settled.append(batch.settle_time_ms)
                    arrived.append(np.full(len(batch), now_ms, np.int64))
    return Arrivals(np.concatenate(settled), np.concatenate(arrived))
