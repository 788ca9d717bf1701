"""The replayer: its pace, heartbeats, end marks, limit and stop, on topics in memory and on files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.apps import App, AppFolder, load_app
from streamlearn.errors import ConfigError
from streamlearn.events import EventDecoder, Events, Producer, rows_of
from streamlearn.events.event import Columns
from streamlearn.features import FeatureSpec, Label, LabelGroup, Slot
from streamlearn.replay import HistoryBlock, Replayer, open_replay_topics
from streamlearn.replay.replayer import ReplayProgress, ReplayReport
from streamlearn.settings import Settings
from streamlearn.settings.events import ReplaySettings
from streamlearn.settings.topics import TopicsSettings
from streamlearn.testing import ManualClock, small_folder, wait_until
from streamlearn.topics import Topic
from tools.services import Kafka

BEGIN_MS = 1_650_000_000_000
REQUESTS = 40
PARTITIONS = 3
SYNTHETIC = Path(__file__).parents[2] / "examples" / "synthetic"


class OneASecond:
    """One request a second, each clicked on 1.5 s later."""

    events_count = 2 * REQUESTS
    begin_ms = BEGIN_MS

    def blocks(self, span_ms: int) -> Iterator[HistoryBlock]:
        number = np.arange(REQUESTS)
        ids: dict[str, Any] = {"request_id": np.full(2 * REQUESTS, ord("q"), np.uint8)}
        ids["request_id"][1::2] = number + 48
        ids["request_id$"] = np.arange(REQUESTS + 1, dtype=np.int32) * np.int32(2)
        shown_ms = BEGIN_MS + 1000 * number
        impressions: dict[str, Any] = {
            **ids,
            "event_time_ms": shown_ms,
            "user.user_id": number,
            "items.video_id": number,
        }
        impressions["items[]"] = np.arange(REQUESTS + 1, dtype=np.int32)
        actions: dict[str, Any] = {**ids, "event_time_ms": shown_ms + 1500, "item_id": number}
        actions["action"] = np.frombuffer(b"click" * REQUESTS, np.uint8)
        actions["action$"] = np.arange(REQUESTS + 1, dtype=np.int32) * np.int32(5)
        bounds = [*range(BEGIN_MS, BEGIN_MS + 1000 * REQUESTS + 1501, span_ms)]
        bounds.append(bounds[-1] + span_ms)
        shown, done = (np.searchsorted(one["event_time_ms"], bounds) for one in (impressions, actions))
        for at, until_ms in enumerate(bounds[1:]):
            yield HistoryBlock(
                rows_of(impressions, shown[at], shown[at + 1]),
                int(shown[at + 1] - shown[at]),
                rows_of(actions, done[at], done[at + 1]),
                int(done[at + 1] - done[at]),
                watermark_ms=until_ms,
                until_ms=until_ms,
            )


@pytest.fixture
def folder(tmp_path: Path) -> AppFolder:
    return _folder(tmp_path, f"memory://{uuid.uuid4().hex}")


def _folder(tmp_path: Path, topics_url: str) -> AppFolder:
    features = FeatureSpec(slots=(Slot("user_id", "user"), Slot("video_id", "item")), item_id="video_id")
    app = App("tiny", features, (LabelGroup("fast", 60, 600),), (Label("click", "click", "fast"),))
    topics = TopicsSettings(impressions=f"{topics_url}.i", actions=f"{topics_url}.a", time="event")
    replay = ReplaySettings(partitions=PARTITIONS, heartbeat_s=10.0)
    return small_folder(tmp_path, app, Settings(topics=topics, replay=replay))


def _replay(folder: AppFolder, clock: ManualClock, **options: Any) -> ReplayReport:
    with (
        open_replay_topics(folder) as (impressions, actions),
        Producer(folder, impressions=impressions, actions=actions, clock=clock) as producer,
    ):
        return Replayer(OneASecond(), producer, folder.settings.replay, clock=clock).run(**options)


def _reached(folder: AppFolder) -> int:
    """The last heartbeat that every partition of both topics has, since the begin."""
    written = [events for partitions in _written(folder) for events in partitions]
    return min(max((time_ms for _, time_ms in _controls(events)), default=0) for events in written)


def _values(topic: Topic, partition: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    with topic.reader() as reader:
        offset, end = reader.earliest(partition), reader.end(partition)
        while offset < end:
            records = reader.read(partition, offset)
            values += records.values
            offset = records.next_offset
    return values


def _written(folder: AppFolder) -> list[list[Events]]:
    """All that is in each partition of the impressions topic, then of the actions topic."""
    decoder = EventDecoder(folder.app, folder.settings.events)
    with open_replay_topics(folder, append=True) as topics:
        return [[decoder.decode(_values(topic, at)) for at in range(topic.partitions)] for topic in topics]


def _controls(events: Events) -> list[tuple[str, int]]:
    kinds = ("unknown", "heartbeat", "end")
    columns = events.controls.columns
    return [
        (kinds[kind], time_ms - BEGIN_MS)
        for kind, time_ms in zip(columns["kind"].tolist(), columns["event_time_ms"].tolist(), strict=True)
    ]


def test_every_event_is_written_once_beside_its_requests_actions(folder: AppFolder) -> None:
    report = _replay(folder, ManualClock())
    impressions, actions = _written(folder)
    assert (report.impressions, report.actions, report.ended) == (REQUESTS, REQUESTS, True)
    assert not any(part.failures for part in (*impressions, *actions))
    for shown, done in zip(impressions, actions, strict=True):
        assert shown.impressions.texts("request_id") == done.actions.texts("request_id")
    users = np.concatenate([part.impressions.columns["user.user_id"] for part in impressions])
    assert sorted(users.tolist()) == list(range(REQUESTS))


def test_impressions_are_produced_as_whoever_scores_them_gives_them_back(folder: AppFolder) -> None:
    given: list[int] = []

    def scored(columns: Columns, rows: int) -> Columns:
        given.extend(columns["user.user_id"].tolist())
        assert (columns["shown_wall_ms"] > 0).all()
        return {**columns, "served_version": np.full(rows, 7), "served_version?": np.ones(rows, np.bool_)}

    with (
        open_replay_topics(folder) as (impressions, actions),
        Producer(folder, impressions=impressions, actions=actions, clock=ManualClock()) as producer,
    ):
        Replayer(OneASecond(), producer, folder.settings.replay, clock=ManualClock(), scored=scored).run()
    assert given == list(range(REQUESTS))
    shown = [part.impressions.columns["served_version"] for part in _written(folder)[0]]
    assert np.concatenate(shown).tolist() == [7] * REQUESTS


def test_heartbeats_and_an_end_mark_are_on_every_partition_of_both_topics(folder: AppFolder) -> None:
    report = _replay(folder, ManualClock())
    reached_ms = report.reached_ms - BEGIN_MS
    wanted = [("heartbeat", time_ms) for time_ms in range(10_000, reached_ms + 1, 10_000)] + [("end", reached_ms)]
    assert reached_ms == 50_000
    for topic in _written(folder):
        assert [_controls(part) for part in topic] == [wanted] * PARTITIONS


def test_no_event_follows_a_heartbeat_of_a_later_time(folder: AppFolder) -> None:
    _replay(folder, ManualClock(), speed=7.0)
    decoder = EventDecoder(folder.app, folder.settings.events)
    checked = 0
    with open_replay_topics(folder, append=True) as topics:
        for topic in topics:
            for partition in range(topic.partitions):
                promised_ms = 0
                for value in _values(topic, partition):
                    events = decoder.decode([value])
                    for kind in (events.impressions, events.actions):
                        assert (kind.columns["event_time_ms"] >= promised_ms).all()
                        checked += len(kind)
                    promised_ms = max([promised_ms, *events.controls.columns["event_time_ms"].tolist()])
    assert checked == 2 * REQUESTS


@pytest.mark.parametrize("speed", [0.5, 1.0, 20.0, 1000.0])
def test_the_pace_is_the_speed_asked_for(folder: AppFolder, speed: float) -> None:
    clock = ManualClock(wall_ms=1_800_000_000_000)
    report = _replay(folder, clock, speed=speed)
    assert report.seconds == pytest.approx((report.reached_ms - BEGIN_MS) / 1000 / speed, rel=1e-6)
    for part in _written(folder)[0]:
        columns = part.impressions.columns
        since_s = (columns["event_time_ms"] - BEGIN_MS) / 1000 / speed
        shown_s = (columns["shown_wall_ms"] - 1_800_000_000_000) / 1000
        # Never before its time, and at most one block after it.
        block_s = max(0.05, 0.001 / speed)
        assert (shown_s >= since_s - 0.001).all()
        assert (shown_s <= since_s + block_s + 0.001).all()


def test_without_a_speed_no_time_passes(folder: AppFolder) -> None:
    clock = ManualClock()
    assert _replay(folder, clock).seconds == 0
    assert clock.monotonic_s() == 0


@pytest.mark.parametrize(("speed", "count"), [(0.0, 11), (70.0, 10), (1_000.0, 11)])
def test_after_each_interval_all_events_are_there_before_it_goes_on(
    folder: AppFolder, speed: float, count: int
) -> None:
    waits = []

    def waited(time_ms: int, stop: threading.Event) -> None:
        shown = sum(len(events.impressions) for events in _written(folder)[0])
        waits.append((time_ms - BEGIN_MS, shown, _reached(folder), stop.is_set()))

    clock = ManualClock()
    with (
        open_replay_topics(folder) as (impressions, actions),
        Producer(folder, impressions=impressions, actions=actions, clock=clock) as producer,
    ):
        settings = folder.settings.replay
        Replayer(OneASecond(), producer, settings, clock=clock, every_ms=4_000, waited=waited).run(speed=speed)
    assert [one[0] for one in waits] == list(range(4_000, 4_000 * count + 1, 4_000))
    # Each time once, though heartbeats come by themselves as well.
    beats = [time_ms for _, time_ms in _controls(_written(folder)[0][0])]
    assert len(set(beats[:-1])) == len(beats[:-1])
    for at, shown, reached, is_stopped in waits:
        assert (shown, reached, is_stopped) == (min(-(-at // 1_000), REQUESTS), at, False)


@pytest.mark.parametrize("limit", [1, 7, 24, 79, 80, 1000])
def test_a_limit_ends_after_the_earliest_events(folder: AppFolder, limit: int) -> None:
    report = _replay(folder, ManualClock(), events_max=limit)
    times = [1000 * number for number in range(REQUESTS)] + [1000 * number + 1500 for number in range(REQUESTS)]
    wanted = sorted(times)[:limit]
    found = [
        columns["event_time_ms"] - BEGIN_MS
        for topic in _written(folder)
        for part in topic
        for columns in (part.impressions.columns, part.actions.columns)
    ]
    assert sorted(np.concatenate(found).tolist()) == wanted
    assert report.impressions + report.actions == len(wanted)
    assert report.ended
    assert all(_controls(part)[-1][0] == "end" for topic in _written(folder) for part in topic)


def test_a_stop_flushes_and_writes_no_end_mark(folder: AppFolder) -> None:
    stop, seen = threading.Event(), []

    def on_progress(progress: ReplayProgress) -> None:
        seen.append(progress)
        if progress.events >= 20:
            stop.set()

    report = _replay(folder, ManualClock(), speed=10.0, stop=stop, on_progress=on_progress)
    assert not report.ended
    assert 20 <= report.impressions + report.actions < 2 * REQUESTS
    assert seen[-1].events == report.impressions + report.actions
    assert seen[-1].event_time_ms == report.reached_ms
    written = _written(folder)
    assert sum(len(part.impressions) + len(part.actions) for topic in written for part in topic) == seen[-1].events
    assert not any(kind == "end" for topic in written for part in topic for kind, _ in _controls(part))


@pytest.mark.parametrize("options", [{"speed": -1.0}, {"speed": float("nan")}, {"events_max": 0}])
def test_impossible_wishes_are_refused(folder: AppFolder, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        _replay(folder, ManualClock(), **options)


def test_a_replay_of_2022_is_kept_by_a_stock_broker(tmp_path: Path, kafka: Kafka, topic_name: str) -> None:
    folder = _folder(tmp_path, f"kafka://{kafka.address}/{topic_name}")
    report = _replay(folder, ManualClock())
    with open_replay_topics(folder, append=True) as topics:
        assert all(topic.settings().keeps_history() for topic in topics)
    impressions, actions = _written(folder)
    assert sum(len(part.impressions) for part in impressions) == report.impressions == REQUESTS
    assert sum(len(part.actions) for part in actions) == report.actions == REQUESTS
    assert all(_controls(part)[-1] == ("end", 50_000) for part in (*impressions, *actions))


def _command(tmp_path: Path, *arguments: str) -> list[str]:
    script = "import typer; from streamlearn.cli.events.replay import replay; typer.run(replay)"
    root = f"topics.root=file://{tmp_path}/topics"
    return [sys.executable, "-c", script, str(SYNTHETIC), "--set", root, "--json", *arguments]


def _read_all(tmp_path: Path) -> list[Events]:
    folder = load_app(SYNTHETIC, [f"topics.root=file://{tmp_path}/topics"])
    return [part for topic in _written(folder) for part in topic]


def test_the_command_replays_to_the_end(tmp_path: Path) -> None:
    command = _command(tmp_path, "--option", "events=2000", "--limit-events", "500", "--option", "items=50")
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["impressions"] + report["actions"], report["ended"]) == (500, True)
    assert sum(len(part.impressions) + len(part.actions) for part in _read_all(tmp_path)) == 500


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_command_with_everything_written(tmp_path: Path, number: int) -> None:
    # At real time it would take hours.
    command = _command(tmp_path, "--option", "rate=500", "--speed", "1")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: _has_impressions(tmp_path, process), "the first impressions")
            process.send_signal(number)
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 3, err
    assert "stopped at " in err
    assert "--append" in err
    report = json.loads(out)
    assert not report["ended"]
    parts = _read_all(tmp_path)
    assert sum(len(part.impressions) for part in parts) == report["impressions"] > 0
    assert sum(len(part.actions) for part in parts) == report["actions"]
    assert not any((part.controls.columns["kind"] == 2).any() for part in parts)


def _has_impressions(tmp_path: Path, process: subprocess.Popen[str]) -> bool:
    assert process.poll() is None, process.communicate()[1]
    names = ("impressions", "actions", "samples", "progress", "dead-letters")
    # Reading creates missing topics, as the command does: only one of them may.
    if not all((tmp_path / "topics" / f"synthetic.{name}").exists() for name in names):
        return False
    return any(len(part.impressions) for part in _read_all(tmp_path))
