"""Served values against their interactions, while ingest, folding and Redis are killed and two processes fold."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.streams.ingest_place import ROOT, running
from streamlearn.apps import AppFolder, load_app
from streamlearn.events import Producer
from streamlearn.online import FeatureReader, check_served
from streamlearn.topics import create_topic
from tools.services import Redis, prism_path

__all__ = ["check_figures"]

Note = Callable[[str], None]

_APP, _PARTITIONS = ROOT / "benchmarks" / "features_app", 2
_USERS, _ITEMS, _SHOWN = 500, 2_000, 50
_VALUES, _QUICK_VALUES = 1_000_000, 60_000
_FAULT_S, _SAVED_S = 4.0, 1.0


def check_figures(note: Note, *, quick: bool) -> dict[str, float]:
    """Serve values until there are enough, under faults; return how many differ from their interactions."""
    values_min = _QUICK_VALUES if quick else _VALUES
    with (
        tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder,
        Redis.start(Path(folder) / "redis") as redis,
    ):
        changes = [f"topics.root=file://{folder}/topics", f"features.store={redis.url}", "ingest.lots=4"]
        changes.append(f"ingest.prism_location={prism_path()}")
        app = load_app(_APP, changes)
        for name in app.topics:
            create_topic(app.topic_url(name), app.topic_settings(name, _PARTITIONS)).close()
        with _Faults(changes, Path(folder), redis) as faults:
            outcomes = _serve(app, values_min, lambda: faults.count)
            counted = dict(faults.count)
        note(f"{outcomes}; faults: {counted}")
        found = check_served(app, 0)
    return {
        "check_differences": float(found.differences),
        "check_values": float(found.values),
        "check_unavailable": float(found.unavailable),
        "check_faults": float(sum(counted.values())),
    }


def _serve(app: AppFolder, values_min: int, faults: Callable[[], dict[str, int]]) -> dict[str, int]:
    """Show items with computed columns and click on some, until enough values were served and each fault came."""
    rng, outcomes, values, number = np.random.default_rng(5), dict[str, int](), 0, 0
    with FeatureReader(app, wait_s=1.0) as reader, Producer(app) as producer:
        while values < values_min or min(faults().values()) < 1:
            number += 1
            user = {"user_id": int(rng.integers(_USERS))}
            items = [{"item_id": one} for one in rng.choice(_ITEMS, _SHOWN, replace=False).tolist()]
            filled, now_ms = reader.fill(user, items), round(1_000 * time.time())
            computed = filled.of_impression(items)
            outcomes[filled.outcome] = outcomes.get(filled.outcome, 0) + 1
            producer.impression(f"q{number}", now_ms, user=user, items=items, computed=computed)
            for item in items[: int(rng.integers(3))]:
                producer.action(f"q{number}", now_ms, item["item_id"], "click")
            values += 0 if filled.outcome == "unavailable" else 1 + _SHOWN
            if number % 20 == 0:
                producer.flush()
    return outcomes


class _Faults:
    """Runs ingest and two processes that fold, and kills one after the other; each is started again.

    Attributes:
        count: How often each was killed.
    """

    def __init__(self, changes: list[str], place: Path, redis: Redis) -> None:
        sets = [word for change in changes for word in ("--set", change)]
        call = [sys.executable, "-m", "streamlearn"]
        fold = [*call, "features", "fold", str(_APP), *sets]
        self._calls = {"ingest": [*call, "ingest", str(_APP), *sets], "fold": fold, "another fold": fold}
        self._log, self._redis, self._place = place / "processes.log", redis, place
        self._running = {name: ExitStack() for name in self._calls}
        self.count = dict.fromkeys([*self._calls, "redis"], 0)
        self._over, self._thread = threading.Event(), threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Faults:
        for name in self._calls:
            self._start(name)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        for stack in self._running.values():
            stack.close()

    def _start(self, name: str) -> None:
        self._running[name].enter_context(running(self._calls[name], self._log))

    def _run(self) -> None:
        while True:
            for name in self.count:
                if self._over.wait(_FAULT_S):
                    return
                if name == "redis":
                    self._lose_tail()
                else:
                    self._running[name].close()  # it kills
                    self._start(name)
                self.count[name] += 1

    def _lose_tail(self) -> None:
        """Have Redis come back with what it had a second ago: its log of writes as it was then."""
        (log,) = self._place.glob("redis/**/appendonlydir")
        kept = self._place / "appendonlydir"
        shutil.copytree(log, kept)
        self._over.wait(_SAVED_S)
        self._redis.kill()
        shutil.rmtree(log)
        kept.rename(log)
        self._redis.restart()
