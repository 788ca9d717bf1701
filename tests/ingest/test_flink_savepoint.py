"""A Flink cluster of its own: a job that is stopped there with a savepoint, and the next run, which begins from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamlearn.testing import wait_until
from tests.ingest.history import STEP_MS, T_MS, messages, write_app
from tests.ingest.on_flink import DEADLINE_S, Feed, ended, run_on
from tests.ingest.slow_samples import rows_made
from tests.ingest.test_flink import check_learned
from tests.ingest.test_samples_pipeline import wait_for_progress
from tools.services import FlinkJobServer
from tools.services.flink_cluster import FlinkJobs


def running(cluster: FlinkJobs) -> str:
    """The id of the one job that runs; empty: none does."""
    return next((one["id"] for one in cluster.ask("/jobs")["jobs"] if one["status"] == "RUNNING"), "")


def stopped_with_savepoint(cluster: FlinkJobs) -> str:
    """Where the savepoint is of the job that runs, which is stopped."""
    job = running(cluster)
    request = cluster.ask(f"/jobs/{job}/stop", {"drain": False})["request-id"]

    def done() -> dict[str, Any] | None:
        found: dict[str, Any] = cluster.ask(f"/jobs/{job}/savepoints/{request}")
        return found["operation"] if found["status"]["id"] == "COMPLETED" else None

    found = wait_until(done, "the savepoint", DEADLINE_S)
    assert found is not None
    assert "location" in found, found
    return str(found["location"])


def test_a_run_begins_from_the_savepoint_that_the_run_before_was_stopped_with(
    own_flink_cluster: FlinkJobs, flink: FlinkJobServer, tmp_path: Path
) -> None:
    cluster, there = own_flink_cluster, f"--flink_master={own_flink_cluster.address}"
    app = write_app(tmp_path / "app", Path("/nowhere"), lots=4)
    feed = Feed(app)
    feed.more(300)
    with run_on(flink, app, beam=[there]) as stopped:
        wait_for_progress(app, stopped, T_MS + 200 * STEP_MS)
        savepoint = stopped_with_savepoint(cluster)
        report = ended(app, stopped)
    assert report["stopped"]
    feed.more(20, end=True)
    with run_on(flink, app, beam=[there, f"--savepoint_path={savepoint}"]) as last:
        job = wait_until(lambda: running(cluster), "the next job runs", DEADLINE_S)
        restored = cluster.ask(f"/jobs/{job}/checkpoints")["latest"]["restored"]
        report = ended(app, last)
    assert restored["is_savepoint"]
    assert restored["external_path"] == savepoint
    assert report["run"] > 1
    assert not report["stopped"]
    check_learned(app)
    # Nothing was joined again, as it is from T0 on without a savepoint.
    rows = rows_made(batch for _, batch in messages(app))
    assert len({(row.identity, row.labels) for row in rows}) == len(rows)
