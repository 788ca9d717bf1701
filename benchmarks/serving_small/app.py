"""Logistic regression over eight user slots and twelve item slots; one label."""

from streamlearn.apps import App
from streamlearn.features import FeatureSpec, Label, LabelGroup, Slot

features = FeatureSpec(
    (
        *(Slot(f"user_{at}", "user", dim=1, initial_range=0.0) for at in range(8)),
        Slot("video_id", "item", dim=1, initial_range=0.0),
        *(Slot(f"item_{at}", "item", dim=1, initial_range=0.0) for at in range(11)),
    ),
    item_id="video_id",
)

app = App(
    name="serving_small",
    features=features,
    groups=(LabelGroup("fast", wait_s=60, window_s=600),),
    labels=(Label("click", "click", "fast"),),
    model="logistic",
)
