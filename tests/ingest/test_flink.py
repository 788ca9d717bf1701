"""Events to samples on a real Flink: what a trainer learns is the oracle's, whatever dies and stops in between."""

from __future__ import annotations

import signal
from pathlib import Path

from streamlearn.apps import AppFolder
from tests.ingest.history import STEP_MS, T_MS, acknowledged_ms, learned, outcomes, write_app
from tests.ingest.on_flink import DEADLINE_S, Feed, ended, log_of, run_on
from tests.ingest.test_samples_pipeline import check_messages, job
from tools.services import FlinkJobServer


def check_learned(app: AppFolder) -> None:
    """Each (identity, label) that the oracle knows is learned, once, with the oracle's label, and no other."""
    expected = outcomes(app)
    assert len(expected) > 300
    assert sum(expected.values()) > 40
    assert learned(app) == expected
    check_messages(app)


def test_a_run_on_flink_that_is_told_to_stop_drains_and_another_runner_goes_on_from_t0(
    own_flink: FlinkJobServer, prism: Path, tmp_path: Path
) -> None:
    app = write_app(tmp_path / "app", prism, lots=4)
    feed = Feed(app)
    feed.more(150)
    with run_on(own_flink, app) as told:
        feed.until_acknowledged(T_MS + 160 * STEP_MS, told)
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
    own_flink: FlinkJobServer, tmp_path: Path
) -> None:
    app = write_app(tmp_path / "app", Path("/nowhere"), lots=4)
    feed = Feed(app)
    feed.more(150)
    with run_on(own_flink, app) as orphan:
        feed.until_acknowledged(T_MS + 160 * STEP_MS, orphan)
        own_flink.kill()
        assert orphan.wait(DEADLINE_S) == 1, log_of(app)
    feed.more(50, end=True)
    own_flink.launch()
    with run_on(own_flink, app) as last:
        report = ended(app, last)
    assert not report["stopped"]
    assert report["run"] > 1
    assert report["start_ms"] is not None
    check_learned(app)
