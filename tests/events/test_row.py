"""One event from plain values: what is refused, and that the message names event, item and field."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from streamlearn.apps import App
from streamlearn.errors import BadRecord
from streamlearn.events import EventEncoder
from streamlearn.events.row import impression_row
from streamlearn.features import FeatureSpec, Label, LabelGroup, Slot
from streamlearn.schemas import action_schema, impression_schema
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.settings import EventSettings
from streamlearn.testing import small_app, small_impression
from tools.golden_records import ACTION, IMPRESSION

ENCODER = EventEncoder(small_app(), EventSettings(items_max=4))


def shown(**changes: Any) -> dict[str, Any]:
    return IMPRESSION | changes


def user(**changes: Any) -> dict[str, Any]:
    return shown(user=IMPRESSION["user"] | changes)


def item(**changes: Any) -> dict[str, Any]:
    """The second item changed, so that a message must count."""
    return shown(items=[IMPRESSION["items"][0], IMPRESSION["items"][1] | changes])


def without(given: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key != name}


# (the impression, what the message says, what the help says)
REFUSED: list[Any] = [
    pytest.param(shown(request_id=""), "impression '': request_id is ''", "1 to 256 bytes", id="no id"),
    pytest.param(shown(request_id=7), "request_id is 7", "a text", id="an id that is no text"),
    pytest.param(shown(request_id="é" * 129), "request_id is 'é", "1 to 256 bytes", id="a long id"),
    pytest.param(shown(event_time_ms="now"), "event_time_ms: expected an int, got 'now'", "", id="time"),
    pytest.param(shown(event_time_ms=True), "event_time_ms: expected an int, got True", "", id="a true time"),
    pytest.param(shown(event_time_ms=1.5), "event_time_ms: expected an int, got 1.5", "", id="half a time"),
    pytest.param(shown(event_time_ms=-1), "event_time_ms -1 is before 1970", "1970", id="before 1970"),
    pytest.param(shown(shown_wall_ms=1 << 63), "shown_wall_ms: 9223372036854775808", "64-bit", id="64 bits"),
    pytest.param(shown(served_version="v7"), "served_version: expected an int, got 'v7'", "", id="version"),
    pytest.param(shown(items=[]), "it has 0 items", "1 to 4 items", id="no items"),
    pytest.param(shown(items=IMPRESSION["items"] * 3), "it has 6 items", "1 to 4 items", id="too many items"),
    pytest.param(shown(items=[7]), "item 0: the item is 7 (int)", "a mapping", id="an item that is none"),
    pytest.param(shown(user=None), "user is None (NoneType)", "a mapping", id="unknown user"),
    pytest.param(
        shown(segments={"pgae": "home"}), "unknown user segment 'pgae'", "the segments are page", id="segment"
    ),
    pytest.param(shown(segments={"page": 1}), "segment page is 1", "texts", id="a segment's type"),
    pytest.param(shown(segments=["page"]), "segments is ['page'] (list)", "a mapping", id="segments' type"),
    pytest.param(
        shown(user=without(IMPRESSION["user"], "user_id")),
        "user_id is missing",
        "a default",
        id="missing slot",
    ),
    pytest.param(user(user_id="a"), "user_id: expected an int, got 'a' (str)", "FeatureSpec", id="slot type"),
    pytest.param(user(user_id=None), "user_id is missing", "a default", id="a slot of None"),
    pytest.param(user(user_id=-(1 << 63) - 1), "user_id: -9223372036854775809 does", "64-bit", id="slot bits"),
    pytest.param(user(country=7), "country: expected a text, got 7 (int)", "FeatureSpec", id="no text"),
    pytest.param(user(history=[1, "b"]), "history: expected an int, got 'b'", "", id="one of a list"),
    pytest.param(user(history="abc"), "history is 'abc'", "at most 4 values", id="a text for a list"),
    pytest.param(user(history=5), "history is 5", "at most 4 values", id="a number for a list"),
    pytest.param(user(history=[1] * 5), "history is [1, 1, 1, 1, 1]", "at most 4 values", id="a long list"),
    pytest.param(user(user_id=None), "user_id is missing", "a default", id="a required slot of None"),
    pytest.param(user(age="old"), "age: expected a number, got 'old'", "", id="a dense text"),
    pytest.param(user(age=math.nan), "age: nan is not finite", "finite float32", id="dense nan"),
    pytest.param(user(age=1e39), "age: 1e+39 is not finite as float32", "finite float32", id="beyond float32"),
    pytest.param(user(agee=1), "unknown user feature 'agee'", "the features are user_id, history", id="unknown"),
    pytest.param(item(video_id="a"), "item 1: video_id: expected an int", "", id="an item's slot"),
    pytest.param(item(vector=[1.0]), "item 1: vector has 1 numbers", "the column has 3", id="a narrow vector"),
    pytest.param(item(vector=0.5), "item 1: vector is 0.5", "a list of 3", id="a scalar for a vector"),
    pytest.param(item(vector="abc"), "item 1: vector is 'abc'", "a list of 3", id="a text for a vector"),
    pytest.param(item(vector=[0, 0, math.inf]), "item 1: vector: inf is not finite", "", id="an infinity"),
    pytest.param(
        item(topics=[1, 2], topics_weights=[1.0]),
        "topics has 2 values and 1 weights",
        "for each value",
        id="weights",
    ),
    pytest.param(item(topics=[1]), "topics has 1 values and 0 weights", "for each value", id="no weights"),
    pytest.param(
        item(topics=[1], topics_weights=None),
        "item 1: topics_weights is None",
        "for each value",
        id="null weights",
    ),
    pytest.param(item(topics=[1], topics_weights=[math.nan]), "item 1: topics_weights: nan", "finite", id="nan weight"),
    pytest.param(item(tags=[1]), "item 1: tags: expected a text, got 1", "", id="a tag that is no text"),
    pytest.param(item(segment_fresh=1), "item 1: segment fresh is 1", "texts", id="an item's segment"),
    pytest.param(item(segment_old="x"), "unknown item feature 'segment_old'", "video_id", id="unknown segment"),
    pytest.param(
        item(served_score_click="x"), "item 1: served_score_click: expected a number", "", id="a score's type"
    ),
    pytest.param(
        item(served_score_view=0.5), "unknown item feature 'served_score_view'", "video_id", id="unknown score"
    ),
]


@pytest.mark.parametrize(("given", "said", "advice"), REFUSED)
def test_an_impression_at_fault_is_refused_by_request_item_and_field(
    given: dict[str, Any], said: str, advice: str
) -> None:
    with pytest.raises(BadRecord) as caught:
        ENCODER.impression(given)
    assert caught.value.message.startswith(f"impression {given['request_id']!r}")
    assert said in caught.value.message
    assert advice in caught.value.help


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"request_id": ""}, "request_id is ''", id="no id"),
        pytest.param({"event_time_ms": None}, "event_time_ms: expected an int, got None", id="no time"),
        pytest.param({"event_time_ms": -5}, "event_time_ms -5 is before 1970", id="before 1970"),
        pytest.param({"item_id": "eleven"}, "item_id: expected an int, got 'eleven'", id="an item's type"),
        pytest.param({"action": ""}, "action is ''", id="no action"),
        pytest.param({"action": 5}, "action is 5", id="an action that is no text"),
        pytest.param({"weight": -1}, "weight is -1.0", id="a negative weight"),
        pytest.param({"weight": 3e38}, "weight is 3e+38", id="a weight that no step survives"),
        pytest.param({"weight": math.nan}, "weight: nan is not finite", id="a weight of nan"),
        pytest.param({"weight": True}, "weight: expected a number, got True", id="a weight of True"),
    ],
)
def test_an_action_at_fault_is_refused_by_request_and_field(changes: dict[str, Any], said: str) -> None:
    given = ACTION | changes
    with pytest.raises(BadRecord) as caught:
        ENCODER.action(given)
    assert caught.value.message.startswith(f"action on {given['request_id']!r}")
    assert said in caught.value.message
    assert caught.value.help


def test_a_text_that_is_no_unicode_is_refused() -> None:
    for given in (shown(request_id="\ud800"), user(country="\ud800")):
        with pytest.raises(BadRecord, match="surrogates"):
            ENCODER.impression(given)


def test_numpy_values_are_as_good_as_pythons() -> None:
    items: list[dict[str, Any]] = [
        {
            "video_id": np.int64(11),
            "tags": np.array(["été", ""]),
            "topics": np.array([5, 6], np.int32),
            "topics_weights": np.array([0.25, 1.5], np.float32),
            "vector": np.array([1, -2, 0], np.float64),
            "segment_fresh": "new",
            "served_score_click": np.float32(0.125),
        },
        {"video_id": np.uint64(2**40), "vector": (0, 0, 0.5)},
    ]
    given = shown(items=items, event_time_ms=np.int64(IMPRESSION["event_time_ms"]), served_version=np.int32(7))
    assert ENCODER.impression(given) == ENCODER.impression(IMPRESSION)


def test_what_has_a_default_may_be_left_out() -> None:
    lean = shown(segments=None, served_version=None, user={"user_id": 1}, items=[{"video_id": 1, "vector": [0] * 3}])
    read = impression_schema(small_app()).read(ENCODER.impression(lean)[PREFIX_BYTES:])
    assert read["segments"] == {"page": ""}
    assert read["user"] == {"user_id": 1, "history": [], "country": "", "age": 0.0}
    assert read["items"][0]["tags"] == []
    assert read["items"][0]["served_score_bought"] is None


def test_a_default_of_zero_is_a_default() -> None:
    spec = FeatureSpec(slots=(Slot("video_id", "item"), Slot("kind", "user", default=0)), item_id="video_id")
    app = App("shop", spec, (LabelGroup("g", 1, 1),), (Label("click", "click", "g"),))
    event = EventEncoder(app, EventSettings()).impression(shown(segments=None, user={}, items=[{"video_id": 1}]))
    assert impression_schema(app).read(event[PREFIX_BYTES:])["user"] == {"kind": 0}


def test_columns_of_one_history_of_two_lengths_are_refused() -> None:
    sequences = [Slot(name, "user", multi=True, pooling="sequence", length=4) for name in ("seen", "seconds")]
    spec = FeatureSpec(slots=(Slot("video_id", "item"), *sequences), item_id="video_id")
    app = App("shop", spec, (LabelGroup("g", 1, 1),), (Label("click", "click", "g"),))
    given = shown(segments=None, user={"seen": [1, 2], "seconds": [3]}, items=[{"video_id": 1}])
    with pytest.raises(BadRecord, match="seen has 2 values, seconds has 1 values"):
        EventEncoder(app, EventSettings()).impression(given)


def test_the_item_of_an_action_has_the_type_of_the_item_id() -> None:
    spec = FeatureSpec(slots=(Slot("sku", "item", value="str"),), item_id="sku")
    app = App("shop", spec, (LabelGroup("g", 1, 1),), (Label("click", "click", "g"),))
    encoder = EventEncoder(app, EventSettings())
    read = action_schema(app).read(encoder.action(ACTION | {"item_id": "a-11"})[PREFIX_BYTES:])
    assert read["item_id"] == "a-11"
    with pytest.raises(BadRecord, match="item_id: expected a text, got 11"):
        encoder.action(ACTION)


def test_none_is_a_value_left_out() -> None:
    given = small_impression(1)
    given["user"] |= {"country": None, "age": None}
    row = impression_row(small_app(), {"shown_wall_ms": 1, **given}, 16)
    assert (row["user"]["country"], row["user"]["age"]) == ("", 0.0)


def test_what_may_be_given_beside_features_is_named_too() -> None:
    given = {"shown_wall_ms": 1, **small_impression(1)}
    with pytest.raises(BadRecord, match="unknown user feature 'page'") as caught:
        impression_row(small_app(), given | {"user": given["user"] | {"page": "home"}}, 16)
    assert "pass the segments page as segments=" in caught.value.help
    item = given["items"][0] | {"served_score_clik": 0.5}
    with pytest.raises(BadRecord, match="unknown item feature 'served_score_clik'") as caught:
        impression_row(small_app(), given | {"items": [item]}, 16)
    assert "segment_fresh" in caught.value.help
    assert "served_score_click" in caught.value.help
