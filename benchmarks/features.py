"""Computed features: folded, read, served by a node, checked under faults; and what they are worth."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from redis import Redis as Client

from benchmarks.histories.features_gain import kuairand_figures, recent_figures
from benchmarks.nodes.features_node import node_figures
from benchmarks.online_reads import compare_reads
from benchmarks.result import Result
from benchmarks.streams.features_check import check_figures
from benchmarks.streams.features_latency import latency_figures
from benchmarks.streams.ingest_place import running
from streamlearn.apps import App, AppFolder
from streamlearn.features import Count, Dense, FeatureSpec, Label, LabelGroup, Last, Rate, Since, Slot, keys_of
from streamlearn.interactions import InteractionBatch, encode_interactions
from streamlearn.online import FeatureReader, Fold, StateGroup, open_state_store
from streamlearn.settings import Settings
from streamlearn.topics import Topic, TopicSettings, create_topic, delete_topic
from tools.services import Redis, prism_path

__all__ = ["SPEC", "run"]

Note = Callable[[str], None]

_KINDS = ("click", "like", "impression")
_ITEMS, _MESSAGE_ROWS, _REPEATS_MAX = 36, 4_096, 1 << 24
_PEER, _QUICK_PEER, _PEER_S_MAX = 20_000, 3_000, 300.0
_BEGIN_MS, _DAY_MS = 1_700_000_000_000, 86_400_000
_END_MS = _BEGIN_MS + _DAY_MS
_TURN_S = 2.0
# So long that no slow read becomes a short one without values.
_READER_WAIT_S = 5.0
SPEC = FeatureSpec(
    slots=(
        Slot("user_id", "user"),
        Slot("seen", "user", multi=True, keys_of="item_id", computed=Last("item_id", ("click", "like"), 50)),
        Slot("pause", "user", computed=Since("impression"), default=-1),
        Slot("item_id", "item"),
    ),
    dense=(
        Dense("counts", "user", width=4, computed=Count(("impression", "click"), ("1h", "7d")), default=0),
        Dense("rates", "item", width=2, computed=Rate("click", "impression", ("1h", "1d"), (0.1, 20)), default=0),
    ),
    item_id="item_id",
)


def run(quick: bool, note: Note) -> Result:
    """Measure folding, reading and serving, with states in a Redis; if quick, without Feast."""
    result, users, count = Result("features"), 2_000 if quick else 50_000, 100_000 if quick else 2_000_000
    with tempfile.TemporaryDirectory() as folder, Redis.start(Path(folder) / "redis") as redis:
        app = _application(Path(folder), redis.url)
        topic = create_topic(app.topic_url("interactions"), TopicSettings(partitions=1, retention_ms=-1))
        try:
            note(f"{count:,} interactions of {users:,} users")
            _write(topic, count, users)
            _measure_fold(app, topic, count, result.figures)
            note("reading")
            _measure_reads(app, redis.url, users, 10.0 if quick else 60.0, result)
            if not quick:
                with (
                    FeatureReader(app, wait_s=_READER_WAIT_S) as reader,
                    FeatureReader(_without_cache(app), wait_s=_READER_WAIT_S) as uncached,
                ):
                    compare_reads(reader, uncached, redis.address, result, note, users=users, at_ms=_END_MS)
        finally:
            delete_topic(topic.url)
            topic.close()
    _measure_peer(quick, note, result)
    result.figures |= node_figures(note, quick=quick)
    result.figures |= latency_figures(note, quick=quick)
    result.figures |= check_figures(note, quick=quick)
    result.figures |= kuairand_figures(note, quick=quick)
    result.figures |= recent_figures(note, quick=quick)
    return result


def _measure_peer(quick: bool, note: Note, result: Result) -> None:
    """Fold as a Beam job of single interactions."""
    note("per_event_beam: a job of single interactions")
    command = [sys.executable, "-m", "benchmarks.streams.fold_job", str(_QUICK_PEER if quick else _PEER)]
    command += [f"--prism_location={prism_path()}", "--prism_log_level=error"]
    with tempfile.TemporaryDirectory() as folder, running(command, Path(folder) / "log") as process:
        rate = float(process.communicate(timeout=_PEER_S_MAX)[0].splitlines()[-1])
    result.figures["per_event_beam_interactions_per_s"] = rate
    result.ratios["ratio_per_event_beam"] = result.figures["user.fold_interactions_per_s"] / rate


def _application(folder: Path, store: str) -> AppFolder:
    labels = (Label("click", "click", "fast"), Label("like", "like", "fast"))
    app = App("features", SPEC, (LabelGroup("fast", 60, 600),), labels)
    said = {"topics": {"root": f"memory://{folder.name}-"}, "features": {"store": store}}
    return AppFolder(app, folder, msgspec.convert(said, Settings))


def _without_cache(folder: AppFolder) -> AppFolder:
    """Return the application with readers that keep no states of items."""
    features = msgspec.structs.replace(folder.settings.features, item_age_s=0.0)
    return replace(folder, settings=msgspec.structs.replace(folder.settings, features=features))


def _write(topic: Topic, count: int, users: int) -> None:
    """Write interactions, a day of event time, for users and for items."""
    rng = np.random.default_rng(1)
    with topic.writer() as writer:
        for begin in range(0, count, _MESSAGE_ROWS):
            rows = min(_MESSAGE_ROWS, count - begin)
            numbers = np.arange(begin, begin + rows)
            of_users = rng.integers(0, users, rows)
            of_items = rng.zipf(1.3, rows) % (users // 2)
            batch = InteractionBatch(
                side="user",
                kinds=_KINDS,
                sources=("item_id",),
                ingest_run=1,
                identity=(numbers + 1).astype(np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15),
                user=keys_of(SPEC.slot("user_id"), of_users),
                item=keys_of(SPEC.slot("item_id"), of_items),
                kind=rng.choice(3, rows, p=(0.2, 0.05, 0.75)).astype(np.uint8),
                event_time_ms=_BEGIN_MS + (numbers * (_DAY_MS / count)).astype(np.int64),
                weight=np.ones(rows, np.float32),
                number=np.full(rows, np.nan, np.float32),
                values=of_items[:, None],
            )
            writer.append(0, [encode_interactions(batch), encode_interactions(batch.take(slice(None), "item"))])


def _measure_fold(folder: AppFolder, topic: Topic, count: int, figures: dict[str, float]) -> None:
    with topic.reader() as reader, open_state_store(folder) as store:
        for entity in SPEC.entities:
            group = StateGroup.of(folder.app.name, entity, 1)
            store.switch(group)
            settings = folder.settings.features
            fold = Fold(store, entity, group, reader, 0, repeats_max=_REPEATS_MAX, settings=settings)
            begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
            while fold.step():
                pass
            wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
            if fold.counts.folded < count // 10:
                message = f"{fold.counts}"
                raise AssertionError(message)
            figures[f"{entity.side}.fold_interactions_per_s"] = count / wall_s
            figures[f"{entity.side}.fold_cpu_us"] = 1e6 * cpu_s / count


def _measure_reads(folder: AppFolder, url: str, users: int, seconds: float, result: Result) -> None:
    """Read a user and candidates, beside a pipeline of redis-py for the same keys, in turns."""
    rng = np.random.default_rng(2)
    requests = [(int(rng.integers(users)), (rng.zipf(1.3, _ITEMS) % (users // 2)).tolist()) for _ in range(2_000)]
    names = [_names(folder, user, items) for user, items in requests]
    durations: dict[str, list[float]] = {"read": [], "redis": []}
    with FeatureReader(_without_cache(folder)) as reader, Client.from_url(url) as client:

        def read(number: int) -> Any:
            user, items = requests[number]
            return reader.fill({"user_id": user}, [{"item_id": item} for item in items], _END_MS)

        def bare(number: int) -> Any:
            pipeline = client.pipeline(transaction=False)
            for name in names[number]:
                pipeline.get(name)
            return pipeline.execute()

        if (outcome := read(0).outcome) != "known":
            raise AssertionError(outcome)
        end_s, turn, number = time.perf_counter() + seconds, 0, 0
        while time.perf_counter() < end_s:
            kind, call = (("read", read), ("redis", bare))[turn % 2]
            until_s = time.perf_counter() + min(_TURN_S, seconds / 6)
            while time.perf_counter() < until_s:
                number = (number + 1) % len(requests)
                begin_s = time.perf_counter()
                call(number)
                durations[kind].append(time.perf_counter() - begin_s)
            turn += 1
    for kind, all_s in durations.items():
        result.figures[f"{kind}_p50_us"] = 1e6 * statistics.median(all_s)
        result.figures[f"{kind}_p99_us"] = 1e6 * float(np.quantile(all_s, 0.99))
    result.figures["read_p50_to_redis"] = result.figures["read_p50_us"] / result.figures["redis_p50_us"]


def _names(folder: AppFolder, user: int, items: list[int]) -> list[str]:
    """Return the names of the states of a request, as the store has them."""
    keys = {"user": keys_of(SPEC.slot("user_id"), [user]), "item": keys_of(SPEC.slot("item_id"), items)}
    found = []
    for entity in SPEC.entities:
        group = StateGroup.of(folder.app.name, entity, 1)
        found += [f"streamlearn:{{{group.name}:0}}:s:{key:016x}" for key in keys[entity.side].tolist()]
    return found
