"""The decoder: events told apart, identities kept, and every fault named without touching the others."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streamlearn.apps import App
from streamlearn.errors import BadRecord, ConfigError
from streamlearn.events import EventDecoder, EventEncoder, Events
from streamlearn.features import FeatureSpec, Label, LabelGroup, Slot
from streamlearn.schemas import (
    CONTROL,
    EVENT_PACK,
    PROGRESS,
    Schema,
    action_schema,
    impression_schema,
    schema_of,
)
from streamlearn.schemas.schema import MARKER, PREFIX_BYTES
from streamlearn.settings import EventSettings
from streamlearn.settings.join import RECORD_ITEMS_MAX
from streamlearn.testing import small_app, small_impression
from tools.golden_records import ACTION

APP = small_app()
SETTINGS = EventSettings(items_max=12, record_bytes_max=20_000)
DECODER = EventDecoder(APP, SETTINGS)
ENCODER = EventEncoder(APP, EventSettings())
IMPRESSION = impression_schema(APP)


def shown(seed: int, items: int = 2) -> bytes:
    return ENCODER.impression(small_impression(seed, items) | {"shown_wall_ms": 5})


def done(seed: int) -> bytes:
    return ENCODER.action(ACTION | {"request_id": f"q{seed}"})


def pack(*events: tuple[bytes, int]) -> bytes:
    return EVENT_PACK.write({"events": [one for one, _ in events], "items": [items for _, items in events]})


def value_of(seed: int, items: int = 2) -> dict[str, Any]:
    return IMPRESSION.read(shown(seed, items)[PREFIX_BYTES:])


def places(events: Events) -> list[tuple[str, int, int, int]]:
    """(request id, record, event, item base) of every impression."""
    found = events.impressions
    return sorted(
        zip(
            found.texts("request_id"),
            found.record_index.tolist(),
            found.event_index.tolist(),
            found.item_base.tolist(),
            strict=True,
        ),
        key=lambda place: place[1:],
    )


def test_no_records_are_no_events() -> None:
    events = DECODER.decode([])
    assert (len(events.impressions), len(events.actions), len(events.controls)) == (0, 0, 0)
    assert events.impressions.columns["items[]"].tolist() == [0]
    assert events.impressions.columns["items.video_id"].dtype == np.int64
    assert events.failures == ()


def test_events_alone_and_in_packs_are_told_apart() -> None:
    heartbeat = ENCODER.control("HEARTBEAT", 5, 6, "test")
    events = DECODER.decode([shown(1), pack((shown(2), 2), (done(2), 0), (heartbeat, 0)), done(3), heartbeat])
    assert places(events) == [("q1", 0, 0, 0), ("q2", 1, 0, 0)]
    assert sorted(zip(events.actions.texts("request_id"), events.actions.record_index.tolist(), strict=True)) == [
        ("q2", 1),
        ("q3", 2),
    ]
    assert sorted(events.controls.record_index.tolist()) == [1, 3]
    assert events.failures == ()


def test_an_items_index_counts_over_its_whole_record() -> None:
    record = pack((shown(1, 3), 3), (done(1), 0), (shown(2, 1), 1), (shown(3, 5), 5))
    assert places(DECODER.decode([shown(9), record])) == [
        ("q9", 0, 0, 0),
        ("q1", 1, 0, 0),
        ("q2", 1, 2, 3),
        ("q3", 1, 3, 4),
    ]


def test_every_pack_counts_its_items_from_its_own_beginning() -> None:
    first, second = pack((shown(1, 3), 3), (shown(2), 2)), pack((shown(3, 4), 4), (done(1), 0), (shown(4), 2))
    assert places(DECODER.decode([first, second, first])) == [
        ("q1", 0, 0, 0),
        ("q2", 0, 1, 3),
        ("q3", 1, 0, 0),
        ("q4", 1, 2, 4),
        ("q1", 2, 0, 0),
        ("q2", 2, 1, 3),
    ]


@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(lambda event: event[:-3], id="cut"),
        pytest.param(lambda event: b"{}", id="garbage"),
        pytest.param(lambda event: MARKER + bytes(8) + event[PREFIX_BYTES:], id="another schema"),
        pytest.param(lambda event: IMPRESSION.write(value_of(1, 3) | {"request_id": ""}), id="a bad value"),
    ],
)
def test_an_items_index_is_the_same_when_an_earlier_event_is_broken(
    break_it: Callable[[bytes], bytes],
) -> None:
    whole = DECODER.decode([pack((shown(1, 3), 3), (shown(2), 2), (shown(3), 2))])
    broken = DECODER.decode([pack((break_it(shown(1, 3)), 3), (shown(2), 2), (shown(3), 2))])
    assert places(broken) == places(whole)[1:]
    assert [failure.event_index for failure in broken.failures] == [0]


def with_item(**changes: Any) -> dict[str, Any]:
    value = value_of(3)
    return value | {"items": [value["items"][0], value["items"][1] | changes]}


def with_user(**changes: Any) -> dict[str, Any]:
    value = value_of(3)
    return value | {"user": value["user"] | changes}


# (the bytes, why they cannot be used, what is said)
FAILING: list[Any] = [
    pytest.param(shown(3)[:-3], "malformed", "items", id="cut"),
    pytest.param(shown(3)[:PREFIX_BYTES], "malformed", "request_id", id="a framing alone"),
    pytest.param(shown(3) + b"\0", "malformed", "1 bytes after the record's end", id="bytes added"),
    pytest.param(MARKER + bytes(8), "unknown_schema", "fingerprint 0000000000000000", id="an unknown schema"),
    pytest.param(PROGRESS.prefix + b"x", "unknown_schema", f"{PROGRESS.fingerprint:016x}", id="a schema of no event"),
    pytest.param(IMPRESSION.write(value_of(3) | {"request_id": ""}), "bad_value", "request_id is empty", id="no id"),
    pytest.param(
        IMPRESSION.write(value_of(3) | {"request_id": "x" * 257}),
        "bad_value",
        "longer than 256",
        id="a long id",
    ),
    pytest.param(IMPRESSION.write(value_of(3) | {"event_time_ms": -1}), "bad_value", "before 1970", id="before 1970"),
    pytest.param(IMPRESSION.write(value_of(3) | {"items": []}), "bad_value", "it has no items", id="no items"),
    pytest.param(shown(3, 13), "malformed", "items: more than 12 items", id="too many items"),
    pytest.param(
        IMPRESSION.write(with_user(history=[1] * 13)),
        "malformed",
        "user.history: more than 12 items",
        id="too many values",
    ),
    pytest.param(IMPRESSION.write(with_user(age=float("nan"))), "bad_value", "age is not finite", id="nan"),
    pytest.param(
        IMPRESSION.write(with_item(vector=[1.0, 2.0, float("inf")])),
        "bad_value",
        "vector is not finite",
        id="inf",
    ),
    pytest.param(
        IMPRESSION.write(with_item(vector=[1.0, 2.0])),
        "bad_value",
        "vector does not have 3 numbers",
        id="a dense width",
    ),
    pytest.param(
        IMPRESSION.write(with_item(topics=[1, 2], topics_weights=[1.0])),
        "bad_value",
        "topics_weights does not have one weight for each value",
        id="a weight missing",
    ),
    pytest.param(
        IMPRESSION.write(with_item(topics=[1], topics_weights=[float("nan")])),
        "bad_value",
        "topics_weights is not finite",
        id="a weight of nan",
    ),
    pytest.param(
        IMPRESSION.write(with_item(served_score_click=float("inf"))),
        "bad_value",
        "served_score_click is not finite",
        id="a score",
    ),
    pytest.param(action_schema(APP).write(ACTION | {"weight": -1.0}), "bad_value", "weight is negative", id="a weight"),
    pytest.param(action_schema(APP).write(ACTION | {"weight": 1.1e6}), "bad_value", "above 1,000,000", id="a huge one"),
    pytest.param(action_schema(APP).write(ACTION | {"request_id": ""}), "bad_value", "empty", id="an action's id"),
]


@pytest.mark.parametrize(("event", "reason", "said"), FAILING)
def test_an_event_at_fault_is_named_and_the_others_are_unharmed(event: bytes, reason: str, said: str) -> None:
    items = 13 if said == "more than 12 items" else 0 if said == "it has no items" else 2
    items = 0 if event.startswith(action_schema(APP).prefix) else items
    records = [shown(1), event, pack((shown(2), 2), (event, items), (shown(4), 2)), shown(5)]
    events = DECODER.decode(records)
    assert places(events) == [
        ("q1", 0, 0, 0),
        ("q2", 2, 0, 0),
        ("q4", 2, 2, 2 + items),
        ("q5", 3, 0, 0),
    ]
    alone, packed = events.failures
    assert (alone.record_index, alone.event_index) == (1, -1)
    assert (packed.record_index, packed.event_index) == (2, 1)
    for failure in (alone, packed):
        assert (failure.reason, failure.bytes) == (reason, event)
        assert said in failure.detail
    good = DECODER.decode([shown(1), shown(2), shown(4), shown(5)]).impressions
    order = np.argsort(events.impressions.record_index * 10 + events.impressions.event_index, kind="stable")
    found = events.impressions.columns["event_time_ms"][order].tolist()
    assert found == good.columns["event_time_ms"].tolist()


GARBAGE: list[Any] = [
    pytest.param(None, "0 bytes begins with nothing", id="a tombstone"),
    pytest.param(b"", "0 bytes begins with nothing", id="nothing"),
    pytest.param(b"{'request_id'}", "begins 7b 27", id="JSON"),
    pytest.param(MARKER + b"123", "begins c3 01", id="a short framing"),
]


@pytest.mark.parametrize(("value", "said"), GARBAGE)
def test_a_record_that_is_no_event_at_all_is_garbage(value: bytes | None, said: str) -> None:
    events = DECODER.decode([shown(1), value])
    assert len(events.impressions) == 1
    (failure,) = events.failures
    assert (failure.record_index, failure.event_index, failure.reason) == (1, -1, "garbage")
    assert failure.bytes == (value or b"")
    assert said in failure.detail


def test_an_event_too_short_for_its_framing_is_garbage_in_a_pack() -> None:
    for event in (b"", b"\xc3", MARKER + b"123"):
        events = DECODER.decode([pack((event, 0), (shown(1), 2), (event, 0))])
        assert len(events.impressions) == 1
        assert [(one.event_index, one.reason, one.bytes) for one in events.failures] == [
            (0, "garbage", event),
            (2, "garbage", event),
        ]


def test_an_oversize_record_is_not_even_looked_into() -> None:
    large = pack(*[(shown(seed, 12), 12) for seed in range(60)])
    assert len(large) > SETTINGS.record_bytes_max
    events = DECODER.decode([large, shown(1)])
    assert places(events) == [("q1", 1, 0, 0)]
    (failure,) = events.failures
    assert (failure.record_index, failure.event_index, failure.reason) == (0, -1, "oversize")
    assert failure.detail == f"{len(large)} bytes, above record_bytes_max of 20000"
    assert failure.bytes == large


def test_a_pack_whose_lists_differ_in_length_is_malformed_and_hides_no_other_packs_faults() -> None:
    lying = EVENT_PACK.write({"events": [shown(1), shown(2)], "items": [2]})
    cut = pack((shown(3), 2))[:-4]
    events = DECODER.decode([lying, pack((b"{}", 0), (shown(4), 2)), cut])
    assert places(events) == [("q4", 1, 1, 0)]
    assert [(one.record_index, one.event_index, one.reason) for one in events.failures] == [
        (0, -1, "malformed"),
        (1, 0, "garbage"),
        (2, -1, "malformed"),
    ]
    assert events.failures[0].detail == "a pack of 2 events with 1 item counts"
    assert events.failures[0].bytes == lying
    assert events.failures[2].bytes == cut


@pytest.mark.parametrize("told", [1, 3, 0])
def test_an_event_with_another_number_of_items_than_its_pack_says_is_refused(told: int) -> None:
    events = DECODER.decode([pack((shown(1), told), (done(2), 0))])
    assert (len(events.impressions), len(events.actions)) == (0, 1)
    (failure,) = events.failures
    assert failure.reason == "bad_value"
    assert failure.detail == f"the pack header declares {told} items, the event has 2"
    assert failure.bytes == shown(1)


def test_an_action_that_shows_items_by_its_pack_is_refused() -> None:
    events = DECODER.decode([pack((done(1), 4), (shown(2), 2))])
    assert [failure.detail for failure in events.failures] == ["the pack header declares 4 items, the event has 0"]
    assert places(events) == [("q2", 0, 1, 4)]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (2**31 - 1, "a pack of 2147483649 items"),
        (RECORD_ITEMS_MAX - 1, "a pack of 1048577 items; the limit is 1048576"),
        (-1, "a pack with a negative item count"),
    ],
)
def test_a_pack_whose_counts_could_not_tell_items_apart_is_refused_whole(told: int, said: str) -> None:
    events = DECODER.decode([pack((shown(1), told), (shown(2), 2)), shown(3)])
    assert places(events) == [("q3", 1, 0, 0)]
    (failure,) = events.failures
    assert (failure.reason, failure.event_index) == ("malformed", -1)
    assert failure.detail.startswith(said)


def test_a_pack_within_a_pack_is_garbage() -> None:
    inner = pack((shown(1), 2))
    events = DECODER.decode([pack((inner, 2), (shown(2), 2))])
    assert places(events) == [("q2", 0, 1, 2)]
    (failure,) = events.failures
    assert (failure.reason, failure.detail, failure.bytes) == ("garbage", "a pack inside a pack", inner)


def test_an_empty_pack_is_no_event() -> None:
    events = DECODER.decode([pack(), shown(1)])
    assert places(events) == [("q1", 1, 0, 0)]
    assert events.failures == ()


def test_only_the_first_rule_an_event_breaks_is_told() -> None:
    bad = IMPRESSION.write(with_user(age=float("nan")) | {"request_id": ""})
    (failure,) = DECODER.decode([bad]).failures
    assert failure.detail == "its request_id is empty"


def test_failures_come_in_the_order_of_the_records() -> None:
    records = [b"x", pack((b"y", 0), (shown(1)[:-1], 2), (b"z", 0)), b"w", shown(1)[:-1]]
    found = [(one.record_index, one.event_index) for one in DECODER.decode(records).failures]
    assert found == [(0, -1), (1, 0), (1, 1), (1, 2), (2, -1), (3, -1)]


def confluent(event: bytes, number: int) -> bytes:
    return struct.pack(">bI", 0, number) + event[PREFIX_BYTES:]


def test_confluent_framing_is_read_when_its_id_is_known() -> None:
    decoder = EventDecoder(APP, SETTINGS, registry={0: action_schema(APP), 7: IMPRESSION})
    events = decoder.decode([confluent(shown(1), 7), confluent(done(2), 0), shown(3)])
    assert events.failures == ()
    assert places(events) == [("q1", 0, 0, 0), ("q3", 2, 0, 0)]
    assert events.actions.texts("request_id") == ["q2"]


def test_confluent_framing_of_an_unknown_id_is_named_with_where_to_say_it() -> None:
    record = confluent(shown(1), 8)
    (failure,) = EventDecoder(APP, SETTINGS, registry={7: IMPRESSION}).decode([record]).failures
    assert (failure.reason, failure.bytes) == ("unknown_schema", record)
    assert failure.detail == "schema registry id 8 is not in topics.schema_ids"


def test_a_confluent_record_at_fault_keeps_its_own_framing() -> None:
    record = confluent(shown(1), 7)[:-1]
    (failure,) = EventDecoder(APP, SETTINGS, registry={7: IMPRESSION}).decode([record]).failures
    assert (failure.reason, failure.bytes) == ("malformed", record)


@pytest.mark.parametrize("schema", [PROGRESS, EVENT_PACK], ids=lambda schema: schema.name)
def test_an_older_schema_of_no_event_is_refused(schema: Schema) -> None:
    with pytest.raises(ConfigError, match=f"'{schema.name}' is not an event schema") as caught:
        EventDecoder(APP, SETTINGS, old=[schema])
    assert caught.value.help == "event schemas are Impression, Action, Control"


def test_an_older_schema_that_cannot_be_read_as_todays_is_refused_by_field() -> None:
    fields = [one for one in action_schema(APP).json["fields"] if one["name"] != "item_id"]
    old = schema_of(action_schema(APP).json | {"fields": fields})
    for given in ({"old": [old]}, {"registry": {7: old}}):
        with pytest.raises(ConfigError, match=r"older schema of Action .*'item_id'") as caught:
            EventDecoder(APP, SETTINGS, **given)
        assert '"Formats" in the documentation' in caught.value.help


def test_a_control_of_another_reader_is_read_by_every_application() -> None:
    record = CONTROL.write({"kind": "END", "event_time_ms": 1, "wall_ms": 2, "source": "x"})
    assert len(EventDecoder(small_app("other"), SETTINGS).decode([record]).controls) == 1


def test_columns_of_one_history_of_two_lengths_are_a_bad_value() -> None:
    sequences = [Slot(name, "user", multi=True, pooling="sequence", length=4) for name in ("seen", "seconds")]
    spec = FeatureSpec(slots=(Slot("video_id", "item"), *sequences), item_id="video_id")
    app = App("shop", spec, (LabelGroup("g", 1, 1),), (Label("click", "click", "g"),))
    value = {"request_id": "q", "event_time_ms": 1, "shown_wall_ms": 1, "served_version": None}
    value["items"] = [{"video_id": 1, "served_score_click": None}]
    schema = impression_schema(app)
    records = [
        schema.write(value | {"user": {"seen": [1] * seen, "seconds": [2] * seconds}})
        for seen, seconds in ((2, 2), (2, 1), (0, 0), (0, 3))
    ]
    events = EventDecoder(app, SETTINGS).decode(records)
    assert events.impressions.record_index.tolist() == [0, 2]
    assert [failure.record_index for failure in events.failures] == [1, 3]
    detail = "seconds and seen are columns of one history, and their lengths differ"
    assert {failure.detail for failure in events.failures} == {detail}


def test_columns_with_values_and_no_weights_for_them_are_refused() -> None:
    read = DECODER.decode([shown(seed, 4) for seed in range(3)]).impressions
    columns = {name: one for name, one in read.columns.items() if "topics_weights" not in name}
    with pytest.raises(BadRecord, match="topics has values but no topics_weights"):
        ENCODER.impressions(columns, len(read))


def test_a_score_where_there_is_none_may_be_anything() -> None:
    read = DECODER.decode([shown(1)]).impressions
    columns = dict(read.columns)
    columns["items.served_score_click"] = np.full(2, np.nan, np.float32)
    assert columns["items.served_score_click?"].tolist() == [0, 0]
    assert len(ENCODER.impressions(columns, 1).items) == 1
    columns["items.served_score_click?"] = np.ones(2, np.uint8)
    with pytest.raises(BadRecord, match="impression 0 of the columns: served_score_click is not finite"):
        ENCODER.impressions(columns, 1)
