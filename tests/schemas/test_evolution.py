"""Evolution: what one version of an application wrote, as another version of it reads it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from streamlearn.apps import App
from streamlearn.errors import ConfigError
from streamlearn.events import EventDecoder, EventEncoder, Events
from streamlearn.features import Dense, FeatureSpec, Label, LabelGroup, Segment, Slot
from streamlearn.schemas import EVENT_PACK, Schema, action_schema, impression_schema
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.settings import EventSettings

SETTINGS = EventSettings()
OLDER = App(
    "shop",
    FeatureSpec(
        slots=(Slot("user_id", "user"), Slot("video_id", "item")),
        dense=(Dense("age", "user"),),
        item_id="video_id",
        segments=(Segment("page"),),
    ),
    (LabelGroup("g", 60, 60),),
    (Label("click", "click", "g"),),
)


def with_slot(*slots: Slot) -> App:
    return replace(OLDER, features=replace(OLDER.features, slots=(*OLDER.features.slots, *slots)))


def with_dense(*dense: Dense) -> App:
    return replace(OLDER, features=replace(OLDER.features, dense=(*OLDER.features.dense, *dense)))


def with_segment(*segments: Segment) -> App:
    return replace(OLDER, features=replace(OLDER.features, segments=(*OLDER.features.segments, *segments)))


def with_label(*labels: Label) -> App:
    return replace(OLDER, labels=(*OLDER.labels, *labels))


# (the newer application, what it adds to the user, to an item, what an older event then holds)
ADDED: list[Any] = [
    pytest.param(
        with_slot(Slot("country", "user", value="str", default="NO")),
        {"country": "SE"},
        {},
        {"user": {"country": "NO"}},
        id="a text slot with a default",
    ),
    pytest.param(with_slot(Slot("kind", "item", default=0)), {}, {"kind": 4}, {"item": {"kind": 0}}, id="an item slot"),
    pytest.param(
        with_slot(Slot("tags", "item", multi=True)),
        {},
        {"tags": [1, 2]},
        {"item": {"tags": []}},
        id="a multi-valued slot",
    ),
    pytest.param(
        with_slot(Slot("likes", "user", multi=True, pooling="weighted")),
        {"likes": [1], "likes_weights": [0.5]},
        {},
        {"user": {"likes": [], "likes_weights": []}},
        id="a weighted slot",
    ),
    pytest.param(
        with_slot(Slot("seen", "user", multi=True, pooling="sequence", length=4)),
        {"seen": [1, 2]},
        {},
        {"user": {"seen": []}},
        id="a sequence",
    ),
    pytest.param(
        with_dense(Dense("price", "item", default=1.5)),
        {},
        {"price": 2.5},
        {"item": {"price": 1.5}},
        id="a number with a default",
    ),
    pytest.param(
        with_dense(Dense("mood", "user", width=2, default=0.5)),
        {"mood": [1.0, 2.0]},
        {},
        {"user": {"mood": [0.5, 0.5]}},
        id="a vector with a default",
    ),
    pytest.param(with_segment(Segment("country")), {}, {}, {"segments": {"country": ""}}, id="a segment of requests"),
    pytest.param(
        with_segment(Segment("fresh", "item")),
        {},
        {"segment_fresh": "new"},
        {"item": {"segment_fresh": ""}},
        id="a segment of items",
    ),
    pytest.param(
        with_label(Label("view", "view", "g")),
        {},
        {"served_score_view": 0.5},
        {"item": {"served_score_view": None}},
        id="a label",
    ),
]


def event(app: App, user: dict[str, Any], item: dict[str, Any]) -> bytes:
    return EventEncoder(app, SETTINGS).impression(
        {
            "request_id": "q1",
            "event_time_ms": 5,
            "shown_wall_ms": 6,
            "served_version": 7,
            "segments": {"page": "home"},
            "user": {"user_id": 8, "age": 0.5} | user,
            "items": [{"video_id": 11, "served_score_click": 0.25} | item, {"video_id": 12} | item],
        }
    )


def action(app: App) -> bytes:
    given = {"request_id": "q1", "event_time_ms": 9, "item_id": 11, "action": "click", "weight": 2.0}
    return EventEncoder(app, SETTINGS).action(given)


def schemas(app: App) -> list[Schema]:
    return [impression_schema(app), action_schema(app)]


def check_shared(events: Events) -> None:
    """What both versions know is as it was written."""
    assert events.failures == ()
    shown, done = events.impressions, events.actions
    assert shown.texts("request_id") == done.texts("request_id") == ["q1"]
    assert shown.columns["served_version"].tolist() == [7]
    assert shown.texts("segments.page") == ["home"]
    assert shown.columns["user.user_id"].tolist() == [8]
    assert shown.columns["user.age"].tolist() == [0.5]
    assert shown.columns["items.video_id"].tolist() == [11, 12]
    assert shown.columns["items.served_score_click?"].tolist() == [1, 0]
    assert done.columns["item_id"].tolist() == [11]
    assert done.columns["weight"].tolist() == [2.0]


def column(events: Events, path: str, expected: Any, count: int) -> None:
    """The column holds `expected` once a row of its side."""
    columns = events.impressions.columns
    if expected is None:
        assert columns[f"{path}?"].tolist() == [0] * count
    elif isinstance(expected, str):
        assert events.impressions.texts(path) == [expected] * count
    elif isinstance(expected, list):
        assert columns[f"{path}[]"].tolist() == [row * len(expected) for row in range(count + 1)]
        assert columns[path].tolist() == expected * count
    else:
        assert columns[path].tolist() == [expected] * count


@pytest.mark.parametrize(("newer", "user", "item", "filled"), ADDED)
def test_older_events_are_read_with_what_was_added_filled_in(
    newer: App, user: dict[str, Any], item: dict[str, Any], filled: dict[str, dict[str, Any]]
) -> None:
    events = EventDecoder(newer, SETTINGS, old=schemas(OLDER)).decode([event(OLDER, {}, {}), action(OLDER)])
    check_shared(events)
    reference = impression_schema(newer).read(event(OLDER, {}, {})[PREFIX_BYTES:], writer=impression_schema(OLDER))
    for place, fields in filled.items():
        for name, expected in fields.items():
            path = f"items.{name}" if place == "item" else f"{place}.{name}"
            column(events, path, expected, 2 if place == "item" else 1)
            for value in reference["items"] if place == "item" else [reference[place]]:
                assert value[name] == expected


@pytest.mark.parametrize(("newer", "user", "item", "filled"), ADDED)
def test_newer_events_are_read_by_the_older_application_without_what_was_added(
    newer: App, user: dict[str, Any], item: dict[str, Any], filled: dict[str, dict[str, Any]]
) -> None:
    record = event(newer, user, item)
    events = EventDecoder(OLDER, SETTINGS, old=schemas(newer)).decode([record, action(newer)])
    check_shared(events)
    reference = impression_schema(OLDER).read(record[PREFIX_BYTES:], writer=impression_schema(newer))
    assert reference == impression_schema(OLDER).read(event(OLDER, {}, {})[PREFIX_BYTES:])


@pytest.mark.parametrize(("newer", "user", "item", "filled"), ADDED)
def test_old_and_new_events_of_one_topic_become_one_set_of_columns(
    newer: App, user: dict[str, Any], item: dict[str, Any], filled: dict[str, dict[str, Any]]
) -> None:
    decoder = EventDecoder(newer, SETTINGS, old=schemas(OLDER))
    events = decoder.decode([event(newer, user, item), event(OLDER, {}, {}), event(newer, user, item)])
    assert events.failures == ()
    shown = events.impressions
    assert sorted(shown.record_index.tolist()) == [0, 1, 2]
    assert shown.columns["items.video_id"].tolist() == [11, 12] * 3
    rows = {record: row for row, record in enumerate(shown.record_index.tolist())}
    for name, given in user.items():
        values = shown.columns[f"user.{name}"]
        at = shown.columns.get(f"user.{name}[]", shown.columns.get(f"user.{name}$"))
        for record in (0, 2):
            row = rows[record]
            found = values[row] if at is None else values[at[row] : at[row + 1]]
            assert (found.tobytes().decode() if isinstance(given, str) else found.tolist()) == given


def test_old_and_new_events_alone_and_in_packs_become_one_set_of_columns() -> None:
    newer = with_slot(Slot("tags", "item", multi=True))
    old, new = event(OLDER, {}, {}), event(newer, {}, {"tags": [5, 6, 7]})
    pack = EVENT_PACK.write({"events": [old, new], "items": [2, 2]})
    events = EventDecoder(newer, SETTINGS, old=schemas(OLDER)).decode([new, old, pack, new])
    assert events.failures == ()
    shown = events.impressions.columns
    assert shown["items[]"].tolist() == [0, 2, 4, 6, 8, 10]
    assert shown["items.video_id"].tolist() == [11, 12] * 5
    assert events.impressions.texts("segments.page") == ["home"] * 5
    tags_at = shown["items.tags[]"]
    lists = [shown["items.tags"][begin:end].tolist() for begin, end in pairwise(tags_at.tolist())]
    from_old = {(1, 0), (2, 0)}
    for row in range(5):
        place = (int(events.impressions.record_index[row]), int(events.impressions.event_index[row]))
        assert lists[2 * row : 2 * row + 2] == [[] if place in from_old else [5, 6, 7]] * 2


@pytest.mark.parametrize(
    ("newer", "named"),
    [
        pytest.param(with_slot(Slot("country", "user")), "country", id="a user slot"),
        pytest.param(with_slot(Slot("kind", "item")), "kind", id="an item slot"),
        pytest.param(with_dense(Dense("price", "item")), "price", id="a number"),
        pytest.param(with_dense(Dense("mood", "user", width=2)), "mood", id="a vector"),
    ],
)
def test_what_is_added_without_a_default_is_refused_at_once_by_name(newer: App, named: str) -> None:
    with pytest.raises(ConfigError, match=f"'.*{named}'.*without a default") as caught:
        EventDecoder(newer, SETTINGS, old=schemas(OLDER))
    assert "a default" in caught.value.help


@pytest.mark.parametrize(
    ("newer", "named"),
    [
        pytest.param(
            replace(
                OLDER,
                features=replace(
                    OLDER.features, slots=(Slot("user_id", "user", value="str"), Slot("video_id", "item"))
                ),
            ),
            "user_id",
            id="another type of value",
        ),
        pytest.param(
            replace(
                OLDER,
                features=replace(OLDER.features, slots=(Slot("user_id", "user", multi=True), Slot("video_id", "item"))),
            ),
            "user_id",
            id="several values instead of one",
        ),
        pytest.param(
            replace(OLDER, features=replace(OLDER.features, dense=(Dense("age", "user", width=2),))),
            "age",
            id="a number made a vector",
        ),
        pytest.param(
            replace(
                OLDER,
                features=FeatureSpec(
                    slots=(Slot("user_id", "user"), Slot("video_id", "item", value="str")), item_id="video_id"
                ),
            ),
            "item_id",
            id="another type of item",
        ),
    ],
)
def test_what_may_never_change_is_refused_at_once_by_name(newer: App, named: str) -> None:
    old = schemas(OLDER) if named != "item_id" else [action_schema(OLDER)]
    with pytest.raises(ConfigError, match=named):
        EventDecoder(newer, SETTINGS, old=old)


def test_a_vector_of_another_width_is_read_and_then_refused_as_a_bad_value() -> None:
    wide = with_dense(Dense("mood", "user", width=2))
    wider = with_dense(Dense("mood", "user", width=3))
    assert impression_schema(wide).fingerprint == impression_schema(wider).fingerprint
    (failure,) = EventDecoder(wider, SETTINGS).decode([event(wide, {"mood": [1.0, 2.0]}, {})]).failures
    assert (failure.reason, failure.detail) == ("bad_value", "mood does not have 3 numbers")


def test_a_removed_feature_is_skipped_in_older_events() -> None:
    richer = with_dense(Dense("price", "item"))
    events = EventDecoder(OLDER, SETTINGS, old=schemas(richer)).decode(
        [event(richer, {}, {"price": 2.5}), action(richer)]
    )
    check_shared(events)


def test_features_in_another_order_are_read_by_name() -> None:
    turned = replace(OLDER, features=replace(OLDER.features, slots=OLDER.features.slots[::-1]))
    events = EventDecoder(turned, SETTINGS, old=schemas(OLDER)).decode([event(OLDER, {}, {}), action(OLDER)])
    check_shared(events)


def test_a_renamed_feature_is_one_removed_and_one_added() -> None:
    given = with_slot(Slot("town", "user", default=0))
    renamed = with_slot(Slot("city", "user", default=0))
    events = EventDecoder(renamed, SETTINGS, old=schemas(given)).decode([event(given, {"town": 7}, {})])
    assert events.impressions.columns["user.city"].tolist() == [0]


def test_a_renamed_application_reads_what_it_wrote_under_its_old_name() -> None:
    renamed = replace(OLDER, name="store")
    events = EventDecoder(renamed, SETTINGS, old=schemas(OLDER)).decode([event(OLDER, {}, {}), action(OLDER)])
    check_shared(events)


def test_without_the_older_schema_its_events_are_named_unknown() -> None:
    newer = with_slot(Slot("country", "user", default=0))
    (failure,) = EventDecoder(newer, SETTINGS).decode([event(OLDER, {}, {})]).failures
    assert failure.reason == "unknown_schema"
    assert f"{impression_schema(OLDER).fingerprint:016x}" in failure.detail


def test_actions_of_every_version_have_one_schema() -> None:
    for newer in (with_slot(Slot("country", "user")), with_label(Label("view", "view", "g"))):
        assert action_schema(newer).fingerprint == action_schema(OLDER).fingerprint
