"""The synthetic application: twenty slots and some dense columns, as `world` and `traffic` fill them."""

from streamlearn.apps import App
from streamlearn.features import Dense, FeatureSpec, Label, LabelGroup, Segment, Slot

features = FeatureSpec(
    slots=(
        Slot("user_id", "user"),
        Slot("cohort", "user"),
        Slot("country", "user", value="str"),
        Slot("device", "user"),
        Slot("age_band", "user"),
        Slot("language", "user"),
        Slot("page", "user"),
        Slot("hour", "user"),
        Slot("recent_items", "user", multi=True, pooling="sequence", length=8, keys_of="item_id"),
        Slot("recent_categories", "user", multi=True, pooling="sequence", length=8, keys_of="category"),
        Slot("item_id", "item"),
        Slot("author_id", "item"),
        Slot("category", "item"),
        Slot("brand", "item"),
        Slot("length_band", "item"),
        Slot("price_band", "item"),
        Slot("origin", "item"),
        Slot("fresh_band", "item"),
        Slot("position", "item"),
        Slot("topics", "item", multi=True, pooling="mean"),
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
    model="dcn_v2",
)
