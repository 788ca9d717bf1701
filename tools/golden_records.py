"""Golden records: fixed values, and the bytes that the current code writes for them.

A test compares the bytes with those in `schemas/golden`, so that no format changes by accident.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamlearn.events import EventEncoder, Failure, Origin
from streamlearn.events.dead_letter import dead_letter
from streamlearn.interactions import InteractionBatch, encode_interactions
from streamlearn.samples import (
    FeatureColumns,
    LabelColumns,
    RequestColumns,
    SampleBatch,
    SampleCodec,
    SampleHeader,
    SegmentColumns,
    SlotColumns,
)
from streamlearn.schemas import EVENT_PACK, PROGRESS
from streamlearn.settings import EventSettings
from streamlearn.settings.events import SampleSettings
from streamlearn.testing import small_app

__all__ = [
    "ACTION",
    "CONTROL_VALUES",
    "IMPRESSION",
    "PROGRESS_VALUES",
    "golden_interactions",
    "golden_records",
    "golden_sample",
]

IMPRESSION: dict[str, Any] = {
    "request_id": "request-1",
    "event_time_ms": 1_700_000_000_000,
    "shown_wall_ms": 1_700_000_000_005,
    "served_version": 7,
    "segments": {"page": "home"},
    "user": {"user_id": -3, "history": [1, 2, 300], "country": "NO", "age": 0.5},
    "items": [
        {
            "video_id": 11,
            "tags": ["été", ""],
            "topics": [5, 6],
            "topics_weights": [0.25, 1.5],
            "vector": [1.0, -2.0, 0.0],
            "segment_fresh": "new",
            "served_score_click": 0.125,
        },
        {"video_id": 2**40, "vector": [0.0, 0.0, 0.5]},
    ],
}
ACTION: dict[str, Any] = {
    "request_id": "request-1",
    "event_time_ms": 1_700_000_001_000,
    "item_id": 11,
    "action": "click",
    "weight": 2.0,
}
CONTROL_VALUES: dict[str, Any] = {
    "kind": "END",
    "event_time_ms": 1_700_000_060_000,
    "wall_ms": 1_700_000_060_009,
    "source": "producer",
}
PROGRESS_VALUES: dict[str, Any] = {
    "lot": 3,
    "lots_count": 64,
    "ingest_run": 9,
    "watermark_ms": 1_700_000_050_000,
    "reached_ms": 1_700_000_040_000,
    "window_settings": "7d4a9bd2bdfce5b2",
    "feature_fingerprint": "4b06c24c016fd4f9",
    "events_topic_id": "topic-1",
    "actions_topic_id": "topic-2",
    "wall_ms": 1_700_000_060_010,
}

ORIGIN = Origin("small.impressions", "topic-1", 2, 1 << 33, 1_700_000_000_001, b"request-1")


def golden_records() -> dict[str, bytes]:
    """Return the bytes that the current code writes, by the name of their file."""
    encoder = EventEncoder(small_app(), EventSettings())
    impression, action = encoder.impression(IMPRESSION), encoder.action(ACTION)
    failure = Failure(0, 4, "malformed", "user: 3 bytes after the record's end", b"\xc3\x01abc")
    return {
        "impression": impression,
        "action": action,
        "control": encoder.control(**CONTROL_VALUES),
        "event_pack": EVENT_PACK.write({"events": [impression, action], "items": [2, 0]}),
        "progress": PROGRESS.write(PROGRESS_VALUES),
        "dead_letter": dead_letter(failure, ORIGIN, 1_700_000_060_011),
        "interactions": encode_interactions(golden_interactions()),
        "sample": SampleCodec(small_app(), SampleSettings()).encode(golden_sample()),
    }


def golden_interactions() -> InteractionBatch:
    """Return an impression of an item, and a click on it."""
    return InteractionBatch(
        side="user",
        kinds=("click", "impression"),
        sources=("video_id", "tab"),
        ingest_run=9,
        identity=np.array([1 << 63, 7], np.uint64),
        user=np.array([5, 5], np.uint64),
        item=np.array([11, 11], np.uint64),
        kind=np.array([1, 0], np.uint8),
        event_time_ms=np.array([1_700_000_000_000, 1_700_000_001_000], np.int64),
        weight=np.array([1.0, 2.0], np.float32),
        number=np.array([np.nan, 0.5], np.float32),
        values=np.array([[11, -8], [11, -8]], np.int64),
    )


def golden_sample() -> SampleBatch:
    """Return a sample of one request with two rows and one request with one row."""
    return SampleBatch(
        header=SampleHeader("f523cf85197ee698", "7d4a9bd2bdfce5b2", "topic-1", 3, 64, 9, 1_700_000_050_000),
        requests=RequestColumns(
            partition=np.array([1, 0], np.int32),
            offset=np.array([1 << 33, 5], np.int64),
            event_time_ms=np.array([1_700_000_000_000, 1_700_000_000_100], np.int64),
            shown_wall_ms=np.array([1_700_000_000_005, 1_700_000_000_105], np.int64),
            served_version=np.array([7, -1], np.int64),
        ),
        user=FeatureColumns(
            {
                "user_id": _slot([1, 2**64 - 1]),
                "history": _slot([4, 5, 6], [0, 3, 3]),
                "country": _slot([8, 9]),
            },
            {"age": np.array([[0.5], [-1.0]], np.float32)},
        ),
        request_index=np.array([0, 0, 1], np.int32),
        item_index=np.array([0, 1, 0], np.int32),
        settle_time_ms=np.array([1_700_000_060_000] * 3, np.int64),
        item=FeatureColumns(
            {
                "video_id": _slot([11, 12, 13]),
                "tags": _slot([21, 22], [0, 2, 2, 2]),
                "topics": _slot([31, 32], [0, 1, 1, 2], [0.25, 1.5]),
            },
            {"vector": np.arange(9, dtype=np.float32).reshape(3, 3)},
        ),
        labels=(_label("click", [1, 0, 0], [1, 1, 0], 0.5), _label("bought", [0, 0, 1], [0, 0, 1], 1.0)),
        segments=(
            SegmentColumns("page", ("home",), np.zeros(3, np.int32)),
            SegmentColumns("fresh", ("", "new"), np.array([1, 0, 0], np.int32)),
        ),
    )


def _slot(keys: list[int], offsets: list[int] | None = None, weights: list[float] | None = None) -> SlotColumns:
    return SlotColumns(
        np.array(keys, np.uint64),
        None if offsets is None else np.array(offsets, np.int32),
        None if weights is None else np.array(weights, np.float32),
    )


def _label(name: str, value: list[int], settles: list[int], sample_rate: float) -> LabelColumns:
    rows = len(value)
    return LabelColumns(
        name,
        value=np.array(value, np.uint8),
        settles=np.array(settles, np.uint8),
        sample_rate=np.full(rows, sample_rate, np.float32),
        weight=np.ones(rows, np.float32),
        served_score=np.array([0.125] + [np.nan] * (rows - 1), np.float32),
    )
