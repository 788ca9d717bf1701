"""The KuaiRand application: the features of a request and of a video, and the labels that are predicted."""

from streamlearn.apps import App
from streamlearn.features import Dense, FeatureSpec, Label, LabelGroup, Last, Rate, Segment, Since, Slot

# Each row begins with one number for each label, the key's own bias, which starts at zero. Keys that occur only a few
# times have only these two numbers. All other rows have a vector of 8 after them.
OWN = 2
WIDE = OWN + 8
RANGE = 0.02

features = FeatureSpec(
    slots=(
        # The user is the most telling feature but has few impressions, so users have a table that learns faster.
        Slot("user_id", "user", table="users", dim=OWN, initial_range=0.0),
        Slot("tab", "user", dim=WIDE, initial_range=RANGE),
        Slot("pause", "user", dim=WIDE, initial_range=RANGE, computed=Since("impression"), default=-1),
        Slot("since_click", "user", dim=WIDE, initial_range=RANGE, computed=Since("click"), default=-1),
        Slot(
            "watched",
            "user",
            table="videos",
            dim=OWN,
            initial_range=0.0,
            multi=True,
            pooling="mean",
            keys_of="video_id",
            computed=Last("video_id", of="long_view", length=20),
        ),
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
    dense=(
        Dense("counts", "user", width=4),
        # The shares of impressions, as if four with the average share had been before the first.
        Dense("click_rate", "user", computed=Rate("click", "impression", "7d", prior=(0.35, 4)), default=0.35),
        Dense("long_rate", "user", computed=Rate("long_view", "impression", "7d", prior=(0.25, 4)), default=0.25),
        Dense("duration", "item"),
    ),
    item_id="video_id",
    segments=(Segment("tab"),),
)

app = App(
    name="kuairand",
    features=features,
    # A click is a play of 7 s and a long view one of 18 s. After 20 s both are known, unless an event is delayed.
    groups=(LabelGroup("fast", wait_s=20, window_s=300),),
    labels=(Label("click", "click", "fast"), Label("long_view", "long_view", "fast")),
    model="model:deepfm",
)
