"""Settings of events, samples and replays: how large records are, and how often a replay's time is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamlearn.apps import AppFolder, load_app
from streamlearn.errors import BadRecord, Oversize
from streamlearn.events import EventDecoder, EventEncoder, Producer
from streamlearn.events.encoder import EncodedEvents
from streamlearn.events.rules import REQUEST_ID_BYTES_MAX
from streamlearn.replay import Replayer, load_history, open_replay_topics
from streamlearn.samples import SampleCodec
from streamlearn.serving import impression_writer
from streamlearn.serving.impression_writer import WrittenBack
from streamlearn.testing import ManualClock, small_batch, small_impression, wait_until
from streamlearn.topics import Topic, create_topic
from streamlearn.trainer.intake.feed import Feed, beginning_of
from tests.events.place import values
from tests.settings.conftest import Load
from tests.settings.probes import heeds

SYNTHETIC = Path(__file__).parents[2] / "examples" / "synthetic"


def topics_of(folder: AppFolder) -> tuple[Topic, Topic]:
    impressions, actions = (create_topic(folder.topic_url(name)) for name in ("impressions", "actions"))
    return impressions, actions


def events_in(folder: AppFolder, topic: Topic) -> list[int]:
    decoder = EventDecoder.of(folder)
    return [len(decoder.decode([value]).impressions) for value in values(topic)]


@heeds("events.record_events_max")
def test_a_record_has_no_more_events_than_the_setting(small: Load) -> None:
    folder = small("events.record_events_max=3", "topics.time=event")
    topic, _ = topics_of(folder)
    with Producer(folder, clock=ManualClock()) as producer:
        for seed in range(8):
            producer.impression(**small_impression(seed))
    assert events_in(folder, topic) == [3, 3, 2]


@heeds("events.record_bytes_max")
def test_a_record_has_no_more_bytes_than_the_setting(small: Load) -> None:
    folder = small("events.record_bytes_max=2049", "topics.time=event")
    topic, _ = topics_of(folder)
    with Producer(folder, clock=ManualClock()) as producer:
        for seed in range(40):
            producer.impression(**small_impression(seed))
        with pytest.raises(Oversize):
            producer.impression(**small_impression(1, items=100))
    assert len(values(topic)) > 1
    assert max(map(len, values(topic))) <= 2_049
    assert sum(events_in(folder, topic)) == 40
    larger = EventEncoder(folder.app, small().settings.events).impression(
        {"shown_wall_ms": 5, **small_impression(1, items=100)}
    )
    assert [failure.reason for failure in EventDecoder.of(folder).decode([larger]).failures] == ["oversize"]


@heeds("events.linger_ms")
def test_without_a_linger_an_event_is_sent_at_once(small: Load) -> None:
    folder = small("events.linger_ms=0", "topics.time=event")
    topic, _ = topics_of(folder)
    with Producer(folder, clock=ManualClock()) as producer:  # with any linger, this clock never reaches its end
        producer.impression(**small_impression(1))
        wait_until(lambda: values(topic), "the event is sent")


class Waiting:
    """A queue of answered requests with one that waits; it notes how it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.ended: Any = None

    def take(self, *given: Any) -> dict[str, Any] | None:
        self.asked.append(given)
        self.ended.set()
        return {name: [1] for name in EncodedEvents._fields} if len(self.asked) == 1 else None


@heeds("events.linger_ms", "events.record_events_max", "events.record_bytes_max", "impressions.write_back")
def test_nodes_write_impressions_in_records_as_the_settings_say(small: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = ("events.linger_ms=77", "events.record_events_max=3", "events.record_bytes_max=2049")
    folder = small(*odd, "impressions.write_back=true")
    topic, _ = topics_of(folder)
    waiting, limits = Waiting(), list[tuple[int, ...]]()
    monkeypatch.setattr(impression_writer, "native", SimpleNamespace(Shown=lambda *_, **__: waiting))

    def packed(_: Any, partitions: int, *most: int) -> list[Any]:
        limits.append(most)
        return []

    monkeypatch.setattr(impression_writer, "pack_columns", packed)
    writer = WrittenBack(folder, None)
    waiting.ended = writer._ended
    assert writer._write_to(topic)
    _, linger_s, _, event_bytes_max = waiting.asked[0]
    assert linger_s == 0.077
    assert limits == [(3, 2_049 - REQUEST_ID_BYTES_MAX)]
    assert event_bytes_max < 2_049


class NoSteps:
    """A source of steps that has none."""

    has_more = has_rows = False

    def add(self, message: Any, before: Any, after: Any) -> Iterator[Any]:
        return iter(())

    def flush(self, reached: Any) -> Any:
        raise AssertionError


@heeds("samples.message_rows_max")
def test_a_trainer_refuses_messages_with_more_rows_than_the_setting(small: Load) -> None:
    folder = small("samples.message_rows_max=7")
    codec = SampleCodec(folder.app, small().settings.samples)
    with create_topic(folder.topic_url("samples")) as topic, topic.writer() as writer:
        for rows in (7, 8):
            writer.append(0, [codec.encode(small_batch(folder.app, 2, rows))])
        kept: list[str] = []
        feed = Feed(folder, topic, beginning_of(topic), NoSteps(), keep_aside=lambda name, _: kept.append(name))
        with pytest.raises(BadRecord, match=r"offset 1 .* 8 rows"):
            next(feed.steps())
        feed.close()
    assert kept == ["message-0-1.avro"]


@heeds("replay.heartbeat_s", "replay.partitions", "events.record_events_max")
def test_a_replay_tells_its_time_as_often_as_the_setting_says_on_every_partition(tmp_path: Path) -> None:
    odd = ("replay.heartbeat_s=0.035", "replay.partitions=3", "events.record_events_max=5")
    folder = load_app(SYNTHETIC, [f"topics.root=memory://{tmp_path.name}-", *odd])
    history = load_history(SYNTHETIC)
    with open_replay_topics(folder) as topics, Producer(folder, impressions=topics[0], actions=topics[1]) as producer:
        report = Replayer(history, producer, folder.settings.replay).run(events_max=2_000)
        assert [topic.partitions for topic in topics] == [3, 3]
        events = EventDecoder.of(folder).decode(values(topics[0]))
    assert max(Counter(events.impressions.record_index.tolist()).values()) == 5
    controls = events.controls.columns
    beats = controls["event_time_ms"][controls["kind"] == 1].tolist()
    spanned = (report.reached_ms - report.begin_ms) // 35
    assert spanned > 3
    assert len(beats) == 3 * len(set(beats))
    assert spanned - 1 <= len(set(beats)) <= spanned
