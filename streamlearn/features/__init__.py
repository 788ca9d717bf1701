"""What an application's features and labels are, and the order their numbers take."""

from streamlearn.features.keys import keys_of
from streamlearn.features.labels import Label, LabelGroup, window_settings_id
from streamlearn.features.pack import PackColumn, PackPlan, PackSide
from streamlearn.features.spec import Dense, FeatureSpec, Segment, Slot, TableSpec

__all__ = [
    "Dense",
    "FeatureSpec",
    "Label",
    "LabelGroup",
    "PackColumn",
    "PackPlan",
    "PackSide",
    "Segment",
    "Slot",
    "TableSpec",
    "keys_of",
    "window_settings_id",
]
