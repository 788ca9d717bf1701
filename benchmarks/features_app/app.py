"""A user's last clicks, and the click rate of an item."""

from streamlearn.apps import App
from streamlearn.features import Dense, FeatureSpec, Label, LabelGroup, Last, Rate, Slot

app = App(
    name="features_app",
    features=FeatureSpec(
        slots=(
            Slot("user_id", "user"),
            Slot("seen", "user", multi=True, keys_of="item_id", computed=Last("item_id", "click", 8)),
            Slot("item_id", "item"),
        ),
        dense=(Dense("rate", "item", computed=Rate("click", "impression", "1h", (0.1, 20)), default=0),),
        item_id="item_id",
    ),
    groups=(LabelGroup("fast", wait_s=60, window_s=600),),
    labels=(Label("click", "click", "fast"),),
    model="deepfm",
)
