"""Events to samples on a real Flink: what a trainer learns is the oracle's, whatever dies and stops in between."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from streamlearn.apps import AppFolder
from streamlearn.ingest import begin_run
from streamlearn.testing import wait_until
from tests.ingest.family import LOOPBACK, hosts_of
from tests.ingest.history import STEP_MS, T_MS, acknowledged_ms, learned, messages, outcomes, write_app
from tests.ingest.on_flink import DEADLINE_S, Feed, children, code_of, ended, log_of, run_on, worker_pool
from tests.ingest.test_backfill import check_features
from tests.ingest.test_samples_pipeline import check_messages, job, wait_for_progress
from tests.listener import listening
from tools.services import FlinkJobServer, Kafka


def check_learned(app: AppFolder, *, restores: int = 0) -> None:
    """Each (identity, label) that the oracle knows is learned, once, with the oracle's label, and no other."""
    expected = outcomes(app)
    assert len(expected) > 300
    assert sum(expected.values()) > 40
    assert learned(app) == expected
    check_features(app)
    check_messages(app, restores=restores)


def test_a_run_on_flink_that_is_told_to_stop_drains_and_another_runner_goes_on_from_t0(
    flink: FlinkJobServer, prism: Path, tmp_path: Path
) -> None:
    app = write_app(tmp_path / "app", prism, lots=4)
    feed = Feed(app)
    feed.more(150)
    with run_on(flink, app) as told:
        feed.until_acknowledged(T_MS + 160 * STEP_MS, told)
        assert hosts_of(told.pid) == [LOOPBACK]  # of its worker pool
        told.send_signal(signal.SIGTERM)
        report = ended(app, told)
    assert report["stopped"]
    assert report["start_ms"] is None
    stopped_ms = acknowledged_ms(app)
    feed.more(50, end=True)
    with job(app) as last:  # on Prism
        report = ended(app, last)
    assert not report["stopped"]
    assert report["start_ms"] == stopped_ms - 3_600_000 - 30_000
    check_learned(app)


def test_flink_killed_in_the_midst_ends_the_run_and_the_next_one_loses_nothing_and_ends_with_its_topics(
    flink: FlinkJobServer, tmp_path: Path
) -> None:
    app = write_app(tmp_path / "app", Path("/nowhere"), lots=4)
    feed = Feed(app)
    feed.more(150)
    with run_on(flink, app) as orphan:
        feed.until_acknowledged(T_MS + 160 * STEP_MS, orphan)
        flink.kill()
        try:
            assert code_of(app, orphan) == 1, log_of(app)
        finally:
            flink.launch()
    feed.more(50, end=True)
    with run_on(flink, app) as last:
        report = ended(app, last)
    assert not report["stopped"]
    assert report["run"] > 1
    assert report["start_ms"] is not None
    check_learned(app)


def test_a_worker_killed_in_the_midst_is_replaced_by_flink_and_goes_on_from_its_checkpoint(
    flink: FlinkJobServer, tmp_path: Path
) -> None:
    app = write_app(tmp_path / "app", Path("/nowhere"), lots=4)
    feed = Feed(app)
    feed.more(150)
    logged = len(flink.log.read_text())
    with worker_pool(app) as (pool, address):
        changes = ("ingest.environment=EXTERNAL", f"ingest.environment_config={address}")
        with run_on(flink, app, *changes) as process:
            feed.until_acknowledged(T_MS + 160 * STEP_MS, process)
            (worker,) = children(pool.pid)
            os.kill(worker, signal.SIGKILL)
            feed.until(lambda: children(pool.pid) not in ([], [worker]), "Flink has another worker", process)
            reached_ms = acknowledged_ms(app)
            feed.until_acknowledged(reached_ms + 50 * STEP_MS, process)
            feed.more(10, end=True)
            report = ended(app, process)
            # Each of a file: what Flink may keep in memory instead is not large, and a longer run than this has more.
            restores = len(re.findall(r"Restoring job \w+ from .* located at file:", flink.log.read_text()[logged:]))
    assert restores >= 1
    assert report["run"] == 1  # Flink restored its checkpoint, and no run was begun anew
    assert not report["stopped"]
    check_learned(app, restores=restores)
    assert len({batch.header.ingest_run for _, batch in messages(app)}) == 1


def test_a_run_on_flink_gives_signs_of_life_while_its_job_goes_on_and_ends_once_a_newer_one_has_begun(
    flink: FlinkJobServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = write_app(tmp_path / "app", Path("/nowhere"), lots=4)
    Feed(app).more(50)
    with listening(monkeypatch) as (listener, _), run_on(flink, app) as replaced:
        wait_for_progress(app, replaced, T_MS)
        listener.heard()
        listener.wait("WATCHDOG=1")
        flink.pause()
        try:
            listener.wait_silence(3.0)
        finally:
            flink.resume()
        listener.wait("WATCHDOG=1")
        begin_run(app)
        assert code_of(app, replaced) == 1
    assert "has taken over from run 1" in log_of(app)


def test_what_a_worker_raises_again_and_again_on_flink_ends_the_run_as_itself(
    flink: FlinkJobServer, tmp_path: Path
) -> None:
    app = write_app(tmp_path / "app", Path("/nowhere"), lots=4)
    feed = Feed(app)
    feed.more(50)
    with run_on(flink, app) as process:
        wait_until(lambda: "ingest reads from" in log_of(app), "the run begins", DEADLINE_S)
        shutil.rmtree(Path(app.topic_url("samples").removeprefix("file://")))
        feed.more(50)  # the samples of those before may have been written
        assert code_of(app, process) == 1
    assert "error: topic" in log_of(app)


def test_topics_of_a_broker_are_joined_on_flink_to_the_last_identity(
    kafka: Kafka, flink: FlinkJobServer, topic_name: str, tmp_path: Path
) -> None:
    app = write_app(tmp_path / "app", Path("/nowhere"), lots=4, prefix=f"kafka://{kafka.address}/{topic_name}-")
    feed = Feed(app)
    feed.more(150)
    with run_on(flink, app) as process:
        wait_for_progress(app, process, T_MS + 100 * STEP_MS)
        feed.more(20, end=True)  # after what was there when it began
        report = ended(app, process)
    assert report["run"] == 1
    assert not report["stopped"]
    check_learned(app)
