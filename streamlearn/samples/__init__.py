"""Samples: rows of requests and items that settle some of their labels, as columns."""

from streamlearn.samples.codec import SampleCodec
from streamlearn.samples.golden import golden_bytes, read_golden
from streamlearn.samples.sample import (
    FeatureColumns,
    LabelColumns,
    RequestColumns,
    SampleBatch,
    SampleHeader,
    SegmentColumns,
    SlotColumns,
    renumbered,
)

__all__ = [
    "FeatureColumns",
    "LabelColumns",
    "RequestColumns",
    "SampleBatch",
    "SampleCodec",
    "SampleHeader",
    "SegmentColumns",
    "SlotColumns",
    "golden_bytes",
    "read_golden",
    "renumbered",
]
