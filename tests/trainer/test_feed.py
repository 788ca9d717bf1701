"""Feed: steps of a topic, where they end, what they wait for, and what becomes of messages that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as replace_fields

from streamlearn.apps import AppFolder
from streamlearn.errors import BadRecord, PositionLost
from streamlearn.samples import SampleBatch, SampleCodec
from streamlearn.settings.join import MarksSettings
from streamlearn.testing import ManualClock, memory_topic
from streamlearn.topics import Position, Reader, Records, Topic, TopicSettings
from streamlearn.trainer.intake.extract import rows_of
from streamlearn.trainer.intake.feed import Feed, Until, beginning_of
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.intake.step_cutter import StepCutter
from streamlearn.trainer.shared_marks import SharedMarks
from streamlearn.trainer.step import Step
from tests.trainer.stream import learnable_folder, messages_of

_ROWS = 10
Kept = list[tuple[str, bytes]]


class Place:
    """A topic of samples and an application's feeds of it."""

    def __init__(self, topic: Topic, path: Path, **trainer: Any) -> None:
        given = {"order": "strict", "step_rows": 16, "poll_s": 0.001} | trainer
        self.topic, self.kept, self.clock = topic, Kept(), ManualClock()
        self.folder: AppFolder = learnable_folder(path, {"trainer": given})
        self.codec = SampleCodec(self.folder.app, self.folder.settings.samples)

    def write(self, messages: list[tuple[int, SampleBatch]]) -> None:
        with self.topic.writer() as writer:
            for partition, batch in messages:
                writer.append(partition, [self.codec.encode(batch)])

    def garbage(self, partition: int) -> None:
        with self.topic.writer() as writer:
            writer.append(partition, [b"garbage"])

    @contextmanager
    def feed(self, until: Until | None = None, reached: Reached | None = None) -> Iterator[Feed]:
        stepping = StepCutter(
            SharedMarks(len(self.folder.app.labels), MarksSettings()),
            self.folder.settings.trainer.step_rows,
            (),
            10**9,
        )
        feed = Feed(
            self.folder, self.topic, reached or beginning_of(self.topic), stepping,
            until=until, keep_aside=lambda name, data: self.kept.append((name, data)), clock=self.clock,
        )  # fmt: skip
        try:
            yield feed
        finally:
            feed.close()


@contextmanager
def place_of(path: Path, partitions: int = 2, **trainer: Any) -> Iterator[Place]:
    with memory_topic(TopicSettings(partitions=partitions, retention_ms=-1)) as topic:
        yield Place(topic, path, **trainer)


def ends(place: Place) -> Until:
    with place.topic.reader() as reader:
        return Until({at: reader.end(at) for at in range(place.topic.partitions)})


def _ends_of_lots(messages: list[tuple[int, SampleBatch]]) -> list[tuple[int, SampleBatch]]:
    """What ingest writes when it ends: how far each lot is, without a row."""
    return [(partition, rows_of(batch, np.arange(0))) for partition, batch in messages]


def steps_of(feed: Feed) -> list[Step]:
    return [step for step in feed.steps() if step is not None]


def test_it_ends_where_it_is_told_with_what_fills_no_step(tmp_path: Path) -> None:
    with place_of(tmp_path) as place:
        messages = messages_of(place.folder.app, 9, _ROWS)
        place.write(messages)
        with place.feed(ends(place)) as feed:
            steps = steps_of(feed)
        assert all(len(step) == 16 for step in steps[:-1])
        assert 0 < len(steps[-1]) <= 16
        assert sum(step.read for step in steps) == sum(len(batch) for _, batch in messages)
        count = [sum(partition == at for partition, _ in messages) for at in range(2)]
        assert steps[-1].reached.offsets == tuple(count)


def test_it_reads_nothing_beyond_its_end_and_goes_on_from_there(tmp_path: Path) -> None:
    with place_of(tmp_path) as place:
        messages = messages_of(place.folder.app, 12, _ROWS)
        place.write(messages)
        with place.feed(Until({0: 3, 1: 2})) as feed:
            steps = steps_of(feed)
        reached = steps[-1].reached
        assert reached.offsets == (3, 2)
        of = {at: [batch for partition, batch in messages if partition == at] for at in (0, 1)}
        first = of[0][:3] + of[1][:2]
        assert sum(step.read for step in steps) == sum(map(len, first))
        with place.feed(ends(place), reached) as feed:
            rest = steps_of(feed)
        assert sum(step.read for step in rest) == sum(map(len, of[0][3:] + of[1][2:]))


def test_a_partition_that_is_not_named_is_not_read(tmp_path: Path) -> None:
    with place_of(tmp_path) as place:
        place.write(messages_of(place.folder.app, 6, _ROWS))
        with place.feed(Until({0: 2})) as feed:
            steps = steps_of(feed)
        assert steps[-1].reached.offsets == (2, 0)


def test_idle_ends_it_after_so_long_without_anything_new(tmp_path: Path) -> None:
    with place_of(tmp_path) as place:
        with place.feed(Until(idle_s=30.0)) as feed:
            steps = feed.steps()
            for _ in range(3):
                assert next(steps) is None
                place.clock.sleep(9.0)
            messages = messages_of(place.folder.app, 4, _ROWS)
            place.write(messages)
            # Some is learned at once; the rest waits for a partition, and then nothing comes.
            first = list(takewhile(lambda step: step is not None, steps))
            place.clock.sleep(29.0)
            assert next(steps) is None
            place.clock.sleep(2.0)
            rest = [step for step in steps if step is not None]
        assert first
        assert sum(step.read for step in (*first, *rest) if step is not None) == sum(
            len(batch) for _, batch in messages
        )


def test_strict_waits_for_a_silent_partition_and_arrival_does_not(tmp_path: Path) -> None:
    for order in ("strict", "arrival"):
        with place_of(tmp_path, order=order) as place:
            app = place.folder.app
            place.write([(0, batch) for _, batch in messages_of(app, 4, _ROWS)])
            with place.feed() as feed:
                steps = feed.steps()
                found = [next(steps) for _ in range(4)]
                if order == "strict":
                    assert found == [None] * 4
                    place.write([(1, messages_of(app, 9, _ROWS)[-1][1])])
                    found = [next(steps) for _ in range(4)]
                assert any(step is not None for step in found)


def test_arrival_learns_a_step_that_is_not_full_after_a_while(tmp_path: Path) -> None:
    with place_of(tmp_path, order="arrival", step_rows=1_000, step_wait_s=5.0) as place, place.feed() as feed:
        steps = feed.steps()
        place.write(messages_of(place.folder.app, 2, _ROWS))
        assert [next(steps), next(steps)] == [None, None]
        place.clock.sleep(4.0)
        assert next(steps) is None
        place.clock.sleep(2.0)
        step = next(step for step in steps if step is not None)
        assert step.read == 2 * _ROWS
        assert next(steps) is None


def test_messages_without_rows_are_reached_too(tmp_path: Path) -> None:
    with place_of(tmp_path, order="arrival", step_rows=2 * _ROWS, step_wait_s=5.0) as place:
        messages = messages_of(place.folder.app, 2, _ROWS)
        place.write(messages)
        with place.feed() as feed:
            steps = feed.steps()
            full = next(step for step in steps if step is not None)
            assert (len(full), full.reached.offsets) == (2 * _ROWS, (1, 1))
            place.write(_ends_of_lots(messages))
            assert next(steps) is None
            place.clock.sleep(6.0)
            last = next(steps)
            assert last is not None
            assert (len(last), last.reached.offsets) == (0, (2, 2))
            place.clock.sleep(6.0)
            assert next(steps) is None


def test_messages_without_rows_are_reached_at_the_end_of_a_strict_run(tmp_path: Path) -> None:
    with place_of(tmp_path, step_rows=2 * _ROWS) as place:
        messages = messages_of(place.folder.app, 2, _ROWS)
        place.write(messages + _ends_of_lots(messages))
        with place.feed(ends(place)) as feed:
            steps = steps_of(feed)
        assert [len(step) for step in steps] == [2 * _ROWS, 0]
        assert steps[-1].reached.offsets == (2, 2)


def test_a_step_waits_for_no_longer_than_its_own_rows_did(tmp_path: Path) -> None:
    with place_of(tmp_path, order="arrival", step_rows=15, step_wait_s=5.0) as place, place.feed() as feed:
        steps = feed.steps()
        messages = messages_of(place.folder.app, 3, _ROWS)
        place.write(messages[:1])
        assert next(steps) is None
        place.clock.sleep(4.0)
        place.write(messages[1:2])
        full = next(step for step in steps if step is not None)
        assert len(full) == 15
        place.clock.sleep(4.0)  # the first row is older than a step may wait; those that are left are not
        assert next(steps) is None
        place.clock.sleep(2.0)
        rest = next(step for step in steps if step is not None)
        assert len(rest) == 5


@pytest.mark.parametrize("order", ["strict", "arrival"])
def test_the_bound_of_reading_ahead_stops_nothing_while_a_partition_is_silent(tmp_path: Path, order: str) -> None:
    # The bound is the smallest there is: a few messages.
    with place_of(tmp_path, order=order, step_rows=512, read_ahead_bytes=1 << 16) as place:
        messages = [(0, batch) for _, batch in messages_of(place.folder.app, 30, 200)]
        place.write(messages)
        assert sum(len(place.codec.encode(batch)) for _, batch in messages) > 4 << 16
        with place.feed(Until(ends(place).offsets)) as feed:
            steps = steps_of(feed)
        assert sum(step.read for step in steps) == sum(len(batch) for _, batch in messages)


def test_beyond_the_bound_only_what_is_waited_for_is_read(tmp_path: Path) -> None:
    with place_of(tmp_path, step_rows=512, read_ahead_bytes=1 << 16) as place, place.feed() as feed:
        app = place.folder.app
        # More than one look may bring.
        for number in range(40):
            place.write([(0, batch) for _, batch in messages_of(app, 5, 200, seed=number)])
        steps = feed.steps()
        assert [next(steps) for _ in range(20)] == [None] * 20
        held = feed._merge.bytes
        assert 1 << 16 <= held < 1 << 22
        assert [next(steps) for _ in range(5)] == [None] * 5
        assert feed._merge.bytes == held
        place.clock.sleep(2.0)
        assert next(steps) is None
        assert 0 < sum(feed.lag.values()) < 40 * 8
        # What is waited for comes: all goes on.
        place.write([(1, messages_of(app, 200, 4)[-1][1])])
        assert next(step for step in steps if step is not None).read > 0


def test_a_message_that_cannot_be_read_ends_it_or_is_left_out_as_is_set(tmp_path: Path) -> None:
    for most in (0, 1, 2):
        with place_of(tmp_path, bad_messages_max=most) as place:
            messages = messages_of(place.folder.app, 4, _ROWS)
            place.write(messages[:2])
            place.garbage(1)
            place.garbage(0)
            place.write(messages[2:])
            with place.feed(ends(place)) as feed:
                if most < 2:
                    with pytest.raises(BadRecord, match=r"partition [01], offset 1 of the samples") as refused:
                        steps_of(feed)
                    assert "bad_messages_max" in (refused.value.help or "")
                    assert feed.bad == len(place.kept) == most + 1
                    continue
                steps = steps_of(feed)
                assert feed.bad == 2
            assert sum(step.read for step in steps) == sum(len(batch) for _, batch in messages)
            assert sorted(place.kept) == [("message-0-1.avro", b"garbage"), ("message-1-1.avro", b"garbage")]


@pytest.mark.parametrize(("changes", "ahead_s", "bad"), [((), 80_000, 0), ((), 200_000, 1), (("event",), 200_000, 0)])
def test_a_message_whose_watermark_is_far_ahead_of_the_wall_is_left_out_in_wall_time_only(
    tmp_path: Path, changes: tuple[str, ...], ahead_s: int, bad: int
) -> None:
    with place_of(tmp_path, bad_messages_max=1) as place:
        settings = place.folder.settings
        topics = replace_fields(settings.topics, time=changes[0] if changes else "wall")
        place.folder = replace(place.folder, settings=replace_fields(settings, topics=topics))
        messages = messages_of(place.folder.app, 4, _ROWS)
        partition, batch = messages[1]
        ahead_ms = place.clock.wall_ms() + 1_000 * ahead_s
        messages[1] = partition, replace(batch, header=replace(batch.header, watermark_ms=ahead_ms))
        place.write(messages)
        with place.feed(ends(place)) as feed:
            steps = steps_of(feed)
            assert feed.bad == len(place.kept) == bad
        assert sum(step.read for step in steps) == sum(len(batch) for _, batch in messages) - bad * len(batch)


def test_leader_epochs_of_what_was_learned_are_kept_and_checked_where_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_many(self: Reader, *arguments: Any, **named: Any) -> list[Records]:
        return [replace(records, leader_epochs=[(0, 3), (1, 5)]) for records in read(self, *arguments, **named)]

    def checked(self: Reader, position: Position) -> None:
        positions.append(position)
        check(self, position)

    read, check = Reader.read_many, Reader.check
    positions: list[Position] = []
    monkeypatch.setattr(Reader, "read_many", read_many)
    monkeypatch.setattr(Reader, "check", checked)
    with place_of(tmp_path) as place:
        place.write(messages_of(place.folder.app, 6, _ROWS))
        with place.feed(Until({0: 1, 1: 2})) as feed:
            reached = steps_of(feed)[-1].reached
        assert reached.leader_epochs == (3, 5)
        remembered = SharedMarks(len(place.folder.app.labels), MarksSettings())
        with place.feed(reached=remembered.load(remembered.save(reached))):
            assert [(one.offset, one.leader_epoch) for one in positions[-2:]] == [(1, 3), (2, 5)]
        older = json.loads(remembered.save(reached)["reached"])
        del older["leader_epochs"]
        with place.feed(reached=remembered.load(remembered.save(reached) | {"reached": json.dumps(older).encode()})):
            assert [(one.offset, one.leader_epoch) for one in positions[-2:]] == [(1, -1), (2, -1)]


def test_an_idle_minute_asks_a_dozen_times_where_the_topic_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(self: Reader, partition: int) -> int:
        asked.append(partition)
        return end_of(self, partition)

    asked, end_of = list[int](), Reader.end
    with place_of(tmp_path, partitions=1) as place, place.feed(Until(idle_s=60)) as feed:
        monkeypatch.setattr(Reader, "end", end)
        monkeypatch.setattr("streamlearn.trainer.intake.feed.pause_s_of", lambda *_: 0.0)
        for step in feed.steps():
            assert step is None
            place.clock.sleep(0.1)
    assert len(asked) <= 13


def test_a_position_that_is_not_in_the_topic_is_refused(tmp_path: Path) -> None:
    with place_of(tmp_path) as place:
        place.write(messages_of(place.folder.app, 4, _ROWS))
        with pytest.raises(PositionLost), place.feed(reached=Reached((99, 0), (None, None))):
            pass
