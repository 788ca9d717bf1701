"""The time from an action to the value that is served, through ingest and folding as they run live."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.streams.ingest_place import ROOT, end_of, running
from streamlearn.apps import AppFolder, load_app
from streamlearn.errors import ServiceError
from streamlearn.events import Producer
from streamlearn.online import FeatureReader
from streamlearn.topics import create_topic
from tools.services import FlinkJobServer, Redis, prism_path

__all__ = ["latency_figures"]

Note = Callable[[str], None]

_APP, _PARTITIONS = ROOT / "benchmarks" / "features_app", 2
_FLINK_CHECKPOINT_S = 1
_BEGIN_S, _PROBE_S, _POLL_S, _SHOWN_S = 180.0, 30.0, 0.01, 0.5
# Probes at once, and the traffic beside them.
_USERS, _OTHERS_PER_S = 8, 400


def latency_figures(note: Note, *, quick: bool) -> dict[str, float]:
    """Return the figures on Prism and, where it is there, on Flink."""
    rounds = 3 if quick else 30
    figures = {}
    for name in ("prism", "flink"):
        note(f"from actions to values on {name}")
        with (
            tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder,
            Redis.start(Path(folder) / "redis") as redis,
        ):
            place = Path(folder)
            changes = [f"topics.root=file://{place}/topics", f"features.store={redis.url}", "ingest.lots=4"]
            if name == "prism":
                delays_s = _delays_s(place, [*changes, f"ingest.prism_location={prism_path()}"], rounds)
            else:
                with FlinkJobServer.start(place / "flink") as server:
                    delays_s = _delays_s(place, [*changes, *_on(server)], rounds)
        prefix = "" if name == "prism" else "flink."
        for share in (50, 99):
            figures[f"{prefix}action_to_value_p{share}_s"] = float(np.percentile(delays_s, share))
        figures[f"{prefix}action_to_value_probes"] = float(len(delays_s))
    return figures


def _on(server: FlinkJobServer) -> list[str]:
    return [
        "ingest.runner=flink",
        f"ingest.job_endpoint={server.job_endpoint}",
        f"ingest.artifact_endpoint={server.artifact_endpoint}",
        f"ingest.checkpoint_s={_FLINK_CHECKPOINT_S}",
    ]


def _delays_s(place: Path, changes: Sequence[str], rounds: int) -> list[float]:
    folder = load_app(_APP, changes)
    for name in folder.topics:
        create_topic(folder.topic_url(name), folder.topic_settings(name, _PARTITIONS)).close()
    sets = [word for change in changes for word in ("--set", change)]
    words = [sys.executable, "-m", "streamlearn"]
    log = place / "processes.log"
    with (
        running([*words, "ingest", str(_APP), *sets], log) as ingest,
        running([*words, "features", "fold", str(_APP), *sets], log),
        FeatureReader(folder, wait_s=1.0) as reader,
        Producer(folder) as producer,
    ):
        probes = _Probes(folder, reader, producer)
        try:
            probes.follow(_BEGIN_S)  # until everything runs
            return [delay_s for _ in range(rounds) for delay_s in probes.follow(_PROBE_S)]
        except ServiceError as error:
            message = f"{error.message}; ingest {ingest.poll()}; {end_of(log)}"
            raise ServiceError(message) from error


class _Probes:
    """Clicks of users of their own, which are followed until they are values."""

    def __init__(self, folder: AppFolder, reader: FeatureReader, producer: Producer) -> None:
        self._reader, self._producer, self._next = reader, producer, 1
        self._others = 0

    def follow(self, wait_s: float) -> list[float]:
        """Send a click of each of some users; return the seconds until its item is a value.

        Raises:
            ServiceError: One is not within `wait_s`.
        """
        users = list(range(self._next, self._next + _USERS))
        self._next += _USERS
        for user in users:
            self._show(f"probe-{user}", user)
        self._producer.flush()
        self._traffic(_SHOWN_S)
        sent_s = {}
        for user in users:
            self._producer.action(f"probe-{user}", _now_ms(), user, "click")
            self._producer.flush()
            sent_s[user] = time.monotonic()
        delays_s, until_s = [], time.monotonic() + wait_s
        while sent_s:
            waiting = list(sent_s)
            found = self._reader.users(waiting).values["seen"]
            now_s = time.monotonic()
            delays_s += [now_s - sent_s.pop(user) for user, seen in zip(waiting, found, strict=True) if user in seen]
            if now_s > until_s:
                message = f"{len(sent_s)} of {len(users)} clicks are no values after {wait_s:.0f} s"
                raise ServiceError(message)
            self._traffic(_POLL_S)
        return delays_s

    def _traffic(self, seconds: float) -> None:
        """Show items to others for a while."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            for _ in range(max(1, round(_OTHERS_PER_S * _POLL_S))):
                self._others += 1
                self._show(f"other-{self._others}", 10_000_000 + self._others % 1_000)
            self._producer.flush()
            time.sleep(_POLL_S)

    def _show(self, request: str, user: int) -> None:
        self._producer.impression(request, _now_ms(), user={"user_id": user}, items=[{"item_id": user}])


def _now_ms() -> int:
    return round(1_000 * time.time())
