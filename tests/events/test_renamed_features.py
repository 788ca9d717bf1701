"""Renamed features: events that were written before are read under the names of today, and their keys are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamlearn.errors import SpecError
from streamlearn.events.decoder import EventDecoder
from streamlearn.features import Dense, FeatureSpec, Slot, keys_of
from streamlearn.schemas import impression_schema
from streamlearn.settings import EventSettings
from streamlearn.testing import small_app, small_impression


def test_older_events_are_read_under_the_new_names_and_give_the_same_keys() -> None:
    old = small_app()
    names = {"country": "land", "topics": "themes", "vector": "shape"}
    slots = tuple(
        replace(slot, name=names[slot.name], was=slot.name) if slot.name in names else slot
        for slot in old.features.slots
    )
    dense = tuple(
        replace(column, name=names[column.name], was=column.name) if column.name in names else column
        for column in old.features.dense
    )
    new = replace(old, name="new", serves="small", features=replace(old.features, slots=slots, dense=dense))
    written = impression_schema(old)
    impression = small_impression(1) | {"shown_wall_ms": 5}
    for item in impression["items"]:
        item.pop("served_score_click")
        item |= {"served_score_click": None, "served_score_bought": None}
    decoder = EventDecoder(new, EventSettings(), [written])
    columns = decoder.decode([written.write(impression)]).impressions.columns
    assert bytes(columns["user.land"]).decode() == "NO"
    weights = [weight for item in impression["items"] for weight in item["topics_weights"]]
    np.testing.assert_allclose(columns["items.themes_weights"], np.array(weights, np.float32))
    shapes = [item["vector"] for item in impression["items"]]
    np.testing.assert_allclose(columns["items.shape"].reshape(-1, 3), np.array(shapes, np.float32))
    assert keys_of(new.features.slot("land"), ["NO"]) == keys_of(old.features.slot("country"), ["NO"])
    # A record of today has these names already.
    today = impression_schema(new)
    assert (
        EventDecoder(new, EventSettings(), [written]).decode([today.write(_as_today(impression, names))]).failures == ()
    )


def _as_today(impression: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    def renamed(values: dict[str, Any]) -> dict[str, Any]:
        return {names.get(name, name.replace("topics_", "themes_")): value for name, value in values.items()}

    return impression | {"user": renamed(impression["user"]), "items": [renamed(item) for item in impression["items"]]}


def test_two_features_cannot_take_over_what_was_learned_under_one_name() -> None:
    item = Slot("item_id", "item")
    with pytest.raises(SpecError, match="two features are named 'town'"):
        FeatureSpec(slots=(item, Slot("town", "user"), Slot("city", "user", was="town")), item_id="item_id")
    with pytest.raises(SpecError, match="two features are named 'town'"):
        FeatureSpec(slots=(item, Slot("town", "user")), dense=(Dense("city", "user", was="town"),), item_id="item_id")
    with pytest.raises(SpecError, match="has its own name as its former one"):
        FeatureSpec(slots=(item, Slot("town", "user", was="town")), item_id="item_id")


def test_a_slot_that_shares_keys_names_the_slot_by_which_they_were_learned() -> None:
    clip = Slot("clip_id", "item", was="video_id")
    with pytest.raises(SpecError, match="which are those of 'video_id'") as refused:
        FeatureSpec(slots=(clip, Slot("seen", "user", multi=True, keys_of="clip_id")), item_id="clip_id")
    assert refused.value.help == "set keys_of='video_id'"
    seen = Slot("seen", "user", multi=True, keys_of="video_id")
    FeatureSpec(slots=(clip, seen), item_id="clip_id")
    assert keys_of(seen, [7]) == keys_of(clip, [7]) == keys_of(Slot("video_id", "item"), [7])
