"""The synthetic application, with a wait so short that a live run sees samples soon; the window stays ten minutes."""

from dataclasses import replace

from examples.synthetic.app import app as synthetic
from streamlearn.features import LabelGroup

app = replace(synthetic, name="bench", groups=(LabelGroup("fast", wait_s=5, window_s=600),))
