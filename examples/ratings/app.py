"""The ratings application: how many stars a user gives to a film, and whether they rate it at all."""

from streamlearn.apps import App
from streamlearn.features import FeatureSpec, Label, LabelGroup, Number, Segment, Slot

DIM = 8

features = FeatureSpec(
    slots=(
        Slot("user_id", "user", table="users", dim=DIM),
        Slot("film_id", "item", table="films", dim=DIM),
        Slot("genre", "item", dim=DIM, value="str"),
    ),
    item_id="film_id",
    segments=(Segment("genre", "item"),),
)

app = App(
    name="ratings",
    features=features,
    # People rate a film when they have seen it: within six hours. Who changes their mind gives another rating.
    groups=(LabelGroup("evening", wait_s=21_600, window_s=21_600),),
    labels=(
        # Nothing is known of films that were not rated, so stars are learned only from rated films.
        Label("stars", "rate", "evening", number=Number(missing="unlabelled", low=1, high=5, center=3.5)),
        Label("rated", "rate", "evening"),
    ),
    model="deepfm",
)
