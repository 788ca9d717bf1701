"""The wall of ingest: a step ahead moves no watermark, and a wall that was set right is believed in the end."""

from __future__ import annotations

import logging

import pytest

from streamlearn.errors import StreamlearnError
from streamlearn.ingest import begin_run
from streamlearn.ingest.output.progress_log import ProgressLog
from streamlearn.ingest.reading.blob import Section
from streamlearn.ingest.reading.steady_clock import SteadyClock
from streamlearn.testing import ManualClock, small_impression, wait_until
from tests.ingest.conftest import Make
from tests.ingest.place import T_MS, longest_window_ms, reading


class Stepping(ManualClock):
    """A clock whose wall can be set."""

    def __init__(self) -> None:
        super().__init__(T_MS)
        self.ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


def test_a_wall_that_steps_ahead_for_a_moment_moves_no_time_and_time_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Stepping()
    steady = SteadyClock(clock)
    clock.sleep(100)
    assert steady.wall_ms() == T_MS + 100_000
    clock.ahead_ms = 3_600_000
    with caplog.at_level(logging.WARNING):
        for passed_s in (0, 60, 119):
            clock.sleep(passed_s)
            assert steady.wall_ms() == clock.wall_ms() - 3_600_000
        clock.ahead_ms = 0
        assert steady.wall_ms() == clock.wall_ms()
    assert [record.message for record in caplog.records] == [
        "the wall clock jumped 3600.0 s ahead; watermarks use the monotonic clock",
        "the wall clock agrees with the monotonic clock again",
    ]


def test_a_wall_that_stays_ahead_is_believed_and_one_that_goes_back_at_once() -> None:
    clock = Stepping()
    steady = SteadyClock(clock)
    clock.ahead_ms = 3_600_000
    assert steady.wall_ms() == T_MS
    clock.sleep(601)
    assert steady.wall_ms() == clock.wall_ms() == T_MS + 3_600_000 + 601_000
    clock.ahead_ms = -3_600_000
    assert steady.wall_ms() == clock.wall_ms()
    # From there on a step ahead is one again.
    clock.ahead_ms = 0
    assert steady.wall_ms() == clock.wall_ms() - 3_600_000


def test_a_watermark_does_not_follow_a_wall_that_is_ahead_for_a_moment(make: Make) -> None:
    place = make(topics={"time": "wall"})
    clock = Stepping()
    with reading(place.plan(), clock=clock) as reader:

        def look() -> int:
            clock.sleep(0.02)  # idleness is proven on this clock
            reader.take()
            return reader.watermark_ms

        wait_until(lambda: look() > 0, "both topics are proven empty")
        clock.ahead_ms = 3_600_000
        before_ms = reader.watermark_ms
        wait_until(lambda: look() >= before_ms + 2_000, "time goes on")
        assert reader.watermark_ms <= clock.wall_ms() - 3_600_000
        clock.ahead_ms = 0
        with place.producer(clock) as producer:
            producer.impression(**small_impression(1) | {"event_time_ms": clock.wall_ms()})
        wait_until(lambda: look() >= clock.wall_ms() - 40_000, "time goes on with what is written")


def test_events_of_now_are_possible_while_the_wall_is_not_believed(make: Make) -> None:
    place = make(topics={"time": "wall"}, ingest={"ahead_s_max": 60})
    clock = Stepping()
    with reading(place.plan(), clock=clock) as reader:
        reader.take()
        clock.ahead_ms = 2 * 86_400_000  # the machine slept for two days
        with place.producer(clock) as producer:
            producer.impression(**small_impression(1) | {"event_time_ms": clock.wall_ms()})
        sections: list[Section] = []

        def took() -> bool:
            if (taken := reader.take()) is not None:
                sections.append(taken.blob.impressions)
            return any(len(section.timestamps_ms) for section in sections)

        wait_until(took, "the impression")
        assert all((section.timestamps_ms <= section.limits_ms).all() for section in sections)
        assert reader.watermark_ms <= clock.wall_ms() - 2 * 86_400_000


def test_a_run_does_not_begin_on_progress_that_is_ahead_of_the_wall(make: Make) -> None:
    place = make(topics={"time": "wall"})
    clock = ManualClock(T_MS)
    first = begin_run(place.folder, clock=clock)
    with ProgressLog.open(place.folder.topic_url("progress"), place.folder.access) as log:
        # Less than the longest window ahead: reading would begin in the past, but rows were closed too early.
        log.write(first.run, first.lineage, dict.fromkeys(range(4), T_MS + 310_000))
        with pytest.raises(StreamlearnError, match="310 s ahead of the wall") as refusal:
            begin_run(place.folder, clock=clock)
        assert "--delete --only progress" in refusal.value.help
        assert log.standing().run == first.run  # which goes on
        clock.sleep(20)
        assert begin_run(place.folder, clock=clock).run > first.run


def test_end_marks_may_leave_progress_ahead_and_a_stop_may_not(make: Make) -> None:
    place = make(topics={"time": "wall"})
    clock = ManualClock(T_MS)
    ahead_ms = T_MS + 200_000
    first = begin_run(place.folder, clock=clock)
    closed = dict.fromkeys(range(4), ahead_ms + longest_window_ms(place.folder) + 30_000)
    with ProgressLog.open(place.folder.topic_url("progress"), place.folder.access) as log:
        log.write(first.run, first.lineage, closed)  # all windows are closed ahead of time
        log.end(first.run, first.lineage, range(4))
        run = begin_run(place.folder, clock=clock)
        assert run.start_ms == ahead_ms
        log.write(run.run, run.lineage, {lot: reached + 1 for lot, reached in closed.items()})
        log.end(run.run, run.lineage, range(4))
        log.stop(run.run, run.lineage)
        with pytest.raises(StreamlearnError, match="ahead of the wall"):
            begin_run(place.folder, clock=clock)
