"""Samples as plain values, row by row: what columns are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamlearn.samples import FeatureColumns, SampleBatch, SegmentColumns

__all__ = ["features_at", "row_of", "segments_at"]


def features_at(features: FeatureColumns, index: int) -> dict[str, Any]:
    """One row of a side's features, by name: its keys with their weights, or its numbers."""
    found: dict[str, Any] = {name: values[index].tolist() for name, values in features.dense.items()}
    for name, slot in features.slots.items():
        begin, end = (index, index + 1) if slot.offsets is None else map(int, slot.offsets[index : index + 2])
        weights = None if slot.weights is None else slot.weights[begin:end].tolist()
        found[name] = (slot.keys[begin:end].tolist(), weights)
    return found


def segments_at(segments: Sequence[SegmentColumns], row: int) -> dict[str, str]:
    """The texts of a row."""
    return {one.name: one.texts[int(one.codes[row])] for one in segments}


def row_of(batch: SampleBatch, row: int, *, segments: bool = True) -> dict[str, Any]:
    """All that a row says, its request's part of it too."""
    request = int(batch.request_index[row])
    return {
        "request": {name: column[request].item() for name, column in vars(batch.requests).items()},
        "user": features_at(batch.user, request),
        "item_index": int(batch.item_index[row]),
        "settle_time_ms": int(batch.settle_time_ms[row]),
        "item": features_at(batch.item, row),
        "labels": [
            {"name": label.name} | {name: column[row].item() for name, column in label.columns.items()}
            for label in batch.labels
        ],
        "segments": segments_at(batch.segments, row) if segments else {},
    }
