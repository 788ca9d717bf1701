"""A topic of samples that can be learned from: labels hang on keys; some rows come twice, some are corrected later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from streamlearn.apps import App, AppFolder
from streamlearn.features import Dense, FeatureSpec, Label, LabelGroup, Segment, Slot, keys_of
from streamlearn.samples import LabelColumns, SampleBatch, SampleCodec, SlotColumns
from streamlearn.samples.item_ids import ItemIds
from streamlearn.settings import Settings
from streamlearn.testing import small_batch
from streamlearn.topics import TopicSettings, create_topic

__all__ = ["T_MS", "learnable_app", "learnable_folder", "messages_of", "outcomes", "write_messages"]

T_MS, STEP_MS = 1_700_000_000_000, 1_000
VOCABULARY = 500


def learnable_app(name: str = "learnable") -> App:
    """Two labels, one of which is corrected; slots of every kind on two tables."""
    features = FeatureSpec(
        slots=(
            Slot("user_id", "user", dim=8),
            Slot("history", "user", dim=8, multi=True, pooling="sequence", length=4, keys_of="video_id"),
            Slot("video_id", "item", dim=8),
            Slot("tags", "item", table="tags", dim=4, multi=True, pooling="mean"),
        ),
        dense=(Dense("age", "user"), Dense("length", "item")),
        item_id="video_id",
        segments=(Segment("page"),),
    )
    groups = (LabelGroup("fast", wait_s=10, window_s=60), LabelGroup("slow", wait_s=120, window_s=120))
    return App(
        name, features, groups, (Label("click", "click", "fast", sample_rate=0.5), Label("bought", "buy", "slow"))
    )


def learnable_folder(folder: Path, settings: Mapping[str, Any] | None = None, app: App | None = None) -> AppFolder:
    """The application in a folder, its topics in files there."""
    given = {"tables": {"rows_max": 200_000, **dict((settings or {}).get("tables", {}))}}
    rest = {name: values for name, values in (settings or {}).items() if name != "tables"}
    return AppFolder(app or learnable_app(), folder, msgspec.convert(given | rest, Settings))


def messages_of(
    app: App, count: int, rows: int = 40, *, seed: int = 1, partitions: int = 2
) -> list[tuple[int, SampleBatch]]:
    """Messages with the partition each is for, in the order they are written.

    Every fourth message says some rows of the one before it again; every fifth corrects some of its clicks.
    """
    found: list[tuple[int, SampleBatch]] = []
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        batch = _message(app, number, rows, rng)
        found.append((number % partitions, batch))
        if number % 4 == 3:
            again = _some(batch, rng)
            found.append(((number + 1) % partitions, replace(again, header=_header(batch, number))))
        if number % 5 == 4:
            found.append((number % partitions, _corrected(batch, number, rng)))
    return found


def write_messages(folder: AppFolder, messages: list[tuple[int, SampleBatch]], *, partitions: int = 2) -> None:
    """Append messages to the application's samples; the topic is made where there is none."""
    url = folder.topic_url("samples")
    codec = SampleCodec(folder.app, folder.settings.samples)
    wanted = TopicSettings(partitions=partitions)
    with create_topic(url, wanted, folder.access, exist_ok=True) as topic, topic.writer() as writer:
        for partition, batch in messages:
            writer.send(partition, codec.encode(batch))
        writer.flush()


def outcomes(messages: list[tuple[int, SampleBatch]]) -> dict[tuple[int, int, int, str], int]:
    """What is to be known of every (partition, offset, item, label) at the end: 0 or 1, the higher one said."""
    known: dict[tuple[int, int, int, str], int] = {}
    for _, batch in messages:
        of, requests = batch.request_index, batch.requests
        for label in batch.labels:
            rows = np.flatnonzero(label.settles)
            columns = (
                requests.partition[of[rows]],
                requests.offset[of[rows]],
                batch.item_index[rows],
                label.value[rows],
            )
            for partition, offset, item, value in zip(*(column.tolist() for column in columns), strict=True):
                key = partition, offset, item, label.name
                known[key] = max(known.get(key, 0), int(value))
    return known


def _message(app: App, number: int, rows: int, rng: np.random.Generator) -> SampleBatch:
    requests = max(1, rows // 4)
    batch = small_batch(app, requests, rows, seed=int(rng.integers(1 << 30)))
    shown = T_MS + number * STEP_MS + np.sort(rng.integers(0, STEP_MS, requests))
    columns = replace(
        batch.requests,
        partition=np.full(requests, number % 4, np.int32),
        offset=number * 100 + np.arange(requests, dtype=np.int64),
        event_time_ms=shown,
        shown_wall_ms=shown,
    )
    items = {name: _of_vocabulary(slot, rng) for name, slot in batch.item.slots.items()}
    users = {name: _of_vocabulary(slot, rng) for name, slot in batch.user.slots.items()}
    index = batch.request_index
    place = np.arange(rows, dtype=np.int32) - np.searchsorted(index, index).astype(np.int32)
    likes = np.sin(items["video_id"].keys.astype(np.float64)) + np.sin(users["user_id"].keys.astype(np.float64))[index]
    labels = tuple(_label(one.name, one.sample_rate, likes, rng) for one in app.labels)
    ids = None
    if app.retrieval is not None:
        ids = ItemIds(items["video_id"].keys.astype(np.int64))
        items["video_id"] = SlotColumns(keys_of(app.features.slot("video_id"), ids.values))
    return replace(
        batch,
        header=_header(batch, number),
        requests=columns,
        item_index=place,
        user=replace(batch.user, slots=users),
        item=replace(batch.item, slots=items),
        settle_time_ms=shown[index] + 10_000,
        labels=labels,
        item_ids=ids,
    )


def _header(batch: SampleBatch, number: int) -> Any:
    return replace(batch.header, watermark_ms=T_MS + number * STEP_MS, lot=number % 4, lots_count=4)


def _of_vocabulary(slot: SlotColumns, rng: np.random.Generator) -> SlotColumns:
    return replace(slot, keys=rng.integers(0, VOCABULARY, len(slot.keys)).astype(np.uint64))


def _label(name: str, rate: float, likes: np.ndarray[Any, Any], rng: np.random.Generator) -> LabelColumns:
    rows = len(likes)
    value = rng.random(rows) < 1 / (1 + np.exp(-2 * likes))
    return LabelColumns(
        name,
        value=value.astype(np.uint8),
        settles=np.ones(rows, np.uint8),
        sample_rate=np.full(rows, rate, np.float32),
        weight=np.ones(rows, np.float32),
        served_score=np.full(rows, np.nan, np.float32),
    )


def _some(batch: SampleBatch, rng: np.random.Generator) -> SampleBatch:
    from streamlearn.trainer.intake.extract import rows_of

    return rows_of(batch, np.flatnonzero(rng.random(len(batch)) < 0.5))


def _corrected(batch: SampleBatch, number: int, rng: np.random.Generator) -> SampleBatch:
    """Some rows whose click is positive after all; they settle nothing else."""
    some = _some(batch, rng)
    click, bought = some.labels
    ones, none = np.ones(len(some), np.uint8), np.zeros(len(some), np.uint8)
    labels = (replace(click, value=ones, settles=ones), replace(bought, value=none, settles=none))
    return replace(some, header=_header(some, number), labels=labels)
