"""The Producer: packing, lingering, order, partitions, bounds, and what it says when a topic fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from streamlearn.errors import BadRecord, ConfigError, Oversize, UsageError
from streamlearn.events import EventColumns, EventDecoder, EventEncoder, Producer, pack, record_packer
from streamlearn.schemas import CONTROL, EVENT_PACK
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.settings import EventSettings
from streamlearn.settings.join import MarksSettings
from streamlearn.testing import ManualClock, small_app, small_impression, wait_until
from streamlearn.topics import (
    delete_topic,
    partition_of,
)
from tests.events.place import Place, new_topic, values, written

DECODER = EventDecoder(small_app(), EventSettings())


def give(producer: Producer, requests: Iterable[int]) -> None:
    for request in requests:
        producer.impression(**small_impression(request))
        producer.action(f"q{request}", 1_700_000_000_000 + request, 7, "click")


def rows_of(events: EventColumns) -> dict[str, dict[str, Any]]:
    """Each impression's values by request id, whatever the order of partitions."""
    columns, found = events.columns, {}
    for row, request_id in enumerate(events.texts("request_id")):
        begin, end = columns["items[]"][row : row + 2]
        tags_at = columns["items.tags[]"][begin : end + 1]
        history_at = columns["user.history[]"][row : row + 2]
        topics_at = columns["items.topics[]"][begin : end + 1]
        found[request_id] = {
            "event_time_ms": int(columns["event_time_ms"][row]),
            "served_version": int(columns["served_version"][row]) if columns["served_version?"][row] else None,
            "page": events.texts("segments.page")[row],
            "user_id": int(columns["user.user_id"][row]),
            "history": columns["user.history"][slice(*history_at)].tolist(),
            "age": float(columns["user.age"][row]),
            "video_id": columns["items.video_id"][begin:end].tolist(),
            "vector": columns["items.vector"][3 * begin : 3 * end].tolist(),
            "tags": events.texts("items.tags")[tags_at[0] : tags_at[-1]],
            "topics": columns["items.topics"][topics_at[0] : topics_at[-1]].tolist(),
            "weights": columns["items.topics_weights"][topics_at[0] : topics_at[-1]].tolist(),
            "fresh": events.texts("items.segment_fresh")[begin:end],
        }
    return found


def expected_row(request: int) -> dict[str, Any]:
    given = small_impression(request)
    items = given["items"]
    return {
        "event_time_ms": given["event_time_ms"],
        "served_version": given["served_version"],
        "page": given["segments"]["page"],
        "user_id": given["user"]["user_id"],
        "history": given["user"]["history"],
        "age": given["user"]["age"],
        "video_id": [item["video_id"] for item in items],
        "vector": [number for item in items for number in item["vector"]],
        "tags": [tag for item in items for tag in item["tags"]],
        "topics": [topic for item in items for topic in item["topics"]],
        "weights": [weight for item in items for weight in item["topics_weights"]],
        "fresh": [item["segment_fresh"] for item in items],
    }


def test_impressions_given_one_by_one_come_back_as_they_were(place: Place) -> None:
    with place.producer() as producer:
        give(producer, range(40))
    events = DECODER.decode(values(place.impressions))
    assert events.failures == ()
    assert rows_of(events.impressions) == {f"q{request}": expected_row(request) for request in range(40)}
    done = DECODER.decode(values(place.actions)).actions
    assert sorted(done.texts("request_id")) == sorted(f"q{request}" for request in range(40))
    assert set(done.texts("action")) == {"click"}
    assert set(done.columns["item_id"].tolist()) == {7}


@pytest.mark.parametrize("at_once", [False, True])
def test_no_pack_has_more_items_than_the_marks_take_of_one_record(
    place: Place, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    bounds = {vars(module)["RECORD_ITEMS_MAX"] for module in (record_packer, pack)}
    assert bounds == {MarksSettings().record_items_max}
    monkeypatch.setattr(record_packer if at_once else pack, "RECORD_ITEMS_MAX", 7)
    with place.producer() as producer:
        give(producer, range(40))
        if at_once:
            producer.flush()
            events = DECODER.decode(values(place.impressions)).impressions
    if at_once:
        encoder = EventEncoder(small_app(), EventSettings())
        packed = record_packer.pack_columns(encoder.impressions(events.columns, len(events)), 1, 500, 900_000)
        records = [record.value for record in packed]
    else:
        records = values(place.impressions)
    events = DECODER.decode(records).impressions
    assert len(events) == 40
    most = [int(events.item_base[events.record_index == at].max()) + 2 for at in range(len(records))]
    assert max(most) == 6


def test_columns_given_at_once_come_back_as_rows_given_one_by_one_do(place: Place) -> None:
    with place.producer() as producer:
        give(producer, range(40))
    rows = DECODER.decode(values(place.impressions)).impressions
    acts = DECODER.decode(values(place.actions)).actions
    again = Place(new_topic(), new_topic())
    with again.producer() as producer:
        producer.impressions(rows.columns, len(rows))
        producer.actions(acts.columns, len(acts))
    read = DECODER.decode(values(again.impressions))
    assert read.failures == ()
    assert rows_of(read.impressions) == rows_of(rows)
    assert sorted(DECODER.decode(values(again.actions)).actions.texts("request_id")) == sorted(acts.texts("request_id"))
    for topic in (again.impressions, again.actions):
        delete_topic(topic.url)


def test_columns_with_a_default_may_be_left_out(place: Place) -> None:
    columns: dict[str, Any] = {
        "request_id": np.frombuffer(b"ab", np.uint8),
        "request_id$": np.array([0, 1, 2], np.int32),
        "event_time_ms": np.array([5, 6], np.int64),
        "item_id": np.array([1, 2], np.int64),
        "action": np.frombuffer(b"clickclick", np.uint8),
        "action$": np.array([0, 5, 10], np.int32),
    }
    with place.producer() as producer:
        producer.actions(columns, 2)
    assert DECODER.decode(values(place.actions)).actions.columns["weight"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("by", ["rows", "columns"])
def test_a_record_holds_at_most_the_events_it_may(place: Place, by: str) -> None:
    _produce(place, by, 50, record_events_max=7)
    sizes = [len(EVENT_PACK.read(value[PREFIX_BYTES:])["events"]) for value in packs(place)]
    assert max(sizes) == 7
    assert sum(sizes) + len(values(place.impressions)) - len(sizes) == 50


@pytest.mark.parametrize("by", ["rows", "columns"])
def test_a_record_holds_at_most_the_bytes_it_may(place: Place, by: str) -> None:
    _produce(place, by, 100, record_bytes_max=1_500)
    found = values(place.impressions)
    assert max(map(len, found)) <= 1_500 - 256
    # Several to a record, or packing would be pointless.
    assert len(found) < 50
    assert len(DECODER.decode(found).impressions) == 100


@pytest.mark.parametrize("by", ["rows", "columns"])
def test_one_event_a_record_is_written_unpacked(place: Place, by: str) -> None:
    _produce(place, by, 9, record_events_max=1)
    assert len(values(place.impressions)) == 9
    assert packs(place) == []


def packs(place: Place) -> list[bytes]:
    return [value for value in values(place.impressions) if value.startswith(EVENT_PACK.prefix)]


def _produce(place: Place, by: str, count: int, **settings: Any) -> None:
    encoder = EventEncoder(small_app(), EventSettings())
    given = [small_impression(request) | {"shown_wall_ms": 5} for request in range(count)]
    with place.producer(**settings) as producer:
        if by == "rows":
            for one in given:
                producer.impression(**one)
        else:
            rows = DECODER.decode([encoder.impression(one) for one in given]).impressions
            producer.impressions(rows.columns, count)


def test_a_record_is_stamped_with_the_latest_event_time_in_it(place: Place) -> None:
    with place.producer() as producer:
        for time_ms in (500, 900, 700):
            producer.action("q", time_ms, 1, "click")
    assert [record.time_ms for record in written(place.actions)] == [900]


def test_quiet_events_leave_by_themselves(place: Place) -> None:
    with place.producer(linger_ms=1) as producer:
        give(producer, [1])
        wait_until(lambda: values(place.impressions) and values(place.actions), "events sent by lingering")


def test_events_wait_no_longer_than_they_linger_by_the_clock_given(place: Place) -> None:
    clock = ManualClock()
    with place.producer(clock, linger_ms=20) as producer:
        give(producer, [1])
        assert values(place.impressions) == []
        clock.sleep(1)
        wait_until(lambda: values(place.impressions), "events sent once the clock had moved")


def test_lingering_not_at_all_sends_each_event(place: Place) -> None:
    with place.producer(linger_ms=0) as producer:
        for request in range(5):
            give(producer, [request])
            wait_until(lambda: len(values(place.impressions)) == request + 1, "the event to be sent")  # noqa: B023


def test_columns_and_heartbeats_linger_no_longer_than_rows(place: Place) -> None:
    rows = DECODER.decode([EventEncoder(small_app(), EventSettings()).action(one) for one in _acts(0, 3)]).actions
    with place.producer(linger_ms=20) as producer:
        producer.actions(rows.columns, len(rows))
        wait_until(lambda: values(place.actions), "columns to be sent")
        producer.heartbeat(5)
        wait_until(lambda: len(values(place.impressions)) == 4, "heartbeats to be sent")


def test_flush_returns_when_all_is_written(place: Place) -> None:
    with place.producer() as producer:
        give(producer, range(9))
        assert values(place.impressions) == []
        producer.flush()
        assert len(DECODER.decode(values(place.impressions)).impressions) == 9


def test_events_of_one_request_keep_their_order_by_rows_and_columns_alike(place: Place) -> None:
    with place.producer(record_events_max=3) as producer:
        for number in range(5):
            producer.action("q", number, number, "click")
        done = DECODER.decode([EventEncoder(small_app(), EventSettings()).action(one) for one in _acts(5, 12)])
        producer.actions(done.actions.columns, 7)
        for number in range(12, 15):
            producer.action("q", number, number, "click")
    found = []
    for value in values(place.actions):
        found.extend(DECODER.decode([value]).actions.columns["item_id"].tolist())
    assert found == list(range(15))


def test_events_given_as_columns_keep_the_order_of_each_request(place: Place) -> None:
    acts = [one | {"request_id": f"q{number % 7}"} for number, one in enumerate(_acts(0, 400))]
    rows = DECODER.decode([EventEncoder(small_app(), EventSettings()).action(one) for one in acts]).actions
    with place.producer(record_events_max=9) as producer:
        producer.actions(rows.columns, len(rows))
    found: dict[str, list[int]] = {}
    for value in values(place.actions):
        done = DECODER.decode([value]).actions
        for request_id, item in zip(done.texts("request_id"), done.columns["item_id"].tolist(), strict=True):
            found.setdefault(request_id, []).append(item)
    assert found == {f"q{request}": list(range(request, 400, 7)) for request in range(7)}


def _acts(begin: int, end: int) -> list[dict[str, Any]]:
    return [
        {"request_id": "q", "event_time_ms": number, "item_id": number, "action": "click", "weight": 1.0}
        for number in range(begin, end)
    ]


def test_a_request_and_its_actions_meet_in_the_partition_of_kafkas_murmur2(place: Place) -> None:
    with place.producer(record_events_max=1) as producer:
        give(producer, range(30))
    shown = {record.key: record.partition for record in written(place.impressions)}
    done = {record.key: record.partition for record in written(place.actions)}
    assert shown == done == {f"q{n}".encode(): partition_of(f"q{n}".encode(), 4) for n in range(30)}
    assert set(shown.values()) == {0, 1, 2, 3}


def test_columns_go_to_the_partitions_rows_go_to(place: Place) -> None:
    _produce(place, "columns", 30, record_events_max=1)
    assert {record.key: record.partition for record in written(place.impressions)} == {
        f"q{n}".encode(): partition_of(f"q{n}".encode(), 4) for n in range(30)
    }


def test_topics_of_different_partition_counts_are_refused(place: Place) -> None:
    other = new_topic(3)
    with pytest.raises(ConfigError, match=r"has 4 partitions, .* has 3") as caught:
        Producer(place.folder(), impressions=place.impressions, actions=other)
    assert "same number" in caught.value.help
    delete_topic(other.url)


def test_a_producer_opens_the_topics_its_application_names(place: Place) -> None:
    with Producer(place.folder()) as producer:
        give(producer, [1])
    assert len(DECODER.decode(values(place.impressions)).impressions) == 1


@pytest.mark.parametrize("by", ["rows", "columns"])
def test_an_event_larger_than_a_record_is_refused_and_the_others_are_sent(place: Place, by: str) -> None:
    large = small_impression(1) | {"shown_wall_ms": 5}
    large["user"] = large["user"] | {"history": list(range(10_000, 11_000))}
    event = EventEncoder(small_app(), EventSettings()).impression(large)
    columns = DECODER.decode([event]).impressions.columns
    with place.producer(record_bytes_max=1_024) as producer:
        producer.impression(**small_impression(2))
        calls: dict[str, Callable[[], None]] = {
            "rows": lambda: producer.impression(**large),
            "columns": lambda: producer.impressions(columns, 1),
        }
        with pytest.raises(Oversize, match=r"has \d{4} bytes") as caught:
            calls[by]()
        assert "events.record_bytes_max" in caught.value.help
    assert DECODER.decode(values(place.impressions)).impressions.texts("request_id") == ["q2"]


def test_the_topics_own_limit_counts_too(place: Place) -> None:
    small = new_topic(record_bytes_max=1_000)
    with Producer(place.folder(), impressions=small, actions=place.actions) as producer:
        for request in range(30):
            producer.impression(**small_impression(request))
    assert len(DECODER.decode(values(small)).impressions) == 30
    assert max(len(record.value) + len(record.key or b"") for record in written(small)) <= 1_000
    delete_topic(small.url)


def test_a_refused_event_leaves_nothing_behind(place: Place) -> None:
    with place.producer() as producer:
        with pytest.raises(BadRecord, match="before 1970"):
            producer.action("q", -1, 7, "click")
        producer.action("q", 1, 7, "click")
    assert DECODER.decode(values(place.actions)).actions.columns["event_time_ms"].tolist() == [1]


def test_an_unknown_keyword_is_named(place: Place) -> None:
    with place.producer() as producer, pytest.raises(TypeError, match="unexpected keyword argument 'usr'"):
        producer.impression(**small_impression(1), usr={})  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"weight": [np.nan, 1]}, "action 0 of the columns: its weight is negative", id="nan"),
        pytest.param({"weight": [1e6, 2e6]}, "action 1 of the columns: its weight is negative, above", id="huge"),
        pytest.param({"weight": [1, -1]}, "action 1 of the columns: its weight is negative", id="negative"),
        pytest.param({"request_id$": [0, 0, 2]}, "action 0 of the columns: its request_id is empty", id="id"),
        pytest.param({"event_time_ms": [5, -6]}, "action 1 of the columns: its event_time_ms", id="time"),
        pytest.param({"item_id": [1]}, "'item_id': 1 values, expected 2", id="a short column"),
        pytest.param({"mood": [1, 2]}, "'mood': the schema has no such column", id="an unknown column"),
        pytest.param({"item_id": None}, "'item_id': missing", id="a missing column"),
    ],
)
def test_columns_at_fault_are_refused_by_row_and_rule(place: Place, change: dict[str, Any], said: str) -> None:
    columns: dict[str, Any] = {
        "request_id": np.frombuffer(b"ab", np.uint8),
        "request_id$": np.array([0, 1, 2], np.int32),
        "event_time_ms": np.array([5, 6], np.int64),
        "item_id": np.array([1, 2], np.int64),
        "action": np.frombuffer(b"clickclick", np.uint8),
        "action$": np.array([0, 5, 10], np.int32),
        "weight": np.ones(2, np.float32),
    }
    for name, given in change.items():
        kept = columns.pop(name, np.zeros(0, np.int64))
        if given is not None:
            columns[name] = np.array(given, kept.dtype)
    with place.producer() as producer, pytest.raises(BadRecord) as caught:
        producer.actions(columns, 2)
    assert said in caught.value.message
    assert caught.value.help
    assert values(place.actions) == []


def test_heartbeats_and_ends_reach_every_partition_after_what_came_before(place: Place) -> None:
    with place.producer(ManualClock(wall_ms=9)) as producer:
        producer.action("q", 3, 7, "click")
        producer.heartbeat(5)
        producer.end(6)
    partition = partition_of(b"q", 4)
    for topic in (place.impressions, place.actions):
        controls = [one for one in written(topic) if one.value.startswith(CONTROL.prefix)]
        assert [(one.partition, one.key, one.time_ms) for one in controls] == [
            (number, None, time_ms) for number in range(4) for time_ms in (5, 6)
        ]
    order = [one.time_ms for one in written(place.actions) if one.partition == partition]
    assert order == [3, 5, 6]
    events = DECODER.decode(values(place.actions))
    assert events.failures == ()
    assert sorted(events.controls.columns["kind"].tolist()) == [1] * 4 + [2] * 4
    assert set(events.controls.columns["wall_ms"].tolist()) == {9}


def test_a_closed_producer_takes_nothing_more(place: Place) -> None:
    producer = place.producer()
    producer.close()
    calls: list[Callable[[], None]] = [
        lambda: producer.action("q", 1, 7, "click"),
        lambda: producer.heartbeat(5),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="the producer is closed"):
            call()
    producer.close()
