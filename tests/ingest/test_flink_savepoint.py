"""A Flink cluster of its own: a job that is stopped there with a savepoint, and the next run, which begins from it."""

from __future__ import annotations

from pathlib import Path

from streamlearn.testing import wait_until
from tests.ingest.history import STEP_MS, T_MS, messages, write_app
from tests.ingest.on_flink import DEADLINE_S, Feed, ended, run_on
from tests.ingest.slow_samples import rows_made
from tests.ingest.test_flink import check_learned
from tests.ingest.test_samples_pipeline import wait_for_progress
from tools.services import FlinkJobServer
from tools.services.flink_cluster import FlinkJobs


def test_a_run_with_more_instances_begins_from_the_savepoint_that_the_run_before_was_stopped_with(
    own_flink_cluster: FlinkJobs, flink: FlinkJobServer, tmp_path: Path
) -> None:
    cluster, there = own_flink_cluster, f"--flink_master={own_flink_cluster.address}"
    app = write_app(tmp_path / "app", Path("/nowhere"), lots=4)
    feed = Feed(app)
    feed.more(300)
    with run_on(flink, app, "ingest.parallelism=2", beam=[there]) as stopped:
        wait_for_progress(app, stopped, T_MS + 200 * STEP_MS)
        job = cluster.running()
        assert len(cluster.task_managers(job)) == 2
        savepoint = cluster.stop_with_savepoint(job, DEADLINE_S)
        report = ended(app, stopped)
    assert report["stopped"]
    feed.more(20)
    with run_on(flink, app, "ingest.parallelism=4", beam=[there, f"--savepoint_path={savepoint}"]) as last:
        job = wait_until(cluster.running, "the next job runs", DEADLINE_S)
        restored = cluster.ask(f"/jobs/{job}/checkpoints")["latest"]["restored"]
        feed.more(1, end=True)  # a job that has ended is not found
        report = ended(app, last)
    assert restored["is_savepoint"]
    assert restored["external_path"] == savepoint
    assert report["run"] > 1
    assert not report["stopped"]
    check_learned(app)
    # Nothing was joined again, as it is from T0 on without a savepoint.
    rows = rows_made(batch for _, batch in messages(app))
    assert len({(row.identity, row.labels) for row in rows}) == len(rows)
