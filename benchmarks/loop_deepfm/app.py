"""The synthetic application with DeepFM, and a short wait, so that samples are due soon."""

from dataclasses import replace

from examples.synthetic.app import app as synthetic
from streamlearn.features import LabelGroup

_slots = (replace(slot, table="main", dim=16, initial_range=0.05) for slot in synthetic.features.slots)

app = replace(
    synthetic,
    name="loop_deepfm",
    features=replace(synthetic.features, slots=tuple(_slots)),
    groups=(LabelGroup("fast", wait_s=2, window_s=60),),
    model="deepfm",
)
