"""Samples of joined rows: every value is the event's, none is lost, and no message is larger than it may be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from streamlearn.apps import AppFolder
from streamlearn.errors import ConfigError, PositionLost, TopicReplaced
from streamlearn.events import is_logged
from streamlearn.ingest import JoinCore, Joined, JoinPlan
from streamlearn.ingest.join.columns import LetterKind
from streamlearn.ingest.output.sample_maker import SampleMaker
from streamlearn.samples import SampleBatch, SampleCodec
from streamlearn.settings import Settings
from streamlearn.settings.events import SampleSettings
from streamlearn.testing import small_impression
from streamlearn.topics import TopicSettings, create_topic, delete_topic
from tests.ingest.conftest import Make
from tests.ingest.place import T_MS, Place, memory_root
from tests.ingest.slow_samples import rows_expected, rows_made
from tests.ingest.week import FOREVER_MS, read_week, week
from tests.library.place import library_app, shown

LOTS = 4


def through_bytes(folder: AppFolder, batches: list[SampleBatch]) -> list[SampleBatch]:
    """Batches as whoever reads them has them."""
    codec = SampleCodec(folder.app, folder.settings.samples)
    return [codec.decode(codec.encode(batch)) for batch in batches]


def test_every_value_of_a_sample_is_that_of_its_event(make: Make) -> None:
    given = week(make(partitions=2))
    joined = given.joined(rows_max=37)
    # The hour's labels are due after the shortest window: their impressions are read again.
    assert {int(back) for _, one in joined for back in one.requests.reads_back} == {0, 1}
    with given.maker() as maker:
        made = [batch for lot, one in joined for batch in maker.make(lot, one, 123)]
        assert maker.set_aside() == []
    found = rows_made(through_bytes(given.place.folder, made))
    expected = rows_expected(given.place.folder.app, (one for _, one in joined), given.records)
    assert len(found) > 200
    assert found == expected
    headers = [batch.header for batch in made]
    assert {one.lot for one in headers} == set(range(LOTS))
    lineage = given.lineage
    for one in headers:
        assert (one.watermark_ms, one.ingest_run, one.lots_count) == (123, 7, LOTS)
        assert (one.events_topic_id, one.window_settings) == (lineage.events_topic_id, lineage.window_settings)


@pytest.mark.parametrize("value", ["int", "str"])
def test_samples_have_the_ids_of_their_items_with_retrieval(make: Make, value: str) -> None:
    place = make(app=library_app(value))
    impressions = [shown(seed, value) for seed in range(60)]
    with place.producer() as producer:
        for impression in impressions:
            producer.impression(**impression)
        producer.end(T_MS + 10**8)
    given = read_week(place)
    folder = _with(given.place.folder, samples={"message_rows_max": 7})
    with given.maker(folder) as maker:
        made = [batch for lot, one in given.joined() for batch in maker.make(lot, one, 0)]
        (empty,) = through_bytes(folder, [maker.empty(3, 77)])
        assert maker.set_aside() == []
    assert (len(made) > 9, len(empty)) == (True, 0)
    found = [batch.item_ids.listed() for batch in through_bytes(folder, made) if batch.item_ids is not None]
    assert {one for ids in found for one in ids} == {item["video_id"] for one in impressions for item in one["items"]}


def test_a_batch_of_nothing_can_be_written_and_read(make: Make) -> None:
    given = week(make(), requests=3)
    with given.maker() as maker:
        (empty,) = through_bytes(given.place.folder, [maker.empty(3, 77)])
        assert (len(empty), empty.header.lot, empty.header.watermark_ms) == (0, 3, 77)
        core = JoinCore(JoinPlan.of(given.place.folder.app, "x", given.place.folder.settings.join))
        assert maker.make(0, core.take(10), 0) == []


@pytest.mark.parametrize(("rows_max", "bytes_max"), [(3, 1 << 20), (1_000, 2_600), (1_000, 4_000)])
def test_no_message_is_larger_than_it_may_be_and_no_row_is_lost(make: Make, rows_max: int, bytes_max: int) -> None:
    given = week(make())
    samples = {"message_rows_max": rows_max, "message_bytes_max": bytes_max}
    folder = _with(given.place.folder, samples=samples)
    joined = given.joined()
    with given.maker(folder) as maker:
        made = [maker.make(lot, one, 0) for lot, one in joined]
        assert maker.set_aside() == []
    assert max(map(len, made)) > 1
    whole = [batch for batches in made for batch in batches]
    # The codec refuses what is larger.
    found = rows_made(through_bytes(folder, whole))
    assert found == rows_expected(folder.app, (one for _, one in joined), given.records)
    if rows_max == 3:
        assert {len(batch) for batches in made for batch in batches[:-1]} == {3}


def test_a_message_says_no_later_watermark_than_the_times_of_rows_that_follow(make: Make) -> None:
    given = week(make())
    folder = _with(given.place.folder, samples={"message_rows_max": 7})
    with given.maker(folder) as maker:
        made: dict[int, list[SampleBatch]] = {}
        for lot, one in given.joined(rows_max=37):
            made.setdefault(lot, []).extend(maker.make(lot, one, T_MS + 10**8))
    for batches in made.values():
        assert len(batches) > 4
        assert batches[-1].header.watermark_ms == T_MS + 10**8
        for at, batch in enumerate(batches[:-1]):
            follow_ms = min(int(later.settle_time_ms.min()) for later in batches[at + 1 :])
            assert batch.header.watermark_ms == follow_ms


def test_a_message_ends_with_the_minute_of_its_64th_row(make: Make) -> None:
    given = week(make(), requests=900)
    joined = given.joined()
    with given.maker() as maker:
        made = [maker.make(lot, one, T_MS + 10**10) for lot, one in joined]
    assert max(map(len, made)) > 3
    for batch in (batch for batches in made for batch in batches):
        minutes = batch.settle_time_ms // 60_000
        assert (minutes[63:] == minutes[63:64]).all()
    for batches in made:
        ends = [int(batch.settle_time_ms[-1]) // 60_000 for batch in batches]
        assert all(len(batch) >= 64 for batch in batches[:-1])
        assert ends == sorted(ends)


def test_a_row_that_no_message_can_hold_is_set_aside(make: Make) -> None:
    given = week(make(), requests=40)
    with given.maker() as maker:
        small = len(SampleCodec(given.place.folder.app, Settings().samples).encode(maker.empty(0, 0)))
    folder = _with(given.place.folder, samples={"message_bytes_max": small + 1_000})
    joined = given.joined()
    rows = sum(len(one.rows) for _, one in joined)
    with given.maker(folder) as maker:
        made = [batch for lot, one in joined for batch in maker.make(lot, one, 0)]
        letters = maker.set_aside()
        assert maker.set_aside() == []
    through_bytes(folder, made)
    assert sum(map(len, made)) + len(letters) == rows
    for failure, origin in letters:
        assert failure.reason == "oversize"
        assert origin.topic_id == given.lineage.events_topic_id


def test_settings_under_which_no_message_fits_are_refused(make: Make) -> None:
    given = week(make(), requests=1)
    folder = given.place.folder
    # Below what settings allow: an application of few columns has small messages.
    settings = msgspec.structs.replace(folder.settings, samples=SampleSettings(message_bytes_max=300))
    with pytest.raises(ConfigError, match="message_bytes_max"):
        SampleMaker(replace(folder, settings=settings), given.lineage, 1)


def test_other_features_or_windows_than_were_joined_are_refused(make: Make) -> None:
    given = week(make(), requests=1)
    other = msgspec.structs.replace(given.lineage, window_settings="other")
    with pytest.raises(ConfigError, match="features or windows"):
        SampleMaker(given.place.folder, other, 1)


def test_one_read_serves_many_and_what_is_kept_is_bounded(make: Make) -> None:
    given = week(make())
    joined = given.joined(rows_max=20)
    with given.maker() as maker:
        back = maker._read_back
        fetches = back._meter.fetches._value.get()
        for lot, one in joined:
            maker.make(lot, one, 0)
        assert 0 < back._meter.fetches._value.get() - fetches <= 2
        assert back.held_bytes > 0
    bounds = msgspec.structs.replace(back._settings, read_back_bytes=9_000, blob_bytes=1)
    with given.maker() as maker:
        maker._read_back._settings = bounds
        made = []
        for lot, one in joined:
            made += maker.make(lot, one, 0)
            assert maker._read_back.held_bytes <= 9_000
        assert maker._read_back.held_bytes > 0
    assert rows_made(made) == rows_expected(given.place.folder.app, (one for _, one in joined), given.records)


def test_a_row_whose_record_is_gone_is_set_aside_with_its_origin_and_the_rest_is_made(tmp_path: Path) -> None:
    place = Place.make(f"{tmp_path.as_uri()}/")
    place.impressions.close()
    delete_topic(place.folder.topic_url("impressions"))
    small = TopicSettings(partitions=1, retention_ms=-1, retention_bytes=200_000, segment_bytes=8_192)
    place = replace(place, impressions=create_topic(place.folder.topic_url("impressions"), small))
    given = week(place)
    first = min(offset for _, offset in given.records)
    with given.place.producer() as producer:
        while place.impressions.reader().earliest(0) <= first + 3:
            producer.impression(**small_impression(1, items=50))
            producer.flush()
            place.impressions.maintain()
    earliest = place.impressions.reader().earliest(0)
    joined = given.joined()
    with given.maker() as maker:
        made = [batch for lot, one in joined for batch in maker.make(lot, one, 0)]
        letters = maker.set_aside()
    expected = rows_expected(place.folder.app, (one for _, one in joined), given.records)
    # Another row of the same take may bring the bytes.
    backs = [back for _, one in joined for back in _without_bytes(one)]
    lost = [row for row, back in zip(expected, backs, strict=True) if back and row.identity[1] < earliest]
    assert 0 < len(lost) < len(expected)
    assert rows_made(made) == [row for row in expected if row not in lost]
    assert [(origin.partition, origin.offset, origin.timestamp_ms) for _, origin in letters] == [
        (*row.identity[:2], row.times[0]) for row in lost
    ]
    assert {failure.reason for failure, _ in letters} == {"gone"}
    assert all(f"item {row.identity[2]} " in failure.detail for (failure, _), row in zip(letters, lost, strict=True))
    place.close()


def test_a_topic_that_was_made_anew_or_lost_its_end_is_refused(make: Make) -> None:
    given = week(make(), requests=20)
    (lot, joined), *_ = given.joined()
    joined = replace(joined, requests=replace(joined.requests, reads_back=np.ones(len(joined.requests), np.uint8)))
    beyond = replace(joined, requests=replace(joined.requests, offset=joined.requests.offset + 10**6))
    with given.maker() as maker, pytest.raises(PositionLost):
        maker.make(lot, beyond, 0)
    url = given.place.folder.topic_url("impressions")
    settings = given.place.impressions.settings()
    delete_topic(url)
    create_topic(url, settings).close()
    with given.maker() as maker, pytest.raises(TopicReplaced):
        maker.make(lot, joined, 0)


def test_letters_of_a_join_have_their_origin_and_reason(make: Make) -> None:
    given = week(make())
    (lot, core), *_ = given.joins()
    core.advance(T_MS + 10**9)
    core.take(1_000_000)  # rows that wait hold their impressions
    late = next(one for one in given.lots if one.lot == lot and len(one.impressions))
    core.add_impressions(late.impressions)
    core.add_actions(late.actions)
    core.advance(FOREVER_MS)
    letters = core.take(1_000_000).letters
    assert {LetterKind(int(kind)) for kind in letters.kind} >= {LetterKind.IMPRESSION_LATE, LetterKind.ACTION_LATE}
    with given.maker() as maker:
        found = maker.letters_of(letters)
    assert len(found) == len(letters)
    ids = {0: given.lineage.events_topic_id, 2: given.lineage.actions_topic_id}
    for row, (failure, origin) in enumerate(found):
        kind = int(letters.kind[row])
        assert failure.reason == ("late", "excess", "late", "orphan")[kind]
        assert origin.topic_id == ids[0 if kind < 2 else 2]
        assert (origin.partition, origin.offset) == (letters.partition[row], letters.offset[row])
        assert origin.timestamp_ms == letters.event_time_ms[row]
        assert failure.event_index == (-1 if kind < 2 else letters.index[row])
        assert bool(failure.bytes) == (kind < 2)
        assert failure.detail


def _without_bytes(joined: Joined) -> list[bool]:
    """For each row, whether nothing in the take brings its impression's bytes."""
    requests = joined.requests
    origins = list(
        zip(requests.partition.tolist(), requests.offset.tolist(), requests.first_item.tolist(), strict=True)
    )
    brought = {at for at, back in zip(origins, requests.reads_back.tolist(), strict=True) if not back}
    return [origins[request] not in brought for request in joined.rows.request_index.tolist()]


def test_actions_of_requests_that_serving_did_not_log_are_counted_apart_and_make_no_letters() -> None:
    place = Place.make(memory_root(), join={"logged_share": 0.5})
    unlogged = 0
    with place.producer() as producer:
        for seed in range(200):
            given = small_impression(seed) | {"event_time_ms": T_MS + seed * 1_000}
            request_id, item = given["request_id"], given["items"][0]["video_id"]
            if is_logged(request_id, 0.5):
                producer.impression(**given)
            else:
                unlogged += 1
            producer.action(request_id, T_MS + seed * 1_000 + 5, item, "click")
        producer.action("q0-of-nobody", T_MS, 7, "click")
        producer.end(T_MS + 10**8)
    given_week = read_week(place)
    cores = given_week.joins()
    joined = []
    for lot, core in cores:
        core.advance(FOREVER_MS)
        joined.append((lot, core.take(1_000_000)))
    counted = {name: sum(core.counters[name] for _, core in cores) for name in ("actions_unlogged", "actions_orphan")}
    nobody_is_logged = is_logged("q0-of-nobody", 0.5)
    assert 60 < unlogged < 140
    assert counted == {"actions_unlogged": unlogged + (not nobody_is_logged), "actions_orphan": int(nobody_is_logged)}
    with given_week.maker() as maker:
        assert sum(len(maker.letters_of(one.letters)) for _, one in joined) == int(nobody_is_logged)
        rows = rows_made(batch for lot, one in joined for batch in maker.make(lot, one, 0))
        assert maker.set_aside() == []
    clicks = sum(label[0] for row in rows for label in row.labels[:1])
    assert clicks == 200 - unlogged
    place.close()


def _with(folder: AppFolder, **sections: Any) -> AppFolder:
    said = msgspec.to_builtins(folder.settings)
    for name, values in sections.items():
        said[name] |= values
    return replace(folder, settings=msgspec.convert(said, Settings))
