"""Near-line figures: how many users' lists a node and a client make in a second, and how soon after an action.

A benchmark of retrieval gives the node and the users; the topics are made here, in memory.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from streamlearn.apps import AppFolder
from streamlearn.events import Producer
from streamlearn.features import keys_of
from streamlearn.interactions import InteractionBatch, encode_interactions
from streamlearn.nearline.nearline_loop import NearlineLoop
from streamlearn.nearline.node_search import NodeSearch
from streamlearn.online import FoldLoop
from streamlearn.topics import Topic, TopicSettings, create_topic
from streamlearn.versions.pointer.registry import Node

__all__ = ["NearlineRun", "action_to_list", "nearline_run", "nearline_users"]

_PARTITIONS, _WAIT_S = 4, 120.0
_NUMBERS = itertools.count(1)


@dataclass
class NearlineRun:
    """A loop that refreshes lists of known users, with what writes their actions."""

    loop: NearlineLoop
    actions: Topic
    keys: np.ndarray[Any, np.dtype[np.uint64]]

    def act(self, users: Sequence[int]) -> None:
        """Let some users act, by their numbers."""
        keys, count = self.keys[list(users)], len(users)
        batch = InteractionBatch(
            "user", ("action",), (), 1, np.array([next(_NUMBERS) for _ in users], np.uint64), keys, keys,
            np.zeros(count, np.uint8), np.full(count, time.time_ns() // 1_000_000), np.ones(count, np.float32),
            np.full(count, np.nan, np.float32), np.zeros((count, 0), np.int64),
        )  # fmt: skip
        with self.actions.writer() as writer:
            for partition in range(_PARTITIONS):
                rows = np.flatnonzero(keys % np.uint64(_PARTITIONS) == partition)
                if len(rows):
                    writer.append(partition, [encode_interactions(batch.take(rows))])

    def refreshed(self, count: int) -> None:
        """Step until `count` lists were written since the start."""
        until_s = time.monotonic() + _WAIT_S
        while self.loop.counts.refreshed < count:
            if time.monotonic() > until_s:
                message = f"{self.loop.counts} after {_WAIT_S:g} s"
                raise TimeoutError(message)
            if not self.loop.step():
                time.sleep(0.001)


@contextmanager
def nearline_run(
    folder: AppFolder,
    node: str,
    users: Sequence[Mapping[str, Any]],
    item: Mapping[str, Any],
    *,
    k: int = 0,
    is_ranked: bool = False,
) -> Iterator[NearlineRun]:
    """Refresh lists from the node at an address, for users with these features, without their computed columns.

    Lists have `k` items, by default as many as the settings allow.
    """
    nearline = "ranked" if is_ranked else "found"
    retrieval = msgspec.structs.replace(folder.settings.retrieval, nearline=nearline, settle_ms=0)
    topics = msgspec.structs.replace(folder.settings.topics, root=f"memory://nearline-{next(_NUMBERS)}-")
    made_for = msgspec.structs.replace(folder.settings, retrieval=retrieval, topics=topics)
    scratch = ExitStack()
    if not folder.settings.features.store:
        file = f"sqlite://{scratch.enter_context(tempfile.TemporaryDirectory())}/features.db"
        features = msgspec.structs.replace(folder.settings.features, store=file)
        made_for = msgspec.structs.replace(made_for, features=features)
    folder = replace(folder, settings=made_for)
    settings = TopicSettings(partitions=_PARTITIONS)
    made = {name: create_topic(folder.topic_url(name), settings) for name in ("impressions", "actions", "interactions")}
    spec, now_ms = folder.app.features, time.time_ns() // 1_000_000
    with Producer(folder) as producer:
        for number, user in enumerate(users):
            producer.impression(f"q{number}", now_ms, user=dict(user), items=[dict(item)])
    keys = keys_of(spec.slot(spec.user_slot), [user[spec.user_slot] for user in users])
    nodes = [Node(boot_id=node, name=node, state="ready", grpc=node)]
    search = NodeSearch(folder.app, k or retrieval.k_max, lambda: nodes, is_ranked=is_ranked)
    with scratch, NearlineLoop(folder, search) as loop:
        run = NearlineRun(loop, made["interactions"], keys)
        run.act(range(min(64, len(users))))
        with FoldLoop(folder) as fold:
            while fold.step() or fold.behind:
                pass
        run.refreshed(min(64, len(users)))
        yield run


def nearline_users(run: NearlineRun, rounds: int = 3) -> dict[str, float]:
    """Return the lists per second, and the processor time of this process for each, medians of rounds of all users.

    A node in this process is included in that time.
    """
    rates, costs = [], []
    for _ in range(rounds):
        before, count = run.loop.counts.refreshed, len(run.keys)
        run.act(range(count))
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        run.refreshed(before + count)
        rates.append(count / (time.perf_counter() - wall_s))
        costs.append((time.process_time() - cpu_s) / count * 1e6)
    return {"nearline_users_per_s": float(np.median(rates)), "nearline_cpu_us_per_user": float(np.median(costs))}


def action_to_list(run: NearlineRun, per_s: float, seconds: float) -> dict[str, float]:
    """Return the p99 of the time from an action until its list is in the store; users act one after the other."""
    before, waits, sent = run.loop.counts.refreshed, list[float](), list[float]()
    ended = threading.Event()

    def act() -> None:
        for number in range(min(int(per_s * seconds), len(run.keys))):
            run.act([number])
            sent.append(time.monotonic())
            ended.wait(1 / per_s)
        ended.set()

    acting = threading.Thread(target=act)
    acting.start()
    until_s = time.monotonic() + seconds + _WAIT_S
    while (not ended.is_set() or len(waits) < len(sent)) and time.monotonic() < until_s:
        is_busy = run.loop.step()
        # Lists are written in the order of actions.
        waits += [time.monotonic() - at for at in sent[len(waits) : run.loop.counts.refreshed - before]]
        if not is_busy:
            time.sleep(0.001)
    acting.join()
    return {"action_to_list_p99_s": float(np.quantile(waits, 0.99)), "actions": len(waits)}
