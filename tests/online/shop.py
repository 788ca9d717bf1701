"""An application with computed columns, interactions of its users, and what its columns must be."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from streamlearn.apps import App, AppFolder
from streamlearn.features import (
    Count,
    Dense,
    FeatureSpec,
    Label,
    LabelGroup,
    Last,
    Number,
    Rate,
    Since,
    Slot,
    Sum,
    keys_of,
)
from streamlearn.interactions import InteractionBatch, encode_interactions
from streamlearn.settings import Settings
from streamlearn.topics import Topic, TopicSettings, create_topic

T_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
KINDS = ("click", "order", "impression")
PARTITIONS = 3

SPEC = FeatureSpec(
    slots=(
        Slot("user_id", "user"),
        Slot(
            "seen",
            "user",
            multi=True,
            pooling="sequence",
            length=5,
            keys_of="item_id",
            computed=Last("item_id", "click"),
        ),
        Slot("pause", "user", computed=Since("impression"), default=-1),
        Slot("item_id", "item"),
        Slot("buyers", "item", multi=True, keys_of="user_id", computed=Last("user_id", "order", length=3)),
    ),
    dense=(
        Dense("counts", "user", width=4, computed=Count(("impression", "click"), ("1h", "7d")), default=0),
        Dense("spent", "user", computed=Sum("order", "7d"), default=0),
        Dense("idle", "user", computed=Since(("click", "order")), default=-1),
        Dense("rate", "item", computed=Rate("click", "impression", "1h", (0.25, 4)), default=0),
    ),
    item_id="item_id",
)


def folder_of(path: Path, store: str = "", name: str = "shop") -> AppFolder:
    """The application, with topics in memory and its states in a store."""
    labels = (Label("click", "click", "fast"), Label("order", "order", "fast", number=Number(missing=0.0)))
    app = App(name, SPEC, (LabelGroup("fast", 60, 600),), labels)
    said = {"topics": {"root": f"memory://{path.name}-"}, "features": {"store": store, "reach_s": 60.0}}
    return AppFolder(app, path, msgspec.convert(said, Settings))


def topic_of(folder: AppFolder) -> Topic:
    """Its topic of interactions, empty."""
    return create_topic(folder.topic_url("interactions"), TopicSettings(partitions=PARTITIONS, retention_ms=-1))


def batch_of(rows: Sequence[tuple[str, int, int, int, float]], first: int = 1) -> InteractionBatch:
    """Interactions, as (kind, user, item, time, number) each, numbered from `first`."""
    users, items = [row[1] for row in rows], [row[2] for row in rows]
    return InteractionBatch(
        side="user",
        kinds=KINDS,
        sources=("item_id", "user_id"),
        ingest_run=1,
        identity=np.arange(first, first + len(rows), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15),
        user=keys_of(SPEC.slot("user_id"), users),
        item=keys_of(SPEC.slot("item_id"), items),
        kind=np.array([KINDS.index(row[0]) for row in rows], np.uint8),
        event_time_ms=np.array([row[3] for row in rows], np.int64),
        weight=np.ones(len(rows), np.float32),
        number=np.array([row[4] for row in rows], np.float32),
        values=np.array([items, users], np.int64).T.copy(),
    )


def some(count: int, seed: int = 0, users: int = 20, items: int = 10, span_ms: int = 2 * HOUR_MS) -> InteractionBatch:
    """Interactions by chance up to two hours after `T_MS`, in about the order of their times."""
    rng = random.Random(seed)
    times = sorted(T_MS + 2 * HOUR_MS - 1 - rng.randrange(span_ms) for _ in range(count))
    rows = [
        (
            rng.choice(KINDS),
            rng.randrange(users),
            rng.randrange(items),
            time_ms + rng.randrange(1_000),
            rng.randrange(9),
        )
        for time_ms in times
    ]
    return batch_of([(kind, user, item, time_ms, float(number)) for kind, user, item, time_ms, number in rows])


def write(topic: Topic, batch: InteractionBatch, rows_max: int = 50) -> None:
    """Write interactions as ingest does: for their users and for their items, by partition."""
    with topic.writer() as writer:
        for side in ("user", "item"):
            partitions = (replace(batch, side=side).entity % np.uint64(topic.partitions)).astype(np.int64)
            for partition in range(topic.partitions):
                rows = np.flatnonzero(partitions == partition)
                for begin in range(0, len(rows), rows_max):
                    message = encode_interactions(batch.take(rows[begin : begin + rows_max], side))
                    writer.append(partition, [message])
