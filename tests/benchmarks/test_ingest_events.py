"""The events that ingest is measured on are written whole, in packs and one a record, and what is missing is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.result import Result
from benchmarks.streams.ingest_events import EventCounts, create_topics, history_of, write_events
from benchmarks.streams.ingest_place import APP
from streamlearn.apps import AppFolder, load_app
from streamlearn.events import EventDecoder
from streamlearn.topics import partition_of

EVENTS, PARTITIONS = 3_000, 3


@pytest.mark.parametrize("is_packed", [True, False], ids=["in packs", "one a record"])
def test_what_is_written_is_what_is_read(tmp_path: Path, is_packed: bool) -> None:
    folder = load_app(APP, [f"topics.root={tmp_path.as_uri()}"])
    create_topics(folder, PARTITIONS)
    written = write_events(folder, history_of(EVENTS, rate=50.0), is_packed=is_packed)
    assert 0.9 * EVENTS < written.events < 1.1 * EVENTS
    assert 0.03 < written.actions / written.impressions < 0.07
    assert 220 < written.impressions_bytes / written.impressions < 300
    assert read(folder, is_packed) == (written.impressions, written.actions, written.items)


def read(folder: AppFolder, is_packed: bool) -> tuple[int, int, int]:
    """Impressions, actions and items in the topics, each event where its key belongs, and an end mark behind them."""
    decoder = EventDecoder.of(folder)
    impressions = actions = items = 0
    for name in ("impressions", "actions"):
        with folder.open_topic(name) as topic, topic.reader() as reader:
            for partition in range(topic.partitions):
                records = reader.read(partition, 0, max_records=EVENTS * 2, max_bytes=1 << 30)
                assert records.next_offset == reader.end(partition)
                events = decoder.decode(records.values)
                assert not events.failures
                assert len(events.controls) == 1
                found = events.impressions if name == "impressions" else events.actions
                assert {partition_of(one.encode(), topic.partitions) for one in found.texts("request_id")} == {
                    partition
                }
                assert len(records) == len(found) + 1 if not is_packed else len(records) < len(found)
                impressions += len(events.impressions)
                actions += len(events.actions)
                items += len(events.impressions.columns["items.item_id"])
    return impressions, actions, items


def test_a_figure_that_could_not_be_measured_is_in_the_json_and_no_figure() -> None:
    result = Result("ingest", unmeasured={"flink_events_per_s": "no Java"})
    said = json.loads(result.line())
    assert said["not measured"] == {"flink_events_per_s": "no Java"}
    assert "flink_events_per_s" not in said["figures"]
    assert EventCounts(20, 1, 30, 5_000, 1.0).events == 21
