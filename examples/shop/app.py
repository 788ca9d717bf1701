"""The shop application: whether a user clicks on a product, orders it, and what an order is worth."""

from streamlearn.apps import App
from streamlearn.features import Dense, FeatureSpec, Label, LabelGroup, Number, Segment, Slot

DIM = 8

features = FeatureSpec(
    slots=(
        Slot("user_id", "user", table="users", dim=DIM),
        Slot("product_id", "item", table="products", dim=DIM),
        Slot("category", "item", dim=DIM, value="str"),
    ),
    # The price of one piece on that day.
    dense=(Dense("price", "item"),),
    item_id="product_id",
    segments=(Segment("category", "item"),),
)

app = App(
    name="shop",
    features=features,
    groups=(
        LabelGroup("fast", wait_s=600, window_s=600),
        # Most orders come later than an hour after the impression; those that come within six hours are corrections.
        LabelGroup("slow", wait_s=3_600, window_s=21_600),
    ),
    labels=(
        Label("click", "click", "fast"),
        Label("order", "order", "slow", follows="click"),
        # The worth of an order, where there is one. The loss learns its logarithm: price times pieces becomes a sum.
        Label("paid", "order", "slow", number=Number(missing="unlabelled", loss="poisson", scale=45.0)),
    ),
    model="mmoe",
)
