"""Progress and what follows from it: runs that end one another, and where the next one begins."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.apps import AppFolder
from streamlearn.errors import BadRecord, ConfigError, IngestOver, TopicReplaced
from streamlearn.ingest import ProgressLog, begin_run
from streamlearn.ingest.output.progress import Lineage
from streamlearn.ingest.output.progress_log import DeadShare
from streamlearn.ingest.reading.start import start_ms
from streamlearn.settings import Settings
from streamlearn.testing import small_folder
from streamlearn.topics import TopicSettings, create_topic, delete_topic, open_topic
from tests.ingest.conftest import Make
from tests.ingest.place import T_MS, Place, longest_window_ms

LINEAGE = Lineage(4, "windows", "features", "events", "actions")
DISORDER_MS = 30_000


def log_of(place: Place) -> ProgressLog:
    return ProgressLog.open(place.folder.topic_url("progress"), place.folder.access)


def test_what_was_written_is_read_back_by_everyone_idle_lots_included(make: Make) -> None:
    place = make()
    plan = place.plan()
    with log_of(place) as log, log_of(place) as other:
        log.write(plan.run, plan.lineage, {0: 100, 1: 200, 2: 100, 3: 100})
        log.write(plan.run, plan.lineage, {1: 300})
        found = other.standing()
        assert {lot: one.watermark_ms for lot, one in found.lots.items()} == {0: 100, 1: 300, 2: 100, 3: 100}
        assert found.reached_ms(plan.run, 4) == 100
        assert found.reached_ms(plan.run, 5) is None
        assert found.reached_ms(plan.run + 1, 4) is None


def test_a_run_has_ended_once_nothing_more_follows_of_each_of_its_lots(make: Make) -> None:
    place = make()
    first = begin_run(place.folder)
    with log_of(place) as log, log_of(place) as other:
        log.end(first.run, first.lineage, [0, 1])
        assert not other.standing().has_ended(first.run, 4)
        log.end(first.run, first.lineage, [3, 2])
        found = other.standing()
        assert found.has_ended(first.run, 4)
        assert not found.has_ended(first.run, 5)
        assert found.lots == {}
        second = begin_run(place.folder)
        assert not other.standing().has_ended(second.run, 4)
        with pytest.raises(IngestOver):
            log.end(first.run, first.lineage, [0])


def test_a_run_that_reads_again_takes_no_watermark_back_and_says_how_far_it_is_itself(place: Place) -> None:
    first = begin_run(place.folder)
    with log_of(place) as log:
        log.write(first.run, first.lineage, dict.fromkeys(range(4), 1_000))
        second = begin_run(place.folder)
        assert log.standing().reached_ms(second.run, 4) is None
        log.write(second.run, second.lineage, dict.fromkeys(range(4), 400))
        found = log.standing()
        assert found.reached_ms(second.run, 4) == 400
        assert {one.watermark_ms for one in found.lots.values()} == {1_000}


def test_a_newer_run_ends_the_one_before_and_what_that_wrote_too_late_is_left_out(place: Place) -> None:
    first = begin_run(place.folder)
    with log_of(place) as log, log_of(place) as zombie:
        zombie.write(first.run, first.lineage, {0: 100})
        second = begin_run(place.folder)
        assert second.run > first.run
        with pytest.raises(IngestOver, match=f"run {second.run} of ingest has taken over from run {first.run}"):
            zombie.write(first.run, first.lineage, {0: 900})
        # One that had looked just before: its record is there, and counts for nobody.
        zombie.check = lambda run: zombie._standing  # type: ignore[method-assign]
        zombie.write(first.run, first.lineage, {0: 900})
        assert log.standing().lots[0].watermark_ms == 100


def test_a_run_says_which_share_of_its_events_become_dead_letters_and_the_next_begins_without(make: Make) -> None:
    place = make()
    first = begin_run(place.folder)
    with log_of(place) as log, closing(DeadShare(place.folder)) as asked:
        log.write(first.run, first.lineage, {0: 100}, dead_share=0.25)
        assert log.standing().dead_share == asked() == 0.25
        before = log.standing()
        log.write(first.run, first.lineage, {}, dead_share=0.2501)  # which is no news
        assert log.standing() == before
        log.write(first.run, first.lineage, {}, dead_share=0.0)
        assert log.standing().dead_share == asked() == 0.0
        log.write(first.run, first.lineage, {}, dead_share=0.5)
        assert log.standing().ended == {}
        begin_run(place.folder)
        assert log.standing().dead_share == asked() == 0.0


def test_of_two_runs_that_begin_at_once_each_has_a_number_of_its_own(place: Place) -> None:
    with log_of_new(place) as one, log_of(place) as other:
        runs = [log.begin(LINEAGE) for log in (one, other, one, other)]
    assert runs == sorted(set(runs))


def log_of_new(place: Place) -> ProgressLog:
    create_topic(place.folder.topic_url("progress"), place.folder.topic_settings("progress", 1)).close()
    return log_of(place)


def test_progress_survives_compaction(make: Make) -> None:
    place = make()
    plan = begin_run(place.folder)
    with log_of(place) as log:
        for step in range(200):
            log.write(plan.run, plan.lineage, {step % 4: step})
        with open_topic(place.folder.topic_url("progress")) as topic:
            topic.maintain()
        with log_of(place) as fresh:
            assert {lot: one.watermark_ms for lot, one in fresh.standing().lots.items()} == {
                0: 196,
                1: 197,
                2: 198,
                3: 199,
            }
            assert fresh.standing().run == plan.run


def test_the_first_run_reads_everything_and_the_next_from_t0(place: Place) -> None:
    first = begin_run(place.folder)
    assert first.start_ms is None
    with log_of(place) as log:
        log.write(first.run, first.lineage, {lot: T_MS + lot for lot in range(3)})
        assert begin_run(place.folder).start_ms is None  # of one lot nothing is known
        third = begin_run(place.folder)
        log.write(third.run, third.lineage, {3: T_MS + 500})
    fourth = begin_run(place.folder)
    assert fourth.start_ms == T_MS - longest_window_ms(place.folder) - DISORDER_MS
    assert fourth.read_from_ms == fourth.start_ms - longest_window_ms(place.folder)
    assert longest_window_ms(place.folder) == 3_600_000


def shorter_of(folder: AppFolder) -> AppFolder:
    """The same application, whose longest window is now ten minutes."""
    fast, slow = folder.app.groups
    groups = (fast, replace(slow, wait_s=60, window_s=600))
    return small_folder(folder.folder, replace(folder.app, groups=groups), folder.settings)


def test_after_windows_were_shortened_rows_open_in_the_longer_ones_are_read_again_until_written(place: Place) -> None:
    shorter = shorter_of(place.folder)
    first = begin_run(place.folder)
    with log_of(place) as log:
        log.write(first.run, first.lineage, dict.fromkeys(range(4), T_MS))
        assert begin_run(place.folder).start_ms == T_MS - 3_600_000 - DISORDER_MS
        assert begin_run(shorter).start_ms == T_MS - 3_600_000 - DISORDER_MS
        second = begin_run(shorter)  # the one before wrote nothing
        assert second.start_ms == T_MS - 3_600_000 - DISORDER_MS
        log.write(second.run, second.lineage, dict.fromkeys(range(4), T_MS - 1_000_000))
        log.write(second.run, second.lineage, {0: T_MS + 500, 1: T_MS, 2: T_MS + 500})  # and it dies
        third = begin_run(shorter)
        assert third.start_ms == T_MS - 3_600_000 - DISORDER_MS
        log.write(third.run, third.lineage, dict.fromkeys(range(4), T_MS + 500))
    assert begin_run(shorter).start_ms == T_MS + 500 - 600_000 - DISORDER_MS


def test_of_progress_of_the_release_before_the_current_windows_count(place: Place) -> None:
    shorter, plan = shorter_of(place.folder), begin_run(place.folder)
    with log_of(place) as log:
        log.write(log.begin(plan.lineage), plan.lineage, dict.fromkeys(range(4), T_MS))
    assert begin_run(shorter).start_ms == T_MS - 600_000 - DISORDER_MS


@given(
    st.dictionaries(st.integers(0, 7), st.integers(0, 10**9), max_size=8),
    st.integers(1, 8),
    st.integers(0, 10**6),
    st.integers(0, 10**5),
)
def test_no_impression_that_may_still_owe_a_sample_is_before_t0(
    watermarks_ms: dict[int, int], lots: int, window_ms: int, disorder_ms: int
) -> None:
    found = start_ms(watermarks_ms, lots, window_ms, disorder_ms)
    if any(lot not in watermarks_ms for lot in range(lots)):
        assert found is None
        return
    assert found is not None
    for lot in range(lots):
        # The oldest impression whose last sample is due at or after what its lot has acknowledged.
        owing_ms = watermarks_ms[lot] - window_ms
        assert found <= owing_ms - disorder_ms


def test_progress_of_other_lots_or_other_topics_is_refused(place: Place) -> None:
    plan = begin_run(place.folder)
    with log_of(place) as log:
        log.write(plan.run, plan.lineage, {0: 1})
    urls = {name: place.folder.topic_url(name) for name in ("impressions", "actions", "progress", "dead_letters")}
    other = small_folder(
        place.folder.folder, settings=msgspec.convert({"topics": urls, "ingest": {"lots": 8}}, Settings)
    )
    with pytest.raises(ConfigError, match=r"progress of 4 lots, but ingest.lots is 8") as caught:
        begin_run(other)
    assert "set ingest.lots back" in caught.value.help
    delete_topic(place.impressions.url)
    create_topic(place.impressions.url, place.actions.settings()).close()
    with pytest.raises(TopicReplaced, match="the current ones are"):
        begin_run(place.folder)


def test_progress_of_the_release_before_is_of_the_same_samples(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    app, plan = place.folder.app, begin_run(place.folder)
    for fingerprint, lines in ((app.features.fingerprint, 0), ("others", 1)):
        before = msgspec.structs.replace(plan.lineage, feature_fingerprint=fingerprint)
        with log_of(place) as log:
            log.write(log.begin(before), before, dict.fromkeys(range(4), 100))
        caplog.clear()
        begin_run(place.folder)
        assert len([one for one in caplog.messages if "has other features or windows" in one]) == lines


def test_topics_of_different_partitions_are_refused(place: Place) -> None:
    delete_topic(place.actions.url)
    create_topic(place.actions.url, TopicSettings(partitions=3, retention_ms=-1, segment_bytes=1 << 20)).close()
    with pytest.raises(ConfigError, match=r"has 1 partitions and .* has 3"):
        begin_run(place.folder)


def test_a_progress_topic_of_several_partitions_or_of_other_records_is_refused(place: Place) -> None:
    url = place.folder.topic_url("progress") + "-other"
    with pytest.raises(ConfigError, match="has 2 partitions"):
        ProgressLog(create_topic(url, TopicSettings(partitions=2, compacted=True, retention_ms=-1)))
    delete_topic(url)
    with create_topic(url, TopicSettings(compacted=True, retention_ms=-1)) as topic, topic.writer() as writer:
        writer.append(0, [b"\xc3\x01garbage!"], [b"k"])
    with ProgressLog.open(url, place.folder.access) as log, pytest.raises(BadRecord, match="another schema"):
        log.standing()
    delete_topic(url)
