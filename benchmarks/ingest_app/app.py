"""The synthetic application with a short wait, so that samples of a live run are due soon, and a window of 10 min."""

from dataclasses import replace

from examples.synthetic.app import app as synthetic
from streamlearn.features import LabelGroup

app = replace(synthetic, name="bench", groups=(LabelGroup("fast", wait_s=5, window_s=600),))
