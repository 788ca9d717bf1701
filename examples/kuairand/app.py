"""The KuaiRand application: what a request and a video look like, and what is predicted."""

from streamlearn.apps import App
from streamlearn.features import Dense, FeatureSpec, Label, LabelGroup, Segment, Slot

features = FeatureSpec(
    slots=(
        Slot("user_id", "user"),
        Slot("tab", "user"),
        Slot("hour", "user"),
        Slot("active_degree", "user", value="str"),
        Slot("register_days", "user", value="str"),
        Slot("follows", "user", value="str"),
        Slot("fans", "user", value="str"),
        Slot("friends", "user", value="str"),
        Slot("is_author", "user"),
        Slot("is_streamer", "user"),
        Slot("onehot_feat1", "user"),
        Slot("onehot_feat2", "user"),
        Slot("onehot_feat3", "user"),
        Slot("onehot_feat7", "user"),
        Slot("onehot_feat8", "user"),
        Slot("video_id", "item"),
        Slot("author_id", "item"),
        Slot("tags", "item", multi=True, pooling="mean"),
        Slot("music_id", "item"),
        Slot("music_type", "item"),
        Slot("video_type", "item", value="str"),
        Slot("upload_type", "item", value="str"),
        Slot("duration_bucket", "item"),
        Slot("age_days", "item"),
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
    model="dcn_v2",
)
