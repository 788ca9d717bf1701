"""A topic in memory that waits or fails when told to."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from streamlearn.errors import BadRecord, TopicUnreachable
from streamlearn.testing import ManualClock
from streamlearn.topics import (
    Reader,
    Topic,
    TopicSettings,
    Writer,
    WriterSettings,
)
from streamlearn.topics.records import Outgoing


class FailingWriter(Writer):
    """Refuses to append while told to."""

    def __init__(self, topic: FailingTopic, settings: WriterSettings) -> None:
        super().__init__(topic.url, topic.settings(), settings, ManualClock())
        self._failing = topic
        self._fails = topic.fails
        self._writer_below = topic.below.writer(settings)

    def send(
        self, partition: int, value: bytes | None, key: bytes | None = None, timestamp_ms: int | None = None
    ) -> None:
        if self._failing.refused and key == self._failing.refused:
            message = "this one never"
            raise BadRecord(message)
        super().send(partition, value, key, timestamp_ms)

    def _append(self, partition: int, outgoing: Outgoing) -> NDArray[np.int64]:
        self._failing.waiting.set()
        assert self._failing.gate.wait(60)
        self._failing.tries += 1
        if self._fails.is_set():
            raise self._failing.error
        times = outgoing.timestamps_ms
        return self._writer_below.append(partition, outgoing.values, outgoing.keys, times)

    def _close(self) -> None:
        self._writer_below.close()


class FailingTopic(Topic):
    """A topic in memory whose writers wait while `gate` is closed and fail while `fails` is set."""

    def __init__(self, below: Topic) -> None:
        self.below = below
        self.url, self.topic_id, self.partitions = below.url, below.topic_id, below.partitions
        self.fails = threading.Event()
        self.fails.set()
        self.error: Exception = TopicUnreachable("the broker is away")
        self.gate, self.waiting = threading.Event(), threading.Event()
        self.gate.set()
        self.refused = b""
        self.tries = 0

    def settings(self) -> TopicSettings:
        return self.below.settings()

    def writer(self, settings: WriterSettings | None = None) -> Writer:
        return FailingWriter(self, settings or WriterSettings())

    def maintain(self) -> None:
        self.below.maintain()

    def close(self) -> None:
        self.below.close()

    def _open_reader(self, partitions: tuple[int, ...]) -> Reader:
        return self.below.reader(partitions)
