"""A small application with every kind of feature and label, and events and samples for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from streamlearn.apps import App, AppFolder
from streamlearn.features import Dense, FeatureSpec, Label, LabelGroup, Segment, Slot, keys_of
from streamlearn.samples import (
    FeatureColumns,
    LabelColumns,
    RequestColumns,
    SampleBatch,
    SampleHeader,
    SegmentColumns,
    SlotColumns,
)  # fmt: skip
from streamlearn.samples.item_ids import ItemIds
from streamlearn.settings import Settings

__all__ = ["small_app", "small_batch", "small_folder", "small_impression"]


def small_app(name: str = "small") -> App:
    """Return an application with every kind of slot, dense column, segment and label group."""
    features = FeatureSpec(
        slots=(
            Slot("user_id", "user"),
            Slot("history", "user", multi=True, pooling="sequence", length=8, keys_of="video_id"),
            Slot("country", "user", value="str", table="text", dim=4, default=""),
            Slot("video_id", "item"),
            Slot("tags", "item", value="str", table="text", dim=4, multi=True, pooling="mean"),
            Slot("topics", "item", multi=True, pooling="weighted"),
        ),
        dense=(Dense("age", "user", default=0.0), Dense("vector", "item", width=3)),
        item_id="video_id",
        segments=(Segment("page"), Segment("fresh", "item")),
    )
    groups = (LabelGroup("fast", wait_s=60, window_s=600), LabelGroup("slow", wait_s=3600, window_s=3600))
    labels = (Label("click", "click", "fast", sample_rate=0.5), Label("bought", "purchase", "slow"))
    return App(name, features, groups, labels)


def small_folder(folder: Path, app: App | None = None, settings: Settings | None = None) -> AppFolder:
    """Return the small application as if it were loaded from a folder."""
    return AppFolder(app or small_app(), folder, settings or Settings())


def small_impression(seed: int, items: int = 2) -> dict[str, Any]:
    """Return arguments of `Producer.impression` for the small application, the same for the same seed."""
    rng = np.random.default_rng(seed)
    return {
        "request_id": f"q{seed}",
        "event_time_ms": 1_700_000_000_000 + 10 * seed,
        "served_version": None if seed % 3 else seed,
        "segments": {"page": ("home", "search")[seed % 2]},
        "user": {
            "user_id": int(rng.integers(1_000)),
            "history": rng.integers(0, 10_000, rng.integers(0, 12)).tolist(),
            "country": "NO",
            "age": float(np.float32(rng.random())),
        },
        "items": [_small_item(rng, seed % 3 == 0) for _ in range(items)],
    }


def _small_item(rng: np.random.Generator, served: bool) -> dict[str, Any]:
    topics = rng.integers(0, 50, rng.integers(0, 4)).tolist()
    return {
        "video_id": int(rng.integers(10_000)),
        "tags": [f"tag{tag}" for tag in rng.integers(0, 9, rng.integers(0, 3))],
        "topics": topics,
        "topics_weights": [float(weight) for weight in rng.random(len(topics), np.float32)],
        "vector": [float(number) for number in rng.random(3, np.float32)],
        "segment_fresh": ("old", "new")[int(rng.integers(2))],
        "served_score_click": float(rng.random(dtype=np.float32)) if served else None,
    }


def small_batch(app: App, requests: int, rows: int, seed: int = 0) -> SampleBatch:
    """Return a SampleBatch of any application with random content."""
    rng = np.random.default_rng(seed)
    header = SampleHeader(app.samples_fingerprint, app.window_settings, "topic", 3, 64, 1, 1_700_000_000_000)
    times = 1_700_000_000_000 + rng.integers(0, 60_000, requests)
    batch = SampleBatch(
        header=header,
        requests=RequestColumns(
            partition=rng.integers(0, 4, requests, np.int32),
            offset=rng.integers(0, 1 << 40, requests),
            event_time_ms=times,
            shown_wall_ms=times + 5,
            served_version=rng.integers(-1, 9, requests),
        ),
        user=_features(app, "user", requests, rng),
        request_index=np.sort(rng.integers(0, requests, rows, np.int32)),
        item_index=rng.integers(0, 1_000, rows, np.int32),
        settle_time_ms=1_700_000_060_000 + rng.integers(0, 60_000, rows),
        item=_features(app, "item", rows, rng),
        labels=tuple(_label(label, rows, rng) for label in app.labels),
        segments=tuple(
            SegmentColumns(segment.name, ("a", "b"), rng.integers(0, 2, rows, np.int32))
            for segment in app.features.segments
        ),
    )
    return batch if app.retrieval is None else _with_ids(app.features, batch, rng)


def _with_ids(spec: FeatureSpec, batch: SampleBatch, rng: np.random.Generator) -> SampleBatch:
    """Return a batch with ids of items, and with their keys."""
    slot, numbers = spec.slot(spec.item_id), rng.integers(0, 40, len(batch))
    texts = [f"item{number}" for number in numbers.tolist()]
    ids = ItemIds(numbers) if slot.value == "int" else ItemIds.of_texts(texts)
    keys = SlotColumns(keys_of(slot, ids.values, offsets=ids.offsets))
    return replace(batch, item=replace(batch.item, slots={**batch.item.slots, slot.name: keys}), item_ids=ids)


def _label(label: Label, rows: int, rng: np.random.Generator) -> LabelColumns:
    settles = rng.integers(0, 2, rows, np.uint8)
    value = settles & rng.integers(0, 2, rows, np.uint8)
    return LabelColumns(
        label.name,
        value=value,
        settles=settles,
        sample_rate=np.full(rows, label.sample_rate, np.float32),
        weight=np.ones(rows, np.float32),
        served_score=rng.random(rows, np.float32),
        number=None if label.number is None else label.number.known(rng.random(rows, np.float32), value != 0),
    )


def _features(app: App, side: Any, rows: int, rng: np.random.Generator) -> FeatureColumns:
    slots: dict[str, SlotColumns] = {}
    history = rng.integers(0, 4, rows)
    for slot in app.features.slots_of(side):
        counts = rng.integers(0, 4, rows) if slot.multi else np.ones(rows, np.int64)
        # All sequences have the lengths of one history.
        counts = history if slot.pooling == "sequence" else counts
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        keys = rng.integers(0, 1 << 63, int(offsets[-1]), np.uint64)
        weights = rng.random(len(keys), np.float32) if slot.pooling == "weighted" else None
        slots[slot.name] = SlotColumns(keys, offsets if slot.multi else None, weights)
    dense = {column.name: rng.random((rows, column.width), np.float32) for column in app.features.dense_of(side)}
    return FeatureColumns(slots, dense)
