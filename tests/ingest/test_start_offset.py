"""Where a run begins to read each topic, and when it refuses because records that it needs may be gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamlearn.errors import PositionLost
from streamlearn.ingest import JoinCore, JoinPlan, ProgressLog, ReadPlan, begin_run
from streamlearn.ingest.join.lots import LotCutter
from streamlearn.ingest.reading import start_offset as opening
from streamlearn.testing import small_impression, wait_until
from tests.ingest.conftest import Make
from tests.ingest.place import T_MS, Place, longest_window_ms, reading, take_all, take_count

DISORDER_MS = 30_000
NAMES = ("impressions", "actions")


def next_run(place: Place, first: ReadPlan, t0_ms: int) -> ReadPlan:
    """The run after one that has acknowledged what is needed to begin at a T0."""
    with ProgressLog.open(place.folder.topic_url("progress"), first.access) as log:
        reached_ms = t0_ms + longest_window_ms(place.folder) + DISORDER_MS
        log.write(first.run, first.lineage, dict.fromkeys(range(first.lineage.lots_count), reached_ms))
    return begin_run(place.folder)


def positives_of(place: Place, plan: ReadPlan) -> dict[int, int]:
    """The labels of each impression that a run makes rows of, by its offset."""
    topics = [(name, topic.topic_id) for name, topic in zip(NAMES, (place.impressions, place.actions), strict=True)]
    cutter = LotCutter(place.folder, 1, topics, plan.read_from_ms)
    core = JoinCore(JoinPlan.of(place.folder.app, topics[0][1], place.folder.settings.join, plan.start_ms))
    with reading(plan) as reader:
        for blob in take_all(reader):
            for events in cutter.cut(blob).lots:
                core.add_impressions(events.impressions)
                core.add_actions(events.actions)
    core.advance(T_MS + 10 * longest_window_ms(place.folder))
    joined = core.take(1_000)
    found: dict[int, int] = {}
    for row in range(len(joined.rows)):
        offset = int(joined.requests.offset[joined.rows.request_index[row]])
        found[offset] = found.get(offset, 0) | int(joined.rows.labels[row])
    assert not core.counters["actions_orphan"]
    return found


def test_an_action_before_its_impression_counts_though_a_run_begins_at_a_t0_between_them(make: Make) -> None:
    place = make(join={"orphan_wait_s": 60.0})
    shown = small_impression(1) | {"event_time_ms": T_MS}
    with place.producer() as producer:
        producer.action("q1", T_MS - 50_000, shown["items"][0]["video_id"], "purchase")
        producer.impression(**shown)
        producer.end(T_MS + 10_000_000)
    first = place.plan()
    assert positives_of(place, first) == {0: 0b10}
    second = next_run(place, first, T_MS - 40_000)
    assert second.start_ms == T_MS - 40_000
    assert positives_of(place, replace(second, progress_url="")) == {0: 0b10}


class Shortened:
    """A reader whose first records are gone; each record is a second after the one before."""

    url = "memory://shortened"

    def __init__(self, earliest: int, first_ms: int) -> None:
        self._earliest, self._first_ms = earliest, first_ms

    def earliest(self, partition: int) -> int:
        return self._earliest

    def offset_for_time(self, partition: int, timestamp_ms: int) -> int:
        return self._earliest + max(0, -(-(timestamp_ms - self._first_ms) // 1000))


def begin(plan: ReadPlan, reader: Shortened, name: str = "impressions") -> int:
    """Where a run begins to read a topic."""
    return opening._begin(plan, reader, 0, name == "actions")  # type: ignore[arg-type]


@pytest.fixture
def plan(place: Place) -> ReadPlan:
    """A run whose T0 is T_MS."""
    return replace(place.plan(), start_ms=T_MS, early_ms=5_000, context_ms=60_000)


@pytest.mark.parametrize(("name", "needed_ms"), [("impressions", T_MS), ("actions", T_MS - 5_000)])
def test_a_start_whose_records_may_have_been_deleted_is_refused_unless_it_is_accepted(
    plan: ReadPlan, name: str, needed_ms: int
) -> None:
    gone = Shortened(4, needed_ms)
    with pytest.raises(PositionLost, match="may have been deleted") as caught:
        begin(plan, gone, name)
    assert "accept_lost" in caught.value.help
    assert begin(replace(plan, accept_lost=True), gone, name) == 4
    assert begin(plan, Shortened(4, needed_ms - 1_000), name) == 4 + (name == "actions")


def test_context_that_was_deleted_is_no_loss(plan: ReadPlan) -> None:
    assert begin(plan, Shortened(4, T_MS - 2_000)) == 4
    assert begin(plan, Shortened(4, T_MS - 70_000)) == 14


@pytest.mark.parametrize(("place_read", "name"), [(0, "impressions"), (1, "actions")])
def test_a_topic_whose_deleted_records_were_all_read_and_are_all_older_has_lost_nothing(
    plan: ReadPlan, place_read: int, name: str
) -> None:
    needed_ms = T_MS - 5_000 * place_read
    gone, other = Shortened(4, needed_ms + 9_000), 1 - place_read
    assert begin(replace(plan, read={place_read: (4, needed_ms - 1), other: (0, 0)}), gone, name) == 4
    for read in ({place_read: (3, needed_ms - 1)}, {place_read: (4, needed_ms)}, {other: (4, 0)}):
        with pytest.raises(PositionLost):
            begin(replace(plan, read=read), gone, name)


def test_a_quiet_partition_that_retention_emptied_is_read_on_and_records_that_no_run_has_read_are_missed(
    make: Make,
) -> None:
    place = make(retention_ms=7 * 86_400_000)
    place.fill(3)
    first, t0_ms = place.plan(acknowledged=True, flush_s=0.02), T_MS + 500_000
    with (
        reading(first) as reader,
        ProgressLog.open(place.folder.topic_url("progress"), first.access) as log,
    ):
        take_count(reader, 6)
        read = {0: (3, T_MS + 2_000), 1: (3, T_MS + 4_000)}
        wait_until(lambda: log.standing().read == read, "what was read is noted")
    for topic in (place.impressions, place.actions):
        topic.maintain()
        with topic.reader() as left:
            assert left.earliest(0) == left.end(0) == 3
    second = next_run(place, first, t0_ms)
    with reading(second) as reader:
        assert [position.offset for position in reader._positions] == [3, 3]
    place.fill(2, first=600)
    for topic in (place.impressions, place.actions):
        topic.maintain()
    with pytest.raises(PositionLost, match="may have been deleted"), reading(begin_run(place.folder)):
        pass


def test_what_was_read_only_grows_until_a_topic_that_lost_its_end_is_written_again(place: Place) -> None:
    plan = place.plan()
    with ProgressLog.open(place.folder.topic_url("progress"), plan.access) as log:
        for read, kept in [((9, 500), (9, 500)), ((4, 500), (9, 500)), ((9, 700), (9, 500)), ((4, 700), (4, 700))]:
            log.note_read(plan.run, plan.lineage, {3: read})
            assert log.standing().read == {3: kept}
    assert begin_run(place.folder).read == {3: (4, 700)}
