"""The application of `serving_din` with a cross, calibrations, normalised layers and dropout."""

from dataclasses import replace

from benchmarks.serving_din.app import app as plain
from streamlearn.features import Calibration, Cross

derived = (
    Cross("user_0", "item_0", table="pairs"),
    Calibration("click", by="user_1"),
    Calibration("click", by="user_1", name="click_curve", method="isotonic"),
)

app = replace(plain, name="serving_din_rich", features=replace(plain.features, derived=derived), model="model:rich_din")
