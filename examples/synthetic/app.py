"""The synthetic application: twenty slots and three dense columns, which `world` and `traffic` fill."""

from typing import Any, Literal

from streamlearn.apps import App
from streamlearn.features import Dense, FeatureSpec, Label, LabelGroup, Segment, Slot

# Each row begins with one number for each label, the key's own bias; most rows have nothing else. Rows that the model
# multiplies have their vector after it. Groups start at random values, so that their factors learn from the start.
OWN = 2
WIDE = OWN + 30


def _own(name: str, side: Literal["user", "item"], **others: Any) -> Slot:
    return Slot(name, side, dim=OWN, initial_range=0.0, **others)


def _group(name: str) -> Slot:
    return Slot(name, "user", table="groups", dim=WIDE, initial_range=0.6)


def _kind(name: str, side: Literal["user", "item"], **others: Any) -> Slot:
    return Slot(name, side, table="kinds", dim=WIDE, **others)


_HISTORY = {"multi": True, "pooling": "sequence", "length": 8}

features = FeatureSpec(
    slots=(
        _own("user_id", "user", table="users"),
        _group("cohort"),
        _own("country", "user", value="str"),
        _group("device"),
        _own("age_band", "user"),
        _own("language", "user"),
        _own("page", "user"),
        _own("hour", "user"),
        _own("recent_items", "user", table="items", keys_of="item_id", **_HISTORY),
        _kind("recent_categories", "user", keys_of="category", **_HISTORY),
        _own("item_id", "item", table="items"),
        _own("author_id", "item"),
        _kind("category", "item"),
        _own("brand", "item"),
        _kind("length_band", "item"),
        _own("price_band", "item"),
        _own("origin", "item"),
        _own("fresh_band", "item"),
        _own("position", "item"),
        _own("topics", "item", multi=True, pooling="mean"),
    ),
    dense=(Dense("taste", "user", width=16), Dense("quality", "item", width=16), Dense("age", "item")),
    item_id="item_id",
    segments=(Segment("page"),),
)

app = App(
    name="synthetic",
    features=features,
    groups=(LabelGroup("fast", wait_s=60, window_s=600),),
    labels=(Label("click", "click", "fast"), Label("long_view", "long_view", "fast")),
    model="model:Insider",
)
