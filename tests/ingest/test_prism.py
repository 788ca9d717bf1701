"""Reading on a real runner: everything that was written comes to its lot, also across the death of a run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamlearn.apps import AppFolder, load_app
from streamlearn.events import Producer
from streamlearn.testing import small_impression, wait_until
from streamlearn.topics import create_topic, open_topic
from tests.events.place import written
from tests.ingest.history import acknowledged_ms, watched
from tests.ingest.place import T_MS, longest_window_ms

REQUESTS, STEP_MS, PARTITIONS = 1_000, 10_000, 2
DEADLINE_S = 300.0
_APP = """\
from streamlearn.testing import small_app

app = small_app()
"""
_SETTINGS = """\
[topics]
time = "event"

[ingest]
lots = 4
poll_s = 0.02
blob_bytes = 20000
"""


def write_app(folder: Path) -> AppFolder:
    (folder / "app.py").write_text(_APP)
    (folder / "app.toml").write_text(_SETTINGS)
    app = load_app(folder)
    create_topic(app.topic_url("progress"), app.topic_settings("progress", 1)).close()
    for name in ("impressions", "actions", "dead_letters"):
        create_topic(app.topic_url(name), app.topic_settings(name, PARTITIONS)).close()
    return app


def fill(app: AppFolder, first: int, *, end: bool) -> None:
    """Requests ten seconds of event time apart, each with an action, and heartbeats in between."""
    with Producer(app) as producer:
        for seed in range(first, first + REQUESTS):
            given = small_impression(seed) | {"event_time_ms": T_MS + seed * STEP_MS}
            producer.impression(**given)
            producer.action(given["request_id"], given["event_time_ms"] + 1, given["items"][0]["video_id"], "click")
            if seed % 50 == 49:
                producer.heartbeat(given["event_time_ms"] + STEP_MS - 1)
        if end:
            producer.end(T_MS + (first + REQUESTS) * STEP_MS)


@contextmanager
def job(app: AppFolder, prism: Path, counts_url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run of the job in a process of its own, killed afterwards with the runner that it started."""
    flags = [f"--prism_location={prism}", "--prism_log_level=error"]
    call = f"from tests.ingest.counting import run; run({str(app.folder)!r}, {counts_url!r}, {flags!r})"
    log = app.folder / "job.log"
    with log.open("ab") as out:
        process = subprocess.Popen([sys.executable, "-c", call], stdout=out, stderr=out, start_new_session=True)
        try:
            yield process
        finally:
            subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], capture_output=True, check=False)
            process.wait()


def counted(counts_url: str) -> list[dict[str, Any]]:
    with open_topic(counts_url) as topic:
        return [json.loads(record.value) for record in written(topic)]


def identities(said: list[dict[str, Any]], what: str, run: int | None = None) -> Counter[tuple[int, ...]]:
    return Counter(tuple(one) for line in said if run in (None, line["run"]) for one in line[what])


def test_everything_that_was_written_comes_to_its_lot_also_when_a_run_is_killed(prism: Path, tmp_path: Path) -> None:
    app = write_app(tmp_path)
    counts_url = f"{tmp_path.as_uri()}/counts"
    create_topic(counts_url).close()
    fill(app, 0, end=False)
    with job(app, prism, counts_url) as first, watched(app) as reached_ms:
        # Its last heartbeat is that of request 999: all up to then is acknowledged before it is killed.
        def has_read_all() -> bool:
            assert first.poll() is None, (app.folder / "job.log").read_text()[-4000:]
            is_far = reached_ms() >= T_MS + (REQUESTS - 20) * STEP_MS
            return is_far and len(identities(counted(counts_url), "impressions")) == REQUESTS

        wait_until(has_read_all, "the first run has acknowledged what there is", DEADLINE_S)
        first.send_signal(signal.SIGKILL)
    first_run = identities(counted(counts_url), "impressions")
    assert len(first_run) == REQUESTS
    t0_ms = acknowledged_ms(app) - longest_window_ms(app) - 30_000
    assert t0_ms > T_MS + 100 * STEP_MS

    fill(app, REQUESTS, end=True)
    with job(app, prism, counts_url) as second:
        assert second.wait(DEADLINE_S) == 0, (app.folder / "job.log").read_text()[-4000:]
    said = counted(counts_url)
    runs = sorted({line["run"] for line in said})
    assert len(runs) == 2
    again = identities(said, "impressions", runs[1])
    assert {time_ms for *_, time_ms in again} == {
        # Impressions of one longest window before T0 claim their items.
        T_MS + seed * STEP_MS
        for seed in range(2 * REQUESTS)
        if T_MS + seed * STEP_MS >= t0_ms - longest_window_ms(app)
    }
    for what in ("impressions", "actions"):
        assert len(identities(said, what)) == 2 * REQUESTS  # each of them, and no other
        for run in runs:
            assert set(identities(said, what, run).values()) == {1}  # and once a run
    assert acknowledged_ms(app) >= T_MS + (2 * REQUESTS - 100) * STEP_MS
    assert {line["lot"] for line in said} == set(range(app.settings.ingest.lots))
