"""Events of items: what a Producer writes, refuses and promises, and the schema that others write by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streamlearn.apps import AppFolder
from streamlearn.errors import BadRecord, NotDelivered, Oversize, TopicMissing, UsageError
from streamlearn.events import Producer
from streamlearn.schemas.events import item_schema
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.settings.events import ITEM_ID_BYTES_MAX
from streamlearn.testing import ManualClock, small_app
from streamlearn.topics import delete_topic
from tests.library.place import T_MS, features, library_app, library_folder, made_topic, shown

FOLDER = library_folder(library_app())
TEXTS = library_folder(library_app("str"))


@contextmanager
def producing(folder: AppFolder, **options: Any) -> Iterator[Producer]:
    """A producer, with all topics; they are deleted afterwards."""
    names = ("impressions", "actions", "items")
    for name in names:
        made_topic(folder, name)
    try:
        with Producer(folder, **options) as producer:
            yield producer
    finally:
        for name in names:
            delete_topic(folder.topic_url(name))


def written(folder: AppFolder) -> list[tuple[bytes | None, int, dict[str, Any]]]:
    """All records of the topic of items: key, timestamp and value, which is never a pack."""
    schema, found = item_schema(folder.app), []
    with folder.open_topic("items") as topic, topic.reader() as reader:
        for partition in range(topic.partitions):
            records = reader.read(partition, 0)
            for key, time_ms, value in zip(records.keys, records.timestamps_ms.tolist(), records.values, strict=True):
                assert value is not None
                assert value.startswith(schema.prefix)
                found.append((key, time_ms, schema.read(value[PREFIX_BYTES:])))
    return sorted(found, key=lambda one: one[1])


def test_items_are_written_one_by_one_under_the_texts_of_their_ids() -> None:
    with producing(FOLDER) as producer:
        producer.item(7, T_MS, features(2))
        producer.item(-9, T_MS + 1, {"vector": [1.0, 2.0, 3.0]})
        producer.remove_item(7, T_MS + 2)
        producer.flush()
        full, least, removal = written(FOLDER)
    assert [one[:2] for one in (full, least, removal)] == [(b"7", T_MS), (b"-9", T_MS + 1), (b"7", T_MS + 2)]
    assert full[2] == {"item_id": 7, "event_time_ms": T_MS, "features": features(2)}
    assert least[2]["features"] == {"tags": [], "topics": [], "topics_weights": [], "vector": [1.0, 2.0, 3.0]}
    assert removal[2] == {"item_id": 7, "event_time_ms": T_MS + 2, "features": None}


def test_ids_may_be_texts() -> None:
    with producing(TEXTS) as producer:
        producer.item("käse/7", T_MS, features(1))
        producer.flush()
        assert written(TEXTS)[0][0] == "käse/7".encode()


@pytest.mark.parametrize(
    ("item_id", "given", "said"),
    [
        ("seven", features(1), "item 'seven': item_id: expected an int"),
        (1 << 63, features(1), "does not fit 64 bits"),
        (True, features(1), "expected an int"),
        (7, None, "item 7 has no features"),
        (7, [], "features is"),
        (7, {}, "vector is missing"),
        (7, features(1) | {"video_id": 7}, "unknown feature 'video_id'"),
        (7, features(1) | {"vector": [1.0]}, "vector has 1 numbers"),
        (7, features(1) | {"tags": ["x"] * 5_000}, "a list of at most 4096 values"),
    ],
)
def test_an_item_that_is_wrong_is_refused_and_nothing_is_written(item_id: Any, given: Any, said: str) -> None:
    with producing(FOLDER) as producer:
        with pytest.raises(BadRecord) as refused:
            producer.item(item_id, T_MS, given)
        assert said in f"{refused.value.message} {refused.value.help}"
        producer.item(8, T_MS, features(1))
        producer.flush()
        assert [key for key, *_ in written(FOLDER)] == [b"8"]


@pytest.mark.parametrize("item_id", ["", "x" * (ITEM_ID_BYTES_MAX + 1), "x" * 65_536])
def test_an_id_without_or_with_too_many_bytes_is_refused_wherever_it_comes(item_id: str) -> None:
    with producing(TEXTS) as producer:
        with pytest.raises(BadRecord, match=f"has {len(item_id)} bytes"):
            producer.item(item_id, T_MS, features(1))
        with pytest.raises(BadRecord, match=f"has {len(item_id)} bytes"):
            producer.remove_item(item_id, T_MS)
        wrong = shown(1, "str")
        wrong["items"][0]["video_id"] = item_id
        with pytest.raises(BadRecord, match=f"has {len(item_id)} bytes"):
            producer.impression(**wrong)


def test_times_of_the_future_and_before_1970_are_refused() -> None:
    live = library_folder(library_app(), topics={"time": "wall"})
    clock = ManualClock(wall_ms=T_MS)
    with producing(live, clock=clock) as producer:
        producer.item(7, T_MS + 599_000, features(1))
        with pytest.raises(BadRecord, match=r"item 7: event_time_ms .* is 601 s ahead"):
            producer.item(7, T_MS + 601_000, features(1))
        with pytest.raises(BadRecord, match="before 1970"):
            producer.remove_item(7, -1)


def test_an_item_larger_than_a_record_is_refused() -> None:
    folder = library_folder(library_app(), events={"record_bytes_max": 1_024})
    with producing(folder) as producer, pytest.raises(Oversize, match="the event of item '7' has"):
        producer.item(7, T_MS, features(1) | {"tags": ["x" * 1_100]})


def test_a_flush_states_items_that_were_lost() -> None:
    with producing(FOLDER) as producer:
        producer.item(7, T_MS, features(1))
        producer.flush()
        delete_topic(FOLDER.topic_url("items"))
        producer.item(8, T_MS, features(1))
        with pytest.raises(NotDelivered, match=r"up to 1 events in 1 records of .*items"):
            producer.flush()
        made_topic(FOLDER, "items")


def test_only_an_application_with_a_library_has_items() -> None:
    plain = library_folder(small_app())
    assert "items" not in plain.topics
    assert "items" in FOLDER.topics
    with producing(plain) as producer, pytest.raises(UsageError, match="has no library of items"):
        producer.item(7, T_MS, features(1))


def test_a_topic_that_is_missing_is_named_and_a_closed_producer_opens_none() -> None:
    folder = library_folder(library_app())
    for name in ("impressions", "actions"):
        made_topic(folder, name)
    with Producer(folder) as producer, pytest.raises(TopicMissing, match="items does not exist"):
        producer.item(7, T_MS, features(1))
    made_topic(folder, "items")
    with pytest.raises(UsageError, match="the producer is closed"):
        producer.item(7, T_MS, features(1))


def test_the_topic_is_compacted_and_its_schema_says_what_a_removal_is() -> None:
    settings = FOLDER.topic_settings("items", 3)
    assert (settings.compacted, settings.retention_ms, settings.partitions) == (True, -1, 3)
    described = json.loads(item_schema(FOLDER.app).text)
    assert described["name"] == "streamlearn.small.LibraryItem"
    assert described["fields"][2]["type"][0] == "null"
