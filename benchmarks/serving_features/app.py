"""DIN of `serving_din` whose history, counts and rates are computed from interactions."""

from dataclasses import replace

from benchmarks.serving_din.app import app as plain
from streamlearn.features import Count, Dense, Last, Rate, Since, Slot

_DIM = plain.features.slots[0].dim

features = replace(
    plain.features,
    slots=(
        *(replace(slot, computed=Last("video_id", "click")) if slot.multi else slot for slot in plain.features.slots),
        Slot("pause", "user", dim=_DIM, computed=Since("impression"), default=-1),
    ),
    dense=(
        Dense("counts", "user", width=4, computed=Count(("impression", "click"), ("1h", "7d")), default=0),
        Dense("rates", "item", width=2, computed=Rate("click", "impression", ("1h", "1d"), (0.1, 20)), default=0),
    ),
    user_id="user_0",
)

app = replace(plain, name="serving_features", features=features)
