"""The pack plan: order, offsets, the sequence block and its mask."""

from __future__ import annotations

import json

from streamlearn.features import Cross, Dense, FeatureSpec, PackColumn, PackSide, Slot
from streamlearn.testing import small_app


def test_a_sides_pooled_slots_come_as_declared_and_its_dense_columns_after_them() -> None:
    spec = FeatureSpec(
        slots=(
            Slot("b", "item", dim=3, table="t"),
            Slot("u", "user", dim=2, table="s"),
            Slot("a", "item", dim=3, table="t", multi=True, pooling="mean"),
        ),
        dense=(Dense("z", "item", width=2), Dense("y", "item")),
        item_id="b",
    )
    assert spec.pack.item.flat == (
        PackColumn("b", "t", "sum", 0, 3),
        PackColumn("a", "t", "mean", 3, 3),
        PackColumn("z", "", "dense", 6, 2),
        PackColumn("y", "", "dense", 8, 1),
    )
    assert spec.pack.item.flat_width == 9
    assert spec.pack.user.flat == (PackColumn("u", "s", "sum", 0, 2),)


def test_crosses_stand_between_slots_and_dense_columns_on_the_side_of_the_candidate_if_one_slot_is() -> None:
    slots = (Slot("u", "user", dim=2), Slot("w", "user", dim=2), Slot("b", "item", dim=2))
    crosses = (Cross("b", "u", dim=2), Cross("u", "w", dim=3, table="t", name="both"))
    spec = FeatureSpec(slots, item_id="b", dense=(Dense("z", "item"), Dense("y", "user")), derived=crosses)
    assert spec.pack.item.flat == (
        PackColumn("b", "main", "sum", 0, 2),
        PackColumn("b_x_u", "main", "sum", 2, 2, ("b", "u")),
        PackColumn("z", "", "dense", 4, 1),
    )
    assert [(one.name, one.at, one.of) for one in spec.pack.user.flat][2:] == [("both", 4, ("u", "w")), ("y", 7, ())]
    flat = spec.pack.to_json()["user"]["flat"]
    assert [column.get("of") for column in flat] == [None, None, ("u", "w"), None]
    assert "of" not in flat[0], "plans without crosses are what they were"


def test_sequences_stand_side_by_side_and_the_mask_is_the_last_channel() -> None:
    spec = FeatureSpec(
        slots=(
            Slot("video_id", "item"),
            Slot("watched", "user", multi=True, pooling="sequence", length=5, dim=4, table="w"),
            Slot("country", "user", dim=2, table="c"),
            Slot("seconds", "user", multi=True, pooling="sequence", length=5, dim=3, table="s"),
        ),
        item_id="video_id",
    )
    user = spec.pack.user
    assert user.sequence == (
        PackColumn("watched", "w", "sequence", 0, 4),
        PackColumn("seconds", "s", "sequence", 4, 3),
    )
    assert (user.sequence_length, user.sequence_width) == (5, 4 + 3 + 1)
    assert user.flat == (PackColumn("country", "c", "sum", 0, 2),)


def test_a_side_with_nothing_is_empty() -> None:
    spec = FeatureSpec(slots=(Slot("video_id", "item"),), item_id="video_id")
    assert spec.pack.user == PackSide((), 0, (), 0, 0)


def test_the_plan_of_the_small_application_is_this_one() -> None:
    pack = small_app().features.pack
    assert [(one.name, one.at) for one in pack.user.flat] == [("user_id", 0), ("country", 16), ("age", 20)]
    assert [(one.name, one.at) for one in pack.item.flat] == [
        ("video_id", 0),
        ("tags", 16),
        ("topics", 20),
        ("vector", 36),
    ]
    assert (pack.user.flat_width, pack.item.flat_width) == (21, 39)
    assert (pack.user.sequence_length, pack.user.sequence_width) == (8, 17)


def test_its_plain_values_survive_json() -> None:
    plan = small_app().features.pack.to_json()
    read = json.loads(json.dumps(plan))
    assert read["item"]["flat"][3] == {
        "name": "vector",
        "table": "",
        "pooling": "dense",
        "at": 36,
        "width": 3,
    }
    assert read["user"]["sequence_width"] == 17
