"""The declared features and labels of an application, and the layout of a model's inputs."""

from streamlearn.features.behaviour import Count, Last, Rate, Since, Sum
from streamlearn.features.combination import Calibration, CountIn, Cross, Product
from streamlearn.features.entity import Entity
from streamlearn.features.keys import keys_of
from streamlearn.features.labels import Label, LabelGroup, labels_differ, window_settings_id
from streamlearn.features.number import Number
from streamlearn.features.pack import PackColumn, PackSide
from streamlearn.features.retrieval import Library, Retrieval
from streamlearn.features.spec import Dense, FeatureSpec, Segment, Slot, TableSpec

__all__ = [
    "Calibration",
    "Count",
    "CountIn",
    "Cross",
    "Dense",
    "Entity",
    "FeatureSpec",
    "Label",
    "LabelGroup",
    "Last",
    "Library",
    "Number",
    "PackColumn",
    "PackSide",
    "Product",
    "Rate",
    "Retrieval",
    "Segment",
    "Since",
    "Slot",
    "Sum",
    "TableSpec",
    "keys_of",
    "labels_differ",
    "window_settings_id",
]
