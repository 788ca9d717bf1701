"""Samples of bounded history: the same as those of ingest, however history is cut into stretches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipelines import backfill
from streamlearn.apps import AppFolder, load_app
from streamlearn.errors import PositionLost, UsageError
from streamlearn.events import Producer
from streamlearn.features import Label, LabelGroup
from streamlearn.ingest import BackfillReport, HistoryRange, JoinPlan, ProgressLog, begin_run, run_backfill
from streamlearn.ingest.backfill import run
from streamlearn.ingest.backfill.stretch import cut_stretches, stretch_of
from streamlearn.ingest.join.columns import LetterKind
from streamlearn.schemas import DEAD_LETTER
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.testing import ManualClock, small_impression
from streamlearn.topics import TopicSettings, create_topic, delete_topic
from tests.ingest.history import STEP_MS, T_MS, Outcomes, fill, learned, messages, outcomes, records_of, write_app
from tests.ingest.slow_samples import impression_at, rows_made, slow_features
from tools.services import FlinkJobServer

REQUESTS = 240


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> AppFolder:
    folder = write_app(tmp_path_factory.mktemp("backfill") / "app", Path("/nowhere"), lots=3)
    fill(folder, 0, REQUESTS // 2)
    with folder.open_topic("impressions") as topic, topic.writer() as writer:
        writer.append(0, [b"garbage"], timestamps_ms=[T_MS + REQUESTS // 2 * STEP_MS])
    fill(folder, REQUESTS // 2, REQUESTS // 2, end=True)
    return folder


def backfilled(app: AppFolder, name: str, *more: str, runner: str = "direct") -> tuple[AppFolder, BackfillReport]:
    """A backfill to topics of its own, and the application that reads them."""
    root = app.topic_url("samples").rpartition("/")[0]
    changes = [f"topics.{topic}={root}/{name}.{topic}" for topic in ("samples", "dead_letters")]
    changed = load_app(app.folder, changes)
    for topic, partitions in (("samples", 3), ("dead_letters", 1)):
        create_topic(changed.topic_url(topic), changed.topic_settings(topic, partitions)).close()
    sets = [part for change in changes for part in ("--set", change)]
    return changed, backfill.run([str(app.folder), "--runner", runner, *sets, *more])


def letters(app: AppFolder) -> list[tuple[str, int, int, int, str]]:
    """Origin and reason of every dead letter."""
    with app.open_topic("dead_letters") as topic:
        found = [DEAD_LETTER.read(value[PREFIX_BYTES:]) for *_, value in records_of(topic)]
    return sorted((one["topic"], one["partition"], one["offset"], one["event_index"], one["reason"]) for one in found)


def test_what_is_learned_of_a_backfill_is_the_oracles_however_history_is_cut(app: AppFolder) -> None:
    expected = outcomes(app)
    whole, report = backfilled(app, "whole", "--set", "ingest.stretch_s=10000000")
    assert report.stretches == 1
    assert learned(whole) == expected
    assert len(expected) > 400
    assert report.counts["rows"] == sum(len(batch) for _, batch in messages(whole))
    assert report.counts["impressions"] == REQUESTS + REQUESTS // 4
    # Shorter than the longest window, which is an hour.
    parts, report = backfilled(app, "parts", "--set", "ingest.stretch_s=2500")
    assert report.stretches > 2
    assert learned(parts) == expected
    check_features(parts)
    _check_order(parts)
    # Each letter is of one stretch, and none is lost between two.
    found = letters(parts)
    assert found == letters(whole)
    assert len(set(found)) == len(found)
    assert {reason for *_, reason in found} == {"garbage", "late", "orphan"}


def test_a_backfill_passes_days_without_events(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", Path("/nowhere"), lots=2)
    with Producer(app) as producer:
        for number, day in enumerate((0, 0, 0, 20, 20)):
            shown = small_impression(number) | {"event_time_ms": T_MS + day * 86_400_000 + number * 1_000}
            producer.impression(**shown)
            producer.flush()
    # An action alone, of which there is a word to say.
    with Producer(app) as producer:
        producer.action("nobody", T_MS + 10 * 86_400_000, 7, "click")
    found, report = backfilled(app, "gap", "--set", "ingest.stretch_s=86400")
    assert report.stretches == 3
    assert learned(found) == outcomes(app)
    assert [reason for *_, reason in letters(found)] == ["orphan"]


def test_a_backfill_on_prism_is_learned_as_the_oracle_says(app: AppFolder, prism: Path) -> None:
    sets = ("--set", f"ingest.prism_location={prism}", "--set", "ingest.stretch_s=10000000")
    found, report = backfilled(app, "prism", *sets, "--prism_log_level=error", runner="prism")
    assert report.counts["rows"] == sum(len(batch) for _, batch in messages(found))
    assert learned(found) == outcomes(app)


# A worker of Beam that Flink ends may still read: its thread then ends with "Multiplexer hanging up".
@pytest.mark.filterwarnings(
    "ignore:Exception in thread read_grpc_client_inputs:pytest.PytestUnhandledThreadExceptionWarning"
)
def test_a_backfill_on_flink_is_learned_as_the_oracle_says(app: AppFolder, flink: FlinkJobServer) -> None:
    changes = [f"ingest.{one}_endpoint={getattr(flink, f'{one}_endpoint')}" for one in ("job", "artifact")]
    sets = [part for change in (*changes, "ingest.stretch_s=10000000") for part in ("--set", change)]
    found, report = backfilled(app, "flink", *sets, runner="flink")
    assert report.counts["rows"] == sum(len(batch) for _, batch in messages(found))
    assert learned(found) == outcomes(app)


def check_features(app: AppFolder) -> None:
    """Every sample has the features of its impression, byte for byte, and its times."""
    with app.open_topic("impressions") as topic:
        records = {(partition, offset): value for partition, offset, value in records_of(topic)}
    for row in rows_made(batch for _, batch in messages(app)):
        partition, offset, item = row.identity
        record = records[partition, offset]
        value, position = None, 0
        for first in range(item, -1, -1):  # the impression that the item is of
            try:
                value, position = impression_at(app.app, record, first), item - first
                break
            except AssertionError:
                continue
        assert value is not None
        assert row.user == slow_features(app.app, "user", value["user"])
        assert row.item == slow_features(app.app, "item", value["items"][position])
        assert row.times[:2] == (value["event_time_ms"], value["shown_wall_ms"])


def _check_order(app: AppFolder) -> None:
    """Whoever takes messages in their order never meets a row that an earlier one called old."""
    longest_ms, reached = 3_600_000, {0: 0, 1: 0, 2: 0}
    for partition, batch in messages(app):
        if len(batch):
            assert batch.settle_time_ms.max() < batch.header.watermark_ms
            assert batch.requests.event_time_ms.min() >= reached[partition] - longest_ms
        reached[partition] = max(reached[partition], batch.header.watermark_ms)
    assert len(set(reached.values())) == 1


def test_a_backfill_makes_samples_of_the_impressions_of_its_time_and_of_no_others(app: AppFolder) -> None:
    begin_ms, end_ms = T_MS + 80 * STEP_MS, T_MS + 130 * STEP_MS
    times = [f"{np.datetime64(one, 'ms')}" for one in (begin_ms, end_ms)]
    some, report = backfilled(app, "some", "--from", times[0], "--to", f"{times[1]}+00:00")
    assert (report.begin_ms, report.end_ms) == (begin_ms, end_ms)
    found = learned(some)
    shown_ms = _shown_ms(some)
    assert {shown_ms[identity] for identity, _ in found} <= set(range(begin_ms, end_ms))
    known = _shown_ms(load_app(app.folder), records=True)
    expected: Outcomes = {key: label for key, label in outcomes(app).items() if begin_ms <= known[key[0]] < end_ms}
    assert found == expected


def _shown_ms(app: AppFolder, *, records: bool = False) -> dict[tuple[int, int, int], int]:
    """The event time of each identity: that samples have, or that records have."""
    if not records:
        return {row.identity: row.times[0] for row in rows_made(batch for _, batch in messages(app))}
    from tests.ingest.history import events_of
    from tests.ingest.world import Shown

    return {
        (one.partition, one.offset, one.first + position): one.time
        for one in events_of(app)
        if isinstance(one, Shown)
        for position in range(len(one.items))
    }


def test_times_that_are_none_are_refused(app: AppFolder) -> None:
    with pytest.raises(UsageError, match="invalid time 'yesterday'"):
        backfill.run([str(app.folder), "--from", "yesterday"])
    with pytest.raises(UsageError, match="5 ms to 5 ms") as caught:
        HistoryRange(begin_ms=5, end_ms=5)
    assert "ends before it begins" in caught.value.help


def test_a_stretch_needs_what_lies_around_it() -> None:
    plan = JoinPlan((LabelGroup("fast", 6, 60),), (Label("click", "click", "fast"),), "topic")
    found = stretch_of(plan, 1_000_000, 2_000_000)
    assert found.impressions_ms[0] == 1_000_000 - 60_000
    assert found.actions_ms[1] == found.watermark_ms == 2_000_000 + 60_000
    assert found.impressions_ms[1] >= 2_060_000
    assert found.actions_ms[0] <= 940_000
    assert found.is_own(np.array([999_999, 1_000_000, 1_999_999, 2_000_000])).tolist() == [False, True, True, False]
    assert cut_stretches(100, 101, 100) == [(100, 101)]
    assert len(cut_stretches(0, T_MS, 86_400_000)) == 19_676


def test_history_of_more_stretches_than_can_be_looked_at_is_refused_with_its_times(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", Path("/nowhere"), lots=2)
    with Producer(app) as producer:
        for number, time_ms in enumerate((T_MS, 1_000 * T_MS)):
            producer.impression(**small_impression(number) | {"event_time_ms": time_ms})
            producer.flush()
    with pytest.raises(UsageError, match=f"from {T_MS} ms to 1700000000000... ms") as caught:
        run_backfill(app, runner="direct")
    assert "--to" in caught.value.help
    with pytest.raises(UsageError, match="stretches"):
        cut_stretches(0, 1 << 62, 86_400_000)
    assert run_backfill(app, HistoryRange(end_ms=T_MS + 1), runner="direct").counts["impressions"] == 1


def test_history_that_was_deleted_is_not_left_out_in_silence(tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", Path("/nowhere"), lots=2, partitions=1)
    delete_topic(folder.topic_url("impressions"))
    small = TopicSettings(partitions=1, retention_ms=-1, retention_bytes=10_000, segment_bytes=4_096)
    create_topic(folder.topic_url("impressions"), small).close()
    # A producer packs what comes while it writes into one record, which lies in one segment: several producers, several
    # segments, however fast they are.
    for first in range(0, 300, 50):
        fill(folder, first, 50)
    with folder.open_topic("impressions") as topic:
        topic.maintain()
        with topic.reader() as reader:
            assert reader.earliest(0) > 0
    with pytest.raises(PositionLost, match="may have been deleted"):
        run_backfill(folder, HistoryRange(begin_ms=T_MS), runner="direct")
    report = run_backfill(folder, HistoryRange(begin_ms=T_MS), runner="direct", accept_lost=True)
    assert 0 < report.counts["impressions"] < 300


def test_a_backfill_beside_ingest_makes_none_of_its_rows_late(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", Path("/nowhere"), lots=2)
    fill(app, 0, 40)
    run = begin_run(app)
    reached_ms = T_MS + 20 * STEP_MS
    with ProgressLog.open(app.topic_url("progress"), app.access) as log:
        log.write(run.run, run.lineage, dict.fromkeys(range(2), reached_ms))
    backfill.run([str(app.folder), "--runner", "direct"])
    found = [batch.header.watermark_ms for _, batch in messages(app)]
    assert max(found) == reached_ms
    assert {identity for identity, _ in learned(app)} == {identity for identity, _ in outcomes(app)}


def test_a_backfill_writes_no_watermark_ahead_of_the_wall(tmp_path: Path) -> None:
    write_app(tmp_path / "app", Path("/nowhere"), lots=2)
    app = load_app(tmp_path / "app", ["topics.time=wall"])
    fill(app, 0, 40)
    clock = ManualClock(T_MS + 41 * STEP_MS)
    run_backfill(app, HistoryRange(begin_ms=T_MS), changes=["topics.time=wall"], runner="direct", clock=clock)
    disorder_ms = round(app.settings.ingest.out_of_orderness_s * 1_000)
    assert max(batch.header.watermark_ms for _, batch in messages(app)) == clock.wall_ms() - disorder_ms


def test_records_of_a_fast_clock_end_no_stretch_of_a_backfill(tmp_path: Path) -> None:
    counts = []
    for name, fast in (("steady", 0), ("fast", 8)):
        app = write_app(tmp_path / name, Path("/nowhere"), lots=2)
        fill(app, 0, 40)
        for seed in range(10_000, 10_000 + fast):
            with Producer(app) as producer:
                shown = small_impression(seed) | {"event_time_ms": T_MS + 3_000 * STEP_MS}
                producer.impression(**shown)
                producer.action(shown["request_id"], shown["event_time_ms"], 0, "click")
        fill(app, 40, 40)
        within = HistoryRange(begin_ms=T_MS, end_ms=T_MS + 80 * STEP_MS)
        report = run_backfill(app, within, runner="direct")
        counts.append({name: report.counts[name] for name in ("impressions", "actions", "positives")})
    steady, fast_too = counts
    assert steady == fast_too
    assert min(steady.values()) > 0


def test_a_backfill_counts_every_kind_of_letter_under_its_own_name() -> None:
    assert list(run._LETTERS) == [kind.name.lower().replace("_", "s_", 1) for kind in LetterKind]
