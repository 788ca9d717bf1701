"""A node that computes columns, beside itself with the same values in requests; and with its store away."""

from __future__ import annotations

import math
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.nodes.serving_bare import export
from benchmarks.nodes.serving_load import Contender, peaks, poisson
from benchmarks.nodes.serving_model import REQUESTS, ServingModel
from benchmarks.nodes.serving_nodes import ServingNode
from benchmarks.nodes.serving_parts import Parts, Sizes
from benchmarks.result import Result
from streamlearn.apps import AppFolder
from streamlearn.features import keys_of
from streamlearn.features.column_values import column_arrays
from streamlearn.interactions import InteractionBatch, encode_interactions
from streamlearn.load.requests import LoadRequests
from streamlearn.native import native
from streamlearn.online import FoldLoop, StateGroup, open_state_store
from streamlearn.online.state_store import StatePlace
from streamlearn.topics import TopicSettings, create_topic, delete_topic
from tools.services import Redis

__all__ = ["node_figures"]

Note = Callable[[str], None]

_APP, _KINDS, _MESSAGE_ROWS = "serving_features", ("click", "impression"), 4_096
_INTERACTIONS, _DAY_MS = 1_000_000, 86_400_000
_SHARE, _AWAY_SHARE = 0.5, 0.4
_AWAY_S, _QUICK_AWAY_S = 60, 6


def node_figures(note: Note, *, quick: bool) -> dict[str, float]:
    """Return the figures of a node with states in a Redis of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder,
        Redis.start(Path(folder) / "redis") as redis,
    ):
        place = Path(folder)
        export(place / "graphs", _APP)
        sizes = Sizes(values=5_000 if quick else 50_000, rounds=1 if quick else 5)
        parts = Parts(sizes, note, Result("features"), place)
        model = parts.model(_APP)
        app = _with_states(model.folder, redis.url, place)
        note("folding the interactions of its users and items")
        _fold(app, sizes.values, _INTERACTIONS // (20 if quick else 1))
        with parts.node(model, "node", (f"features.store={redis.url}",)) as node:
            return _measured(parts, app, model, node, redis, quick=quick)


def _with_states(folder: AppFolder, store: str, place: Path) -> AppFolder:
    settings = folder.settings
    topics = msgspec.structs.replace(settings.topics, root=f"memory://{place.name}-")
    features = msgspec.structs.replace(settings.features, store=store)
    return replace(folder, settings=msgspec.structs.replace(settings, topics=topics, features=features))


def _fold(folder: AppFolder, values: int, count: int) -> None:
    """Fold interactions of the last day."""
    rng, spec, now_ms = np.random.default_rng(3), folder.app.features, round(1_000 * time.time())
    with create_topic(folder.topic_url("interactions"), TopicSettings(partitions=1, retention_ms=-1)) as topic:
        with topic.writer() as writer:
            for begin in range(0, count, _MESSAGE_ROWS):
                rows = min(_MESSAGE_ROWS, count - begin)
                of_users, of_items = rng.integers(0, values, rows), rng.zipf(1.3, rows) % values
                numbers = np.arange(begin, begin + rows)
                batch = InteractionBatch(
                    side="user",
                    kinds=_KINDS,
                    sources=("video_id",),
                    ingest_run=1,
                    identity=(numbers + 1).astype(np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15),
                    user=keys_of(spec.slot(spec.user_slot), of_users),
                    item=keys_of(spec.slot(spec.item_id), of_items),
                    kind=(rng.random(rows) > 0.3).astype(np.uint8),
                    event_time_ms=now_ms - _DAY_MS + (numbers * (_DAY_MS / count)).astype(np.int64),
                    weight=np.ones(rows, np.float32),
                    number=np.full(rows, np.nan, np.float32),
                    values=of_items[:, None],
                )
                writer.append(0, [encode_interactions(batch), encode_interactions(batch.take(slice(None), "item"))])
        with closing(FoldLoop(folder)) as loop:
            while loop.behind:
                loop.step()
        delete_topic(topic.url)


def _filled(folder: AppFolder, asked: LoadRequests) -> LoadRequests:
    """Return requests with the columns that a node would compute."""
    spec, sides = folder.app.features, {"user": dict(asked.user), "item": dict(asked.item)}
    with open_state_store(folder) as store:
        for entity in spec.entities:
            keys = keys_of(spec.slot(entity.slot), sides[entity.side][entity.slot])
            group = store.current(folder.app.name, entity)
            assert group is not None
            stored = _stored(store, group, keys.tolist())
            times = np.full(len(keys), round(1_000 * time.time()), np.int64)
            _, _, arrays = native.Features(entity.definition).evaluate(
                stored, np.arange(len(keys), dtype=np.uint32), times
            )
            for column, of_column in zip(entity.columns, arrays, strict=True):
                values, begins = column_arrays(column, of_column, len(keys))
                sides[entity.side][column.name] = values
                if begins is not None and not hasattr(column, "width"):
                    sides[entity.side][f"{column.name}[]"] = begins
    return LoadRequests(sides["user"], sides["item"], asked.offsets)


def _stored(store: Any, group: StateGroup, keys: list[int]) -> list[bytes | None]:
    stored: list[bytes | None] = []
    for begin in range(0, len(keys), _MESSAGE_ROWS):
        stored += store.read([StatePlace(group, key) for key in keys[begin : begin + _MESSAGE_ROWS]])
    return stored


def _measured(
    parts: Parts, folder: AppFolder, model: ServingModel, node: ServingNode, redis: Redis, *, quick: bool
) -> dict[str, float]:
    asked, computed = (
        model.requests(REQUESTS),
        {column.name for one in folder.app.features.entities for column in one.columns},
    )
    user, item = (
        {name: column for name, column in side.items() if name.removesuffix("[]") not in computed}
        for side in (asked.user, asked.item)
    )
    plain = LoadRequests(user, item, asked.offsets)
    loads = {
        name: node.load(model.messages(of)) for name, of in (("computed", plain), ("sent", _filled(folder, plain)))
    }
    both = [Contender(name, load, lambda: None, lambda: None) for name, load in loads.items()]
    found = peaks(both, parts.sizes.rounds, parts.note, quick=quick)
    rates = {name: statistics.median(rates) for name, rates in found.items()}
    figures = {f"node.{name}_goodput_per_s": rate for name, rate in rates.items()}
    figures["goodput_to_sent"] = rates["computed"] / rates["sent"]
    figures |= _latencies(parts, loads, _SHARE * rates["sent"])
    parts.note("the store is away")
    figures |= _away(loads["computed"], redis, _AWAY_SHARE * rates["computed"], _QUICK_AWAY_S if quick else _AWAY_S)
    meters = node.meters()
    figures["node.states_bad"] = meters["streamlearn_serving_feature_states_bad_total"]
    return figures


def _latencies(parts: Parts, loads: dict[str, Any], rate: float) -> dict[str, float]:
    """Return the latencies at one rate, measured by turns."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in loads}
    for at in range(2 * parts.sizes.rounds + 1):
        for name in sorted(loads, reverse=bool(at % 2)):
            latency = poisson(loads[name], rate, parts.sizes.seconds, at).latency_ms
            taken[name].append((latency["p50"] or math.nan, latency["p99"] or math.nan))
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in taken.items()}
    (p50, p99), (sent_p50, sent_p99) = medians["computed"], medians["sent"]
    return {
        "node.rate_per_s": rate,
        "node.computed_p50_ms": p50,
        "node.computed_p99_ms": p99,
        "node.sent_p50_ms": sent_p50,
        "node.sent_p99_ms": sent_p99,
        "p50_over_sent_ms": p50 - sent_p50,
        "p99_to_sent": p99 / sent_p99,
    }


def _away(load: Any, redis: Redis, rate: float, seconds: int) -> dict[str, float]:
    """Return what a load sees while the store is killed, after an equal time with it."""
    quiet = poisson(load, rate, seconds, 1)
    killer = threading.Timer(1.0, redis.kill)
    killer.start()
    away = poisson(load, rate, seconds, 2)
    killer.join()
    redis.restart()
    return {
        "away_failed": float(away.failed),
        "away_quiet_failed": float(quiet.failed),
        "away_p99_to_quiet": (away.latency_ms["p99"] or math.nan) / (quiet.latency_ms["p99"] or math.nan),
        "away_requests": float(away.due),
    }
