"""The KuaiRand application: what a request and a video look like, and what is predicted."""

from streamlearn.apps import App
from streamlearn.features import Dense, FeatureSpec, Label, LabelGroup, Segment, Slot

# Rows begin with a number a label of their key's own. Who or what is met only a few times has nothing but these: two
# numbers, which begin at zero. All else has a vector of 8 after them.
OWN = 2
WIDE = OWN + 8
RANGE = 0.02

features = FeatureSpec(
    slots=(
        # How much a user plays says more than all else, from few impressions each: a table that learns faster.
        Slot("user_id", "user", table="users", dim=OWN, initial_range=0.0),
        Slot("tab", "user", dim=WIDE, initial_range=RANGE),
        Slot("pause", "user", dim=WIDE, initial_range=RANGE),
        Slot("active_degree", "user", dim=WIDE, initial_range=RANGE, value="str"),
        Slot("follows", "user", dim=WIDE, initial_range=RANGE, value="str"),
        Slot("friends", "user", dim=WIDE, initial_range=RANGE, value="str"),
        Slot("is_author", "user", dim=WIDE, initial_range=RANGE),
        Slot("is_streamer", "user", dim=WIDE, initial_range=RANGE),
        Slot("onehot_feat1", "user", dim=WIDE, initial_range=RANGE),
        Slot("onehot_feat2", "user", dim=WIDE, initial_range=RANGE),
        Slot("video_id", "item", table="videos", dim=OWN, initial_range=0.0),
        Slot("author_id", "item", table="videos", dim=OWN, initial_range=0.0),
        Slot("music_id", "item", table="videos", dim=OWN, initial_range=0.0),
        Slot("tags", "item", dim=WIDE, initial_range=RANGE, multi=True, pooling="mean"),
        Slot("music_type", "item", dim=WIDE, initial_range=RANGE),
        Slot("video_type", "item", dim=WIDE, initial_range=RANGE, value="str"),
        Slot("duration_bucket", "item", dim=WIDE, initial_range=RANGE),
    ),
    dense=(Dense("counts", "user", width=4), Dense("duration", "item")),
    item_id="video_id",
    segments=(Segment("tab"),),
)

app = App(
    name="kuairand",
    features=features,
    # A click is a play of 7 s, a long view one of 18 s: after 20 s every answer is in, unless it was delayed.
    groups=(LabelGroup("fast", wait_s=20, window_s=300),),
    labels=(Label("click", "click", "fast"), Label("long_view", "long_view", "fast")),
    model="model:deepfm",
)
