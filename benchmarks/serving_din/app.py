"""DIN: eight user slots, a history of 50 items, twelve item slots, all of dim 16; one label."""

from streamlearn.apps import App
from streamlearn.features import FeatureSpec, Label, LabelGroup, Slot

LENGTH, _DIM = 50, 16

_watched = Slot("watched", "user", dim=_DIM, multi=True, pooling="sequence", length=LENGTH, keys_of="video_id")

features = FeatureSpec(
    (
        *(Slot(f"user_{at}", "user", dim=_DIM) for at in range(8)),
        _watched,
        Slot("video_id", "item", dim=_DIM),
        *(Slot(f"item_{at}", "item", dim=_DIM) for at in range(11)),
    ),
    item_id="video_id",
)

app = App(
    name="serving_din",
    features=features,
    groups=(LabelGroup("fast", wait_s=60, window_s=600),),
    labels=(Label("click", "click", "fast"),),
    model="din",
)
