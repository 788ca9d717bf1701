"""Settings of ingest: how events are read, and which runner gets them, with which options."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from streamlearn.apps import AppFolder
from streamlearn.errors import PartlyDone, PipelineFailed
from streamlearn.events import Producer
from streamlearn.features import Entity
from streamlearn.ingest import begin_run, run_samples
from streamlearn.ingest.beam import prism
from streamlearn.ingest.beam.cut_lots import cutter_of
from streamlearn.ingest.beam.source import read_events
from streamlearn.ingest.reading import run_watermark
from streamlearn.ingest.reading.pair import PairReader
from streamlearn.online import StateGroup, open_state_store
from streamlearn.testing import small_impression
from streamlearn.topics import create_topic
from tests.ingest.history import messages
from tests.ingest.place import origins, reading, take, take_all
from tests.settings.conftest import Load
from tests.settings.probes import heeds

T_MS = 1_700_000_000_000


def with_topics(folder: AppFolder, partitions: int = 1) -> AppFolder:
    for name in folder.topics:
        settings = replace(folder.topic_settings(name, partitions), retention_ms=-1)
        create_topic(folder.topic_url(name), settings).close()
    return folder


def write(folder: AppFolder, *times_s: float, act: bool = True, end: bool = False) -> None:
    """An impression at each time, in a record of its own; with `act`, an action on the first, at its time."""
    with Producer(folder) as producer:
        for number, time_s in enumerate(times_s):
            given = small_impression(number) | {"event_time_ms": T_MS + round(1_000 * time_s)}
            producer.impression(**given)
            if act and not number:
                producer.action(given["request_id"], given["event_time_ms"], given["items"][0]["video_id"], "click")
            producer.flush()
        if end:
            producer.end(T_MS + round(1_000 * times_s[-1]))


@contextmanager
def reader_of(folder: AppFolder) -> Iterator[PairReader]:
    with reading(replace(begin_run(folder), progress_url="")) as reader:
        yield reader


@heeds("ingest.out_of_orderness_s")
def test_the_watermark_is_behind_the_newest_event_by_what_the_setting_says(small: Load) -> None:
    folder = with_topics(small("topics.time=event", "ingest.out_of_orderness_s=7.5"))
    write(folder, 0)
    with reader_of(folder) as reader:
        take(reader)
        assert reader.watermark_ms == T_MS - 7_500


@heeds("ingest.ahead_s_max")
def test_an_event_that_is_further_ahead_than_the_setting_becomes_a_dead_letter(small: Load) -> None:
    folder = with_topics(small("topics.time=event", "ingest.ahead_s_max=50"))
    write(folder, 0, 40, 100)
    plan = begin_run(folder)
    cutter, letters = cutter_of(folder, plan)
    with reader_of(folder) as reader, closing(letters):
        cut = cutter.cut(take(reader))
    assert [(failure.reason, origin.offset) for failure, origin in cut.failures] == [("impossible_time", 2)]


@heeds("ingest.lots")
def test_requests_are_cut_into_the_lots_of_the_setting(small: Load) -> None:
    folder = with_topics(small("topics.time=event", "ingest.lots=3"))
    write(folder, *range(30), end=True)
    cutter, letters = cutter_of(folder, begin_run(folder))
    with reader_of(folder) as reader, closing(letters):
        lots = {events.lot for blob in take_all(reader) for events in cutter.cut(blob).lots}
    assert lots == {0, 1, 2}


@heeds("ingest.lead_s")
def test_impressions_are_read_ahead_of_actions_by_no_more_than_the_setting(small: Load) -> None:
    folder = with_topics(small("topics.time=event", "ingest.lead_s=3.5"))
    write(folder, *range(20))
    with reader_of(folder) as reader:
        read: list[tuple[str, int]] = []
        while ("impressions", 4) not in read:
            read += origins(take(reader))
        assert reader.take() is None
        assert reader._has(0), "the next impression is there, and waits"
    assert len(read) == 6


@heeds("ingest.blob_bytes")
def test_blobs_have_no_more_bytes_than_the_setting(small: Load) -> None:
    folder = with_topics(small("topics.time=event", "ingest.blob_bytes=4097"))
    write(folder, *range(60), end=True)
    with reader_of(folder) as reader:
        blobs = take_all(reader)
    sizes = [sum(len(value or b"") for value in (*blob.impressions.values, *blob.actions.values)) for blob in blobs]
    assert len(sizes) > 2
    assert all(size < 4_097 + 500 for size in sizes), "a blob ends with the record that fills it"


@heeds("ingest.idle_s", "ingest.read_ahead_bytes", "ingest.poll_s")
def test_readers_have_the_bounds_of_the_settings(small: Load) -> None:
    odd = ("ingest.idle_s=1.75", "ingest.read_ahead_bytes=3_000_003", "ingest.poll_s=0.0625")
    folder = with_topics(small(*odd), partitions=3)
    with reader_of(folder) as reader:
        assert {puller._limits.idle_s for puller in reader._pullers} == {1.75}
        assert reader._ledger._bound_bytes == 1_000_001  # a third for each partition
    step = read_events(begin_run(folder), whole=True)._step
    assert (step._poll_interval, step._quiet_s) == (0.0625, 0.2)


@heeds("ingest.flush_s")
def test_what_is_acknowledged_is_read_twice_in_the_time_in_which_it_is_written(
    small: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    class Closing:
        def wait(self, seconds: float) -> bool:
            waits.append(seconds)
            return True

        def set(self) -> None: ...

    monkeypatch.setattr(run_watermark, "threading", SimpleNamespace(Event=Closing, Thread=threading.Thread))
    plan = begin_run(with_topics(small("ingest.flush_s=3.5")))
    run_watermark.Acknowledged(plan)._thread.join()
    assert waits == [1.75]


class Begun(Exception):
    """A job would begin now."""


def options_of(folder: AppFolder, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Beam's options of a run of ingest."""
    found: list[PipelineOptions] = []

    def begin(*, options: PipelineOptions) -> None:
        found.append(options)
        raise Begun

    monkeypatch.setattr("streamlearn.ingest.beam.samples_job.beam.Pipeline", begin)
    with pytest.raises(Begun):
        run_samples(folder, None)  # type: ignore[arg-type]
    return set(found[0]._flags or ())


@heeds(
    "ingest.runner", "ingest.job_endpoint", "ingest.artifact_endpoint", "ingest.environment",
    "ingest.environment_config", "ingest.parallelism", "ingest.checkpoint_s",
)  # fmt: skip
def test_flink_gets_the_options_of_the_settings(small: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
        folder = with_topics(
            small(
                "ingest.runner=flink", f"ingest.job_endpoint={endpoint}", "ingest.artifact_endpoint=127.0.0.1:7",
                "ingest.environment=EXTERNAL", "ingest.environment_config=127.0.0.1:9", "ingest.parallelism=7",
                "ingest.checkpoint_s=12.5",
            )
        )  # fmt: skip
        options = options_of(folder, monkeypatch)
    assert options >= {
        "--runner=PortableRunner", f"--job_endpoint={endpoint}", "--artifact_endpoint=127.0.0.1:7",
        "--environment_type=EXTERNAL", "--environment_config=127.0.0.1:9", "--parallelism=7",
        "--checkpointing_interval=12500",
    }  # fmt: skip


@heeds("ingest.prism_location")
def test_prism_is_started_where_the_setting_says(small: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def start(command: list[str], **_: Any) -> None:
        started.append(command[0])
        raise Begun

    binary = tmp_path / "odd-prism"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    monkeypatch.setattr("streamlearn.ingest.beam.prism.subprocess.Popen", start)
    with pytest.raises(PipelineFailed):
        run_samples(with_topics(small(f"ingest.prism_location={binary}")), None)  # type: ignore[arg-type]
    assert started == [str(binary)]


@heeds("ingest.runner", "ingest.stretch_s", "ingest.dead_share_max", "samples.message_rows_max")
def test_a_backfill_heeds_its_runner_its_stretches_and_its_dead_letters(
    small: Load, verb: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prism.Prism, "start", lambda _: pytest.fail("prism is the default runner"))
    odd = [f"topics.root=file://{tmp_path}/topics", "topics.time=event", "ingest.runner=direct"]
    odd += ["ingest.stretch_s=2_500", "ingest.dead_share_max=0.01", "samples.message_rows_max=7"]
    folder = with_topics(small(*odd))
    write(folder, *range(0, 4_000, 100), end=True)
    with folder.open_topic("impressions") as topic, topic.writer() as writer:
        writer.append(0, [b"garbage"], timestamps_ms=[T_MS])
    done = verb("backfill", folder.folder, "--json", *[word for change in odd for word in ("--set", change)])
    assert json.loads(done.stdout)["stretches"] == 2
    assert isinstance(done.exception, PartlyDone)
    assert "2.4% of the events became dead letters" in done.exception.message
    assert {len(batch) for _, batch in messages(folder)} - {0} <= set(range(1, 8))


@heeds("features.store")
def test_states_are_where_the_setting_says(small: Load, tmp_path: Path) -> None:
    with open_state_store(small(f"features.store=sqlite://{tmp_path}/odd/states.db")) as store:
        entity = Entity("user", "user_id", (), (), (), "{}", 7)
        store.claim(StateGroup.of("small", entity, 1), 0)
    assert (tmp_path / "odd" / "states.db").exists()
