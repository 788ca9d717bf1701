"""Settings of topics and of Kafka: where each topic is, how it is written, and how a broker is reached."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamlearn.apps import AppFolder, load_app
from streamlearn.errors import BadRecord, TopicUnreachable
from streamlearn.events import EventDecoder, EventEncoder, Producer
from streamlearn.ingest import begin_run
from streamlearn.ingest.beam.cut_lots import cutter_of
from streamlearn.ingest.output.sample_maker import SampleMaker
from streamlearn.ingest.output.sample_sink import SampleSink, write_watermark
from streamlearn.schemas import impression_schema
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.settings import EventSettings
from streamlearn.testing import small_app, small_impression
from streamlearn.topics import create_topic, file_topic, kafka_link, open_topic
from tests.ingest.place import reading, take
from tests.settings.conftest import Load
from tests.settings.probes import heeds, spied

GROWN = """\
from dataclasses import replace

from streamlearn.features import Slot
from streamlearn.testing import small_app

before = small_app()
features = replace(before.features, slots=(*before.features.slots, Slot("added", "user", default=7)))
app = replace(before, features=features)
"""


def records_in(url: str) -> int:
    with open_topic(url) as topic, topic.reader() as reader:
        return sum(reader.end(at) - reader.earliest(at) for at in range(topic.partitions))


def write_all(folder: AppFolder) -> None:
    """Write to every topic as the product does: events, garbage, and what ingest makes of them."""
    with Producer(folder) as producer:
        producer.impression(**small_impression(1))
        producer.action("q1", small_impression(1)["event_time_ms"], 5, "click")
    with folder.open_topic("impressions") as topic, topic.writer(folder.writer_settings) as writer:
        writer.append(0, [b"garbage"])
    plan = begin_run(folder)
    cutter, letters = cutter_of(folder, plan)
    with reading(plan) as reader:
        cut = cutter.cut(take(reader))
    letters.give(cut.failures)
    letters.close()
    sink = SampleSink(folder, plan, SampleMaker(folder, plan.lineage, plan.run))
    sink._letters.give(cut.failures)
    sink.close()
    write_watermark(folder, plan, 1_700_000_000_000)


@heeds("topics.impressions", "topics.actions", "topics.samples", "topics.progress", "topics.dead_letters")
def test_each_topic_is_at_its_own_url(small: Load, verb: Callable[..., Any], tmp_path: Path) -> None:
    urls = {name: f"file://{tmp_path}/odd/{name}-elsewhere" for name in small().topics}
    changes = [f"topics.{name}={url}" for name, url in urls.items()]
    folder = small(*changes, "topics.time=event")
    sets = [word for change in changes for word in ("--set", change)]
    made = verb("topics", folder.folder, "--create", 1, "--json", *sets)
    assert {row["url"] for row in json.loads(made.stdout)} == set(urls.values())
    write_all(folder)
    assert all(records_in(url) for url in urls.values()), "something was written elsewhere"


@heeds("topics.root")
def test_topics_without_a_url_are_below_the_root(small: Load, verb: Callable[..., Any], tmp_path: Path) -> None:
    root = f"topics.root=file://{tmp_path}/odd"
    assert verb("topics", small().folder, "--create", 1, "--set", root).exit_code == 0
    assert {path.name for path in (tmp_path / "odd").iterdir()} == {
        f"small.{name.replace('_', '-')}" for name in small().topics
    }


@heeds("topics.time")
def test_with_event_time_an_event_may_be_ahead_of_the_wall_clock(small: Load) -> None:
    ahead = {**small_impression(1), "event_time_ms": 4_000_000_000_000}
    folder = small()
    create = [create_topic(folder.topic_url(name)) for name in ("impressions", "actions")]
    with Producer(folder) as producer, pytest.raises(BadRecord):
        producer.impression(**ahead)
    folder = small("topics.time=event")
    with Producer(folder) as producer:
        producer.impression(**ahead)
    with create[0].reader() as reader:
        assert sum(reader.end(at) for at in range(create[0].partitions)) == 1
    assert begin_run(folder).rules.time == "event"


@heeds("topics.fsync", "topics.delivery_timeout_s")
def test_every_topic_is_written_as_the_settings_say(
    small: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"topics.root=file://{tmp_path}/topics"
    folder = small(root, "topics.time=event", "topics.fsync=batch", "topics.delivery_timeout_s=7.5")
    for name in folder.topics:
        create_topic(folder.topic_url(name), folder.topic_settings(name, 1)).close()
    written: dict[str, set[tuple[str, int]]] = {}

    def noted(writer: Any, partition: int, outgoing: Any) -> Any:
        written.setdefault(writer.url, set()).add((writer._settings.fsync, writer._settings.delivery_timeout_ms))
        return append(writer, partition, outgoing)

    append = file_topic._FileWriter._append
    monkeypatch.setattr(file_topic._FileWriter, "_append", noted)
    write_all(folder)
    assert written == {folder.topic_url(name): {("batch", 7_500)} for name in folder.topics}


@heeds("topics.fsync")
def test_records_are_synced_before_they_are_acknowledged(
    small: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[str, int] = {}
    for fsync in ("never", "batch"):
        folder = small(f"topics.root=file://{tmp_path}/{fsync}", "topics.time=event", f"topics.fsync={fsync}")
        for name in ("impressions", "actions"):
            create_topic(folder.topic_url(name)).close()
        with Producer(folder) as producer, monkeypatch.context() as patched:
            calls = spied(patched, os, "fdatasync")
            producer.impression(**small_impression(1))
            producer.flush()
            synced[fsync] = len(calls)
    assert synced["never"] == 0 < synced["batch"]


@heeds("topics.reach_s")
def test_a_broker_that_does_not_answer_is_given_up_after_the_time_set(small: Load) -> None:
    folder = small("topics.root=kafka://127.0.0.1:1", "topics.reach_s=0.15")
    with pytest.raises(TopicUnreachable, match=r"did not answer for ([1-9]\d{2,3}|[1-5]\d{4}) ms"):
        folder.open_topic("impressions")


class Reached(Exception):
    """A connection would be made now."""


@heeds("kafka.security_protocol", "kafka.sasl_mechanism", "kafka.sasl_username", "kafka.ssl_cafile")
def test_kafka_python_gets_the_settings_of_the_connection(small: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def connect(**config: Any) -> None:
        given.update(config)
        raise Reached

    monkeypatch.setattr(kafka_link, "Selector", connect)
    monkeypatch.setenv(kafka_link.PASSWORD_VARIABLE, "secret")
    connection = {
        "security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "ada",
        "ssl_cafile": "/odd/ca.pem",
    }  # fmt: skip
    folder = small("topics.root=kafka://127.0.0.1:1", *(f"kafka.{name}={value}" for name, value in connection.items()))
    with pytest.raises(Reached):
        folder.open_topic("impressions")
    connection["sasl_plain_username"] = connection.pop("sasl_username")
    assert {name: given[name] for name in connection} == connection


@heeds("topics.old_schemas", "topics.schema_ids")
def test_records_of_older_schemas_and_of_a_schema_registry_are_read(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(GROWN)
    (tmp_path / "before.avsc").write_text(impression_schema(small_app()).text)
    record = EventEncoder(small_app(), EventSettings()).impression({"shown_wall_ms": 5, **small_impression(3)})
    framed = b"\x00" + (17).to_bytes(4, "big") + record[PREFIX_BYTES:]
    for setting, value in (('old_schemas=["before.avsc"]', record), ('schema_ids={17 = "before.avsc"}', framed)):
        events = EventDecoder.of(load_app(tmp_path, [f"topics.{setting}"])).decode([value])
        assert events.impressions.columns["user.added"].tolist() == [7]
        assert EventDecoder.of(load_app(tmp_path)).decode([value]).failures
