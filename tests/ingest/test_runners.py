"""Runners are named, get the options that make them right, and are refused where they are wrong."""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apache_beam
import grpc
import msgspec
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, StandardOptions
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.runner import create_runner
from apache_beam.runners.worker import statecache, worker_pool_main
from apache_beam.runners.worker.sdk_worker import SdkWorker

from streamlearn.errors import ServiceError, TopicUnreachable, UsageError
from streamlearn.ingest import ProgressLog, begin_run
from streamlearn.ingest.beam import state_cache as ours
from streamlearn.ingest.beam.prism import Prism
from streamlearn.ingest.beam.runners import RUNNERS, require_job_server, runner_options
from streamlearn.ingest.beam.samples_job import SamplesJob
from streamlearn.ingest.beam.state_cache import use_byte_sizes
from streamlearn.ingest.beam.worker_pool import listen_on_loopback
from streamlearn.settings.ingest import IngestSettings
from streamlearn.testing import ManualClock
from tests.ingest.place import Place

_ODD_PRISM = """\
#!{python}
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc

server = grpc.server(ThreadPoolExecutor(1))
server.add_insecure_port("{host}:" + sys.argv[sys.argv.index("--job_port") + 1])
server.start()
server.wait_for_termination()
"""


def given(options: PipelineOptions) -> dict[str, Any]:
    return options.get_all_options(drop_default=True)


def test_a_job_may_run_for_years() -> None:
    flink = IngestSettings(runner="flink", job_endpoint="127.0.0.1:8099")
    for settings in (IngestSettings(), flink):
        timeout_s = runner_options(settings).view_as(PortableOptions).job_server_timeout
        assert timeout_s > 5 * 365 * 86_400


def test_prism_comes_from_the_cache_where_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMLEARN_CACHE", str(tmp_path))
    assert "prism_location" not in given(runner_options(IngestSettings()))  # Beam downloads its own
    for kind in ("", "-loopback", "-loopback-2"):  # of those that are there the newest is taken
        binary = tmp_path / f"prism-{apache_beam.__version__}{kind}" / "prism"
        binary.parent.mkdir()
        binary.touch()
        assert given(runner_options(IngestSettings()))["prism_location"] == str(binary)


def test_prism_on_a_read_only_file_system_is_copied_since_beam_changes_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMLEARN_CACHE", str(tmp_path / "cache"))
    binary = tmp_path / "prism"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    settings = IngestSettings(prism_location=str(binary))
    assert given(runner_options(settings))["prism_location"] == str(binary)
    there = os.statvfs(binary)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=there.f_flag | os.ST_RDONLY))
    for _ in range(2):
        copy = Path(given(runner_options(settings))["prism_location"])
        assert copy.is_relative_to(tmp_path / "cache")
        assert (copy.read_text(), copy.stat().st_mode & 0o777) == ("#!/bin/sh\n", 0o755)
    assert [*copy.parent.iterdir()] == [copy]


@pytest.mark.parametrize("endpoint", ["127.0.0.1:1", "nowhere", "127.0.0.1:x", "127.0.0.1:99999"])
def test_a_job_server_that_is_not_there_is_told_at_once(endpoint: str) -> None:
    options = runner_options(IngestSettings(runner="flink", job_endpoint=endpoint))
    with pytest.raises(ServiceError, match=f"cannot reach a job server at {endpoint}") as caught:
        require_job_server(options)
    assert "ingest.job_endpoint" in caught.value.help


def test_a_port_beyond_the_last_one_is_not_taken_for_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:  # resolvers take ports modulo 65,536
        endpoint = f"127.0.0.1:{other.getsockname()[1] + 65_536}"
        options = runner_options(IngestSettings(runner="flink", job_endpoint=endpoint))
        with pytest.raises(ServiceError, match=f"cannot reach a job server at {endpoint}"):
            require_job_server(options)


def test_prism_is_the_default_and_runs_workers_in_this_process() -> None:
    found = given(runner_options(IngestSettings()))
    assert found["runner"] == "PrismRunner"
    assert found["environment_type"] == "LOOPBACK"
    assert found["streaming"] is True
    assert "prism_disable_sdf_split" in found["experiments"]
    located = IngestSettings(prism_location="/opt/prism")
    assert given(runner_options(located))["prism_location"] == "/opt/prism"


def test_flink_gets_a_job_server_checkpoints_and_bundles_that_end() -> None:
    settings = IngestSettings(runner="flink", job_endpoint="127.0.0.1:8099", checkpoint_s=2.5, parallelism=3)
    options = runner_options(settings, more=["--job_name=ingest"])
    found = given(options)
    assert found["runner"] == "PortableRunner"
    assert found["job_endpoint"] == "127.0.0.1:8099"
    assert found["job_name"] == "ingest"
    flags = set(options._flags or ())
    assert {"--checkpointing_interval=2500", "--max_bundle_time_mills=100", "--parallelism=3"} <= flags
    # Each poll leaves a state for ever, whose size is proportional to this: 128 would fill a gigabyte in minutes.
    assert "--max_parallelism=16" in flags
    # Else a stage that has no more work never gives what a checkpoint found unfinished: all there is to read, perhaps.
    assert "--finish_bundle_before_checkpointing" in flags
    # Flink then finishes the step that reads, in the midst of it: no more checkpoints, and no time goes on.
    assert not any(flag.startswith("--shutdown_sources") for flag in options._flags or ())


def test_flink_without_a_job_server_says_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"ingest\.job_endpoint is not set") as caught:
        runner_options(IngestSettings(runner="flink"))
    assert "ingest.job_endpoint" in caught.value.help


@pytest.mark.parametrize("name", [name for name, kind in RUNNERS.items() if kind == "direct"] + ["DirectRunner"])
def test_runners_whose_timers_are_wrong_on_topics_are_refused_there_and_allowed_for_a_backfill(name: str) -> None:
    with pytest.raises(UsageError, match="event-time timers fire at once") as caught:
        runner_options(IngestSettings(), runner=name)
    assert "--runner prism" in caught.value.help
    options = runner_options(IngestSettings(), runner=name, is_bounded=True)
    assert not options.view_as(StandardOptions).streaming
    assert type(create_runner(options.view_as(StandardOptions).runner)).__name__ == "FnApiRunner"


def test_a_runner_nobody_knows_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown runner 'spark'"):
        runner_options(IngestSettings(), runner="spark")
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"runner": "spark"}, IngestSettings)


def test_sizes_of_cached_state_are_byte_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statecache, "get_deep_size", statecache.get_deep_size)
    assert use_byte_sizes()
    assert use_byte_sizes()
    assert statecache.get_deep_size([b"x" * 10_000, b"y" * 10_000]) in range(20_000, 20_400)
    cache = statecache.StateCache(1 << 20)
    cache.put("a key", [b"z" * 50_000])
    assert cache._current_weight in range(50_000, 50_400)


def test_beams_own_sizes_stay_where_its_release_is_not_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = statecache.get_deep_size if statecache.get_deep_size is not ours.size_of else len
    monkeypatch.setattr(statecache, "get_deep_size", kept)
    monkeypatch.setattr(apache_beam, "__version__", "2.99.0")
    monkeypatch.setattr(ours, "_warned", [])
    with caplog.at_level(logging.WARNING):
        assert not use_byte_sizes()
        assert not use_byte_sizes()
    assert statecache.get_deep_size is kept
    assert caplog.text.count("the state cache of Beam 2.99.0 is unknown") == 1


def test_a_worker_pool_answers_on_127_0_0_1_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool_main, "grpc", grpc)
    listen_on_loopback()
    address, server = worker_pool_main.BeamFnExternalWorkerPoolServicer.start()
    port = int(address.rpartition(":")[2])
    try:
        socket.create_connection(("127.0.0.1", port), 120.0).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), 120.0)
    finally:
        server.stop(None)


@pytest.mark.parametrize(("host", "warnings"), [("0.0.0.0", 1), ("127.0.0.1", 0)])
def test_a_prism_that_listens_on_all_networks_is_named_with_the_remedy(
    host: str, warnings: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    binary = tmp_path / "prism"
    binary.write_text(_ODD_PRISM.format(python=sys.executable, host=host))
    prism = Prism(PipelineOptions([f"--prism_location={binary}"]))
    try:
        with caplog.at_level(logging.WARNING):
            prism.start()
            prism.start()
    finally:
        prism.stop()
    assert caplog.text.count(f"{binary}, listens on all networks") == warnings
    assert caplog.text.count("Install Go") == warnings


def test_while_prism_runs_progress_is_answered_without_figures(tmp_path: Path) -> None:
    binary, before = tmp_path / "prism", SdkWorker.process_bundle_progress
    binary.write_text(_ODD_PRISM.format(python=sys.executable, host="127.0.0.1"))
    binary.chmod(0o755)
    prism = Prism(PipelineOptions([f"--prism_location={binary}"]))
    try:
        prism.start()
        worker = object.__new__(SdkWorker)  # it looks at none of its bundles
        answer = worker.process_bundle_progress(beam_fn_api_pb2.ProcessBundleProgressRequest(), "7")
        assert answer.instruction_id == "7"
        assert answer.WhichOneof("response") == "process_bundle_progress"
        assert not answer.process_bundle_progress.monitoring_data
    finally:
        prism.stop()
    assert SdkWorker.process_bundle_progress is before


def test_a_broker_that_does_not_answer_whether_a_run_has_ended_does_not_end_it(place: Place) -> None:
    class Away:
        def check(self, run: int) -> Any:
            message = "nobody answers"
            raise TopicUnreachable(message, help="wait")

    job = object.__new__(SamplesJob)
    clock = ManualClock()
    job._plan, job._clock, job._asked_s = begin_run(place.folder), clock, 0.0
    away: Any = Away()
    clock.sleep(60)
    assert not job._has_ended(away)
    with ProgressLog.open(job._plan.progress_url, job._plan.access) as log:
        log.end(job._plan.run, job._plan.lineage, range(4))
        assert not job._has_ended(log)  # it was asked just now
        clock.sleep(60)
        assert job._has_ended(log)


@pytest.mark.parametrize("more", ["--environment_type=PROCESS", "--experiments=use_loopback_process_worker"])
def test_a_worker_elsewhere_is_refused_on_prism_which_would_not_hear_of_its_death(more: str) -> None:
    with pytest.raises(UsageError, match=r"uses the ingest process itself") as caught:
        runner_options(IngestSettings(), more=[more])
    assert "--runner flink" in caught.value.help
