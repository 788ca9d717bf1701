"""The news application: whether a user clicks on an article, which is shown for a few hours only."""

from streamlearn.apps import App
from streamlearn.features import Dense, FeatureSpec, Label, LabelGroup, Segment, Slot

DIM = 8

features = FeatureSpec(
    slots=(
        Slot("user_id", "user", table="users", dim=DIM),
        # A new article has a new row, which must learn from few impressions: see `rates` in app.toml.
        Slot("article_id", "item", table="articles", dim=DIM),
        Slot("category", "item", dim=DIM, value="str"),
    ),
    # Hours since the article appeared.
    dense=(Dense("age_h", "item"),),
    item_id="article_id",
    segments=(Segment("category", "item"),),
)

app = App(
    name="news",
    features=features,
    # A click comes within a minute. There is nothing to correct after two.
    groups=(LabelGroup("fast", wait_s=120, window_s=120),),
    labels=(Label("click", "click", "fast"),),
    model="deepfm",
)
