"""Events to samples on a real runner: what a trainer learns is the oracle's, whatever dies and stops in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamlearn.apps import AppFolder
from streamlearn.cli.doctor.app_findings import app_findings
from streamlearn.events import Producer
from streamlearn.ingest import ProgressLog
from streamlearn.ingest.output.progress_keeper import partitions_of
from streamlearn.ingest.output.progress_log import DeadShare
from streamlearn.testing import small_impression, wait_until
from streamlearn.topics import partition_of
from tests.ingest.family import ANY, LOOPBACK, family_of, hosts_of, is_alive, one_of
from tests.ingest.history import (
    STEP_MS,
    T_MS,
    acknowledged_ms,
    fill,
    learned,
    messages,
    outcomes,
    records_of,
    watched,
    write_app,
)
from tests.listener import listening

DEADLINE_S = 300.0


@contextmanager
def job(app: AppFolder) -> Iterator[subprocess.Popen[str]]:
    """A run in a process of its own, killed afterwards with the runner that it started."""
    call = [sys.executable, "-m", "streamlearn", "ingest", str(app.folder), "--json"]
    with (app.folder / "job.log").open("a") as log:
        process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        try:
            yield process
        finally:
            subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], capture_output=True, check=False)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def ended(app: AppFolder, process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a run says that has ended well."""
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, (app.folder / "job.log").read_text()[-4000:]
    found: dict[str, Any] = json.loads(out)
    return found


def wait_for_progress(app: AppFolder, process: subprocess.Popen[str], time_ms: int) -> None:
    with watched(app) as reached_ms:

        def has_come() -> bool:
            assert process.poll() is None, (app.folder / "job.log").read_text()[-4000:]
            return reached_ms() >= time_ms

        wait_until(has_come, f"progress of {time_ms} ms", DEADLINE_S)


def test_what_is_learned_is_the_oracles_though_a_run_is_killed_and_another_stopped(prism: Path, tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", prism, lots=5)
    fill(app, 0, 400)
    with job(app) as killed:
        wait_for_progress(app, killed, T_MS + 300 * STEP_MS)
        killed.send_signal(signal.SIGKILL)
    fill(app, 400, 300)
    with job(app) as told:
        wait_for_progress(app, told, T_MS + 600 * STEP_MS)
        told.send_signal(signal.SIGTERM)
        report = ended(app, told)
    assert report["stopped"]
    assert report["run"] > 1
    assert report["start_ms"] > T_MS
    stopped_ms = acknowledged_ms(app)
    assert T_MS + 600 * STEP_MS <= stopped_ms <= T_MS + 700 * STEP_MS
    fill(app, 700, 100, end=True)
    with job(app) as last:
        report = ended(app, last)
    assert not report["stopped"]
    assert report["start_ms"] == stopped_ms - 3_600_000 - 30_000
    expected = outcomes(app)
    assert len(expected) > 1_500
    assert learned(app) == expected
    assert sum(expected.values()) > 200
    check_messages(app)


def test_a_job_whose_runner_stands_still_says_no_more_that_it_works(
    prism: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = write_app(tmp_path / "app", prism, lots=2)
    fill(app, 0, 40)
    with listening(monkeypatch) as (heard, _), job(app) as process:
        heard.wait("READY=1", "WATCHDOG=1")
        wait_for_progress(app, process, T_MS + 20 * STEP_MS)
        for _ in range(5):  # where nothing comes, too
            heard.wait("WATCHDOG=1")
        runner = one_of(family_of(process.pid), "--job_port")
        os.kill(runner, signal.SIGSTOP)
        heard.wait_silence(0.5)
        os.kill(runner, signal.SIGCONT)
        heard.wait("WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        heard.wait("STOPPING=1")
        assert ended(app, process)["stopped"]


def test_a_running_ingest_and_its_runner_listen_for_this_machine_alone(prism: Path, tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", prism, lots=2)
    fill(app, 0, 40)
    with job(app) as process:
        wait_for_progress(app, process, T_MS + 20 * STEP_MS)
        runner = one_of(family_of(process.pid), "--job_port")
        is_built = "-loopback" in prism.parent.name  # not downloaded, for lack of Go
        assert hosts_of(process.pid) == [LOOPBACK]  # neither has another port
        assert hosts_of(runner) == [LOOPBACK if is_built else ANY]
    assert is_built != ("listens on all networks" in (app.folder / "job.log").read_text())


def test_a_running_ingest_says_that_its_events_become_dead_letters(prism: Path, tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", prism, lots=2)
    with app.open_topic("actions") as topic, topic.writer() as writer:
        writer.append(0, [b"garbage"] * 2_000, timestamps_ms=[T_MS] * 2_000)
    fill(app, 0, 300)
    with job(app) as process, closing(DeadShare(app)) as dead_share:
        wait_for_progress(app, process, T_MS + 100 * STEP_MS)
        wait_until(lambda: dead_share() > 0.5, "it says so", DEADLINE_S)
        assert "became dead letters" in (app.folder / "job.log").read_text()
        (wrong,) = (one for one in app_findings(app.folder, []) if one.state == "wrong")
        assert wrong.what == "dead letters"


def test_a_second_signal_ends_a_run_and_its_runner_at_once_and_the_next_leaves_no_partition_silent(
    prism: Path, tmp_path: Path
) -> None:
    app = write_app(tmp_path / "app", prism, lots=2, samples=5)
    fill(app, 0, 100)
    with job(app) as process:
        wait_for_progress(app, process, T_MS + 50 * STEP_MS)
        # The run may not end before the second signal comes.
        os.kill(one_of(family_of(process.pid), "--job_port"), signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        # Sooner, the second might come before Python has looked at the first, and be one with it.
        wait_until(
            lambda: "has stopped reading" in (app.folder / "job.log").read_text(), "the signal has come", DEADLINE_S
        )
        family = family_of(process.pid)
        assert one_of(family, "--job_port")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
        wait_until(lambda: not any(map(is_alive, family)), "the runner has ended")
    fill(app, 100, 50, end=True)
    with job(app) as process:
        report = ended(app, process)
    assert report["counts"]["impressions"] >= 150
    assert learned(app) == outcomes(app)
    assert {partition for partition, _ in messages(app)} == set(range(5))
    check_messages(app)


def test_a_stop_ends_every_lot_where_partitions_stand_far_apart(prism: Path, tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", prism, lots=4)
    fill(app, 0, 100)
    far_ms = T_MS + 100 * STEP_MS + 3 * 3_600_000
    _go_on_alone(app, far_ms)
    with job(app) as process:
        wait_for_progress(app, process, T_MS + 90 * STEP_MS)
        wait_until(lambda: _is_set_aside(app, b"no event"), "the partition that is ahead was read", DEADLINE_S)
        process.send_signal(signal.SIGTERM)
        report = ended(app, process)
    assert report["stopped"]
    with ProgressLog.open(app.topic_url("progress"), app.access) as log:
        assert log.standing().has_ended(report["run"], app.settings.ingest.lots)
    with Producer(app) as producer:
        producer.end(far_ms + 1_000)
    with job(app) as process:
        assert not ended(app, process)["stopped"]
    assert learned(app) == outcomes(app)


def _go_on_alone(app: AppFolder, until_ms: int) -> None:
    """Partition 0 of both topics has a request of a time that the other does not come to, and then what is no event."""
    seed = next(seed for seed in range(1_000, 2_000) if _is_first(small_impression(seed)["request_id"]))
    given = small_impression(seed) | {"event_time_ms": until_ms}
    with Producer(app) as producer:
        producer.impression(**given)
        producer.action(given["request_id"], until_ms, given["items"][0]["video_id"], "click")
    with app.open_topic("impressions") as topic, topic.writer() as writer:
        writer.append(0, [b"no event"], [b""])


def _is_first(request_id: str) -> bool:
    return partition_of(request_id.encode(), 2) == 0


def _is_set_aside(app: AppFolder, value: bytes) -> bool:
    with app.open_topic("dead_letters") as topic:
        return any(value in letter for *_, letter in records_of(topic))


def check_messages(app: AppFolder, *, restores: int = 0) -> None:
    """Each lot's samples are in its partition, and in the order of its time; in the end all say the same time.

    A run that its runner restored so many times goes on from earlier samples as often, under its number.
    """
    lots = app.settings.ingest.lots
    watermarks: dict[tuple[int, int, int], int] = {}
    returns: Counter[tuple[int, int, int]] = Counter()
    last: dict[int, int] = {}
    for partition, batch in messages(app):
        said = batch.header
        allowed = partitions_of(said.lot, lots, 5 if lots == 2 else 3)
        assert partition in allowed if len(batch) == 0 else partition == allowed[0]
        last[partition] = max(said.watermark_ms, last.get(partition, 0))
        if len(batch):
            assert batch.settle_time_ms.max() < said.watermark_ms
            where = partition, said.lot, said.ingest_run
            returns[where] += said.watermark_ms < watermarks.get(where, 0)
            assert returns[where] <= restores
            watermarks[where] = said.watermark_ms
    assert len(set(last.values())) == 1
