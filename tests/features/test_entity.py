"""Columns that are computed from interactions: what their declaration becomes, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from streamlearn.apps import App
from streamlearn.errors import SpecError
from streamlearn.features import Count, Dense, FeatureSpec, Label, LabelGroup, Last, Number, Rate, Since, Slot, Sum
from streamlearn.native import native

USER, VIDEO, TAB = Slot("user_id", "user"), Slot("video_id", "item"), Slot("tab", "user")
WATCHED = Slot(
    "watched", "user", multi=True, pooling="sequence", length=50, keys_of="video_id", computed=Last("video_id", "view")
)
TABS = Slot("tabs", "item", multi=True, keys_of="tab", computed=Last("tab", of=("click", "view"), length=5))
PAUSE = Slot("pause", "user", computed=Since("impression"), default=-1)
SEEN = Dense("seen", "user", width=4, computed=Count(of=("impression", "click"), windows=("1h", "7d")), default=0)
SPENT = Dense("spent", "user", computed=Sum("order", "30d"), default=0)
RATE = Dense("rate", "item", width=2, computed=Rate("click", "impression", ("1h", "1d"), (0.4, 20)), default=0)
ALL = FeatureSpec(slots=(USER, VIDEO, TAB, WATCHED, TABS, PAUSE), dense=(SEEN, SPENT, RATE), item_id="video_id")


def test_each_side_with_computed_columns_is_an_entity() -> None:
    user, item = ALL.entities
    assert (user.side, user.slot, [column.name for column in user.columns]) == (
        "user",
        "user_id",
        ["watched", "pause", "seen", "spent"],
    )
    assert (user.kinds, user.sources) == (("view", "impression", "click", "order"), ("video_id",))
    assert json.loads(user.definition) == {
        "id": user.id,
        "kinds": 4,
        "columns": 1,
        "features": [
            {"what": "last", "of": [0], "column": 0, "length": 50},
            {"what": "since", "of": [1]},
            {"what": "count", "of": [1, 2], "windows_ms": [3_600_000, 604_800_000]},
            {"what": "sum", "of": [3], "windows_ms": [2_592_000_000]},
        ],
    }
    assert (item.side, item.slot, item.kinds, item.sources) == (
        "item",
        "video_id",
        ("click", "view", "impression"),
        ("tab",),
    )
    assert json.loads(item.definition)["features"] == [
        {"what": "last", "of": [0, 1], "column": 0, "length": 5},
        {"what": "rate", "of": 0, "over": 2, "windows_ms": [3_600_000, 86_400_000], "prior": [0.4, 20.0]},
    ]
    for entity in ALL.entities:
        native.Features(entity.definition)


def test_without_computed_columns_there_is_no_entity_and_no_other_fingerprint() -> None:
    plain = FeatureSpec(slots=(USER, VIDEO), item_id="video_id")
    assert plain.entities == ()
    # As it was before columns could be computed.
    assert plain.fingerprint == "ea1926758921c075"
    assert replace(plain, user_id="user_id").fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    "other",
    [
        replace(WATCHED, computed=Last("video_id", "click")),
        replace(WATCHED, computed=Last("video_id", "view", length=20)),
        replace(WATCHED, computed=None),
    ],
)
def test_what_is_computed_is_part_of_the_fingerprints_and_of_the_definition(other: Slot) -> None:
    specs = [FeatureSpec(slots=(USER, VIDEO, watched, PAUSE), item_id="video_id") for watched in (WATCHED, other)]
    apps = [app_of(spec) for spec in specs]
    for one in ("fingerprint", "entities"):
        assert getattr(specs[0], one) != getattr(specs[1], one)
    assert apps[0].samples_fingerprint != apps[1].samples_fingerprint
    assert specs[0].entities[0].id != specs[1].entities[0].id


def test_a_definition_has_the_id_of_its_names_too() -> None:
    spec = FeatureSpec(slots=(USER, VIDEO, PAUSE), item_id="video_id")
    clicks = FeatureSpec(slots=(USER, VIDEO, replace(PAUSE, computed=Since("click"))), item_id="video_id")
    assert spec.entities[0].id != clicks.entities[0].id
    people = FeatureSpec(slots=(Slot("person", "user"), VIDEO, PAUSE), item_id="video_id", user_id="person")
    assert people.entities[0].slot == "person"
    assert spec.entities[0].id != people.entities[0].id


def app_of(spec: FeatureSpec, *more: Label) -> App:
    labels: tuple[Label, ...] = (
        Label("click", "click", "fast"),
        Label("view", "view", "fast"),
        Label("worth", "order", "fast", number=Number(missing=0.0)),
    )
    labels += more
    return App(name="shop", features=spec, groups=(LabelGroup("fast", 60, 600),), labels=labels)


def test_kinds_are_the_actions_of_labels_and_impressions() -> None:
    assert app_of(ALL).features is ALL
    spec = FeatureSpec(slots=(USER, VIDEO, replace(PAUSE, computed=Since("clicks"))), item_id="video_id")
    with pytest.raises(SpecError, match="the user side is of 'clicks', which no label is made of") as refused:
        app_of(spec)
    assert "click, view, order, impression" in refused.value.help
    sums = replace(SPENT, computed=Sum(("order", "click"), "30d"), width=2)
    with pytest.raises(SpecError, match="'spent' sums the values of click, which have none"):
        app_of(FeatureSpec(slots=(USER, VIDEO), dense=(sums,), item_id="video_id"))
    with pytest.raises(SpecError, match="an action is named 'impression'"):
        app_of(ALL, Label("shown", "impression", "fast"))


@pytest.mark.parametrize(
    ("given", "said", "help"),
    [
        ({"slots": (VIDEO, PAUSE)}, "no slot is known to name a user", "set user_id"),
        ({"user_id": "video_id"}, "user_id names slot 'video_id', which is item-side", "of the user side"),
        ({"slots": (replace(WATCHED, multi=False, pooling="sum", length=0),)}, "Last makes several", "multi=True"),
        ({"slots": (replace(WATCHED, keys_of=None),)}, "does not share the keys of 'video_id'", "keys_of='video_id'"),
        ({"slots": (replace(WATCHED, computed=Last("watched", "view")),)}, "'watched' has several values", "one value"),
        ({"slots": (replace(WATCHED, computed=Last("nothing", "view")),)}, "no slot is named 'nothing'", "the slots"),
        ({"slots": (replace(TABS, side="user", computed=Last("tab", "view")), TAB)}, "Last has no length", "of Last"),
        (
            {"slots": (WATCHED, replace(WATCHED, name="also", computed=Last("video_id", "view", 2)))},
            "'watched' and 'also' are columns of one history",
            "of one length",
        ),
        ({"slots": (replace(PAUSE, default=None),)}, "'pause' is computed and has no default", "set default"),
        ({"slots": (replace(PAUSE, value="str", default=""),)}, "Since is one whole number", "leave multi and value"),
        ({"slots": (replace(PAUSE, computed=Sum("view", "1h")),)}, "'pause': computed is Sum(", "Last, Since"),
        ({"slots": (replace(PAUSE, computed=Since(())),)}, "Since is of no kind", "name an action"),
        ({"slots": (replace(PAUSE, computed=Since(("view", "view"))),)}, "named twice", "once"),
        ({"slots": (replace(PAUSE, computed=Since("A b")),)}, "kind of interactions name 'A b'", "lower-case"),
        ({"slots": (replace(PAUSE, computed="since"),)}, "computed is 'since'", "Last, Since"),  # type: ignore[arg-type]
        ({"dense": (replace(SEEN, width=3),)}, "Count makes 4 numbers, and width is 3", "set width=4"),
        (
            {"dense": (replace(SEEN, computed=Last("video_id", "view")),)},
            "computed is Last(",
            "Count, Sum, Rate, Since",
        ),
        ({"dense": (replace(SPENT, computed=Sum("view", "1 h")),)}, "windows: '1 h' is not a duration", "such as 1m"),
        ({"dense": (replace(SPENT, computed=Sum("view", "99999d")),)}, "a window has 32 to", "limits"),
        ({"dense": (replace(RATE, computed=Rate("a", "b", ("1h", "1d"), (0.1, 0))),)}, "the weight above 0", "limits"),
        ({"dense": (replace(RATE, computed=Rate("a", "b", ("1h", "1d"), 3)),)}, "prior is 3", "how many interactions"),  # type: ignore[arg-type]
    ],
)
def test_a_declaration_that_cannot_be_computed_is_refused(given: dict[str, Any], said: str, help: str) -> None:
    slots = given.pop("slots", ())
    known = () if VIDEO in slots else (USER, VIDEO)
    with pytest.raises(SpecError) as refused:
        FeatureSpec(slots=(*known, *slots), item_id="video_id", **given)
    assert said in refused.value.message
    assert help in refused.value.help
