"""Retention and compaction where they are ours: what goes, what stays, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from streamlearn.topics import TopicSettings
from tests.topics.places import SETTINGS, FixedClock, Place, read_all, values_of

NOW_MS = 1_700_000_000_000


@pytest.fixture(params=["memory", "file"])
def own_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Where retention and compaction are ours; Kafka's broker does them by itself, in its own time."""
    place = Place.of(request.param, tmp_path)
    yield place
    place.clean()


def test_compaction_keeps_the_last_record_of_each_key(own_place: Place) -> None:
    clock = FixedClock(NOW_MS)
    settings = TopicSettings(compacted=True, retention_ms=-1, segment_bytes=200, tombstones_keep_ms=1_000)
    with own_place.create(settings, clock) as topic, topic.writer() as writer, topic.reader() as reader:
        for at in range(40):
            writer.append(0, [b"%d" % at], [b"k%d" % (at % 3)], [NOW_MS])
        writer.append(0, [None], [b"k0"], [NOW_MS])
        for _ in range(8):
            writer.append(0, [b"other"], [b"k9"], [NOW_MS])
        topic.maintain()
        values = values_of(read_all(reader))
        assert values[:3] == [b"37", b"38", None]
        assert (reader.earliest(0), reader.end(0)) == (0, 49)
        assert values_of(read_all(reader, offset=5)) == values
        clock.now_ms += 2_000
        topic.maintain()
        assert values_of(read_all(reader))[:2] == [b"37", b"38"]
        assert None not in values_of(read_all(reader))


def test_retention_by_age_goes_by_the_records_own_times(own_place: Place) -> None:
    clock = FixedClock(NOW_MS)
    settings = replace(SETTINGS, retention_ms=10_000, segment_bytes=100)
    with own_place.create(settings, clock) as topic, topic.writer() as writer, topic.reader() as reader:
        for at in range(10):
            writer.append(0, [b"%d" % at], timestamps_ms=[NOW_MS + at * 1_000])
        clock.now_ms += 15_000
        topic.maintain()
        kept = values_of(read_all(reader))
        assert kept[-1] == b"9"
        assert b"1" not in kept
        assert reader.offset_for_time(0, NOW_MS + 8_000) == 8
        clock.now_ms += 10_000
        topic.maintain()
        assert (reader.earliest(0), reader.end(0)) == (10, 10)
        assert writer.append(0, [b"next"], timestamps_ms=[clock.now_ms]).tolist() == [10]
        assert values_of(read_all(reader)) == [b"next"]


def test_retention_by_size_drops_whole_old_segments(own_place: Place) -> None:
    settings = replace(SETTINGS, retention_bytes=1_000, segment_bytes=300)
    with own_place.create(settings) as topic, topic.writer() as writer, topic.reader() as reader:
        for at in range(100):
            writer.append(0, [b"%03d" % at + bytes(65)])
        kept = values_of(read_all(reader))
        assert 10 <= len(kept) <= 20
        assert (kept[-1] or b"")[:3] == b"099"
