"""Fetching ahead: bounded, in order, with errors where they belong and emptiness only where it was proven."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from streamlearn.errors import TopicUnreachable
from streamlearn.ingest.reading.puller import Puller, PullLimits
from streamlearn.testing import ManualClock, memory_topic, wait_until
from streamlearn.topics import Reader, Records, Topic
from streamlearn.topics.records import empty_records

LIMITS = PullLimits(held_bytes=1_000, read_bytes=300, wait_ms=1, idle_s=5.0)


class Scripted(Reader):
    """A reader that gives what it is told to, then nothing; an exception in its script is raised."""

    def __init__(self, script: list[Records | Exception]) -> None:
        super().__init__("memory://scripted", "scripted", [0])
        self.script = script
        self.end_offset = 0
        self.asked_for_end = 0
        self.closed = threading.Event()
        self._given = 0

    def _read(self, partition: int, offset: int, limits: tuple[int, int], wait_ms: int) -> Records:
        if self._given == len(self.script):
            self.closed.wait(0.001)
            return empty_records(0, offset)
        self._given += 1
        found = self.script[self._given - 1]
        if isinstance(found, Exception):
            raise found
        return found

    def _earliest(self, partition: int) -> int:
        return 0

    def _end(self, partition: int) -> int:
        self.asked_for_end += 1
        return self.end_offset

    def _offset_for_time(self, partition: int, timestamp_ms: int) -> int:
        return 0

    def close(self) -> None:
        self.closed.set()


def one(offset: int) -> Records:
    return Records(0, np.array([offset]), np.array([offset]), [None], [b"value"], offset + 1)


@pytest.fixture
def topic() -> Iterator[Topic]:
    with memory_topic() as made:
        yield made


def pull(reader: Reader, clock: ManualClock | None = None) -> Puller:
    return Puller(reader, 0, 0, limits=LIMITS, clock=clock or ManualClock())


def test_it_holds_no_more_than_its_bound_and_one_read(topic: Topic) -> None:
    with topic.writer() as writer:
        writer.append(0, [b"x" * 100] * 100)
    puller = pull(topic.reader())
    wait_until(lambda: puller._held_bytes >= LIMITS.held_bytes, "the bound is met")
    assert puller._held_bytes <= LIMITS.held_bytes + LIMITS.read_bytes
    found: list[int] = []

    def all_came() -> bool:
        while (records := puller.take()) is not None:
            found.extend(records.offsets.tolist())
        return len(found) == 100

    wait_until(all_came, "all records come")
    assert found == list(range(100))
    puller.close()


def test_an_error_comes_behind_the_records_before_it_and_stays() -> None:
    reader = Scripted([one(0), TopicUnreachable("away", help="wait"), one(1)])
    puller = pull(reader)
    wait_until(reader.closed.is_set, "its thread has ended")
    records = puller.take()
    assert records is not None
    assert records.offsets.tolist() == [0]
    assert puller.has_some()
    for _ in range(2):
        with pytest.raises(TopicUnreachable):
            puller.take()
    puller.close()


def test_a_partition_is_empty_only_where_its_end_was_reached_after_a_long_silence() -> None:
    clock, reader = ManualClock(1_000_000), Scripted([])
    reader.end_offset = 7  # there is more than reads give: a broker that does not answer
    puller = pull(reader, clock)
    wait_until(puller.has_looked, "it has looked")
    assert reader.asked_for_end == 0
    clock.sleep(LIMITS.idle_s)
    wait_until(lambda: reader.asked_for_end == 1, "its end is asked for")
    assert puller.empty_ms() is None
    reader.end_offset = 0
    clock.sleep(LIMITS.idle_s)
    wait_until(lambda: puller.empty_ms() == clock.wall_ms(), "it is proven empty")
    proven_ms = puller.empty_ms()
    reader.script.append(one(0))
    wait_until(lambda: puller.empty_ms() is None, "a record came")
    assert proven_ms == 1_010_000
    puller.close()


def test_how_far_it_is_behind_is_looked_at_now_and_then_while_records_come() -> None:
    clock, reader = ManualClock(1_000_000), Scripted([one(0)])
    reader.end_offset = 40
    puller = pull(reader, clock)
    wait_until(lambda: puller.behind(1) == 39, "a look at the end")
    assert (puller.behind(40), puller.behind(41)) == (0, 0)
    reader.end_offset = 90
    reader.script.append(one(1))
    wait_until(lambda: len(puller._held) == 2, "a record")
    assert puller.behind(1) == 39
    clock.sleep(10.0)
    reader.script.append(one(2))
    wait_until(lambda: puller.behind(1) == 89, "the next look")
    puller.close()


def test_gaps_without_records_are_passed() -> None:
    reader = Scripted([empty_records(0, 50), one(50)])
    puller = pull(reader)
    found: list[Records] = []

    def both_came() -> bool:
        records = puller.take()
        if records is not None:
            found.append(records)
        return len(found) == 2

    wait_until(both_came, "the gap and the record come")
    assert [records.next_offset for records in found] == [50, 51]
    puller.close()
