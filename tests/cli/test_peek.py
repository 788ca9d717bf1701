"""`streamlearn peek`: all that is there, in the words of the application, and what ingest would refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamlearn.apps import AppFolder, load_app
from streamlearn.errors import UsageError
from streamlearn.events import Failure, Origin, Producer
from streamlearn.events.dead_letter import dead_letter
from streamlearn.samples import SampleCodec
from streamlearn.schemas import PROGRESS
from streamlearn.testing import small_batch, small_impression
from streamlearn.topics import create_topic

__all__: list[str] = []

PARTITIONS = 3
Verb = Callable[..., Any]


@pytest.fixture
def folder(small: Path) -> AppFolder:
    folder = load_app(small, ["topics.time=event"])
    for name in ("impressions", "actions", "samples", "dead_letters", "progress"):
        create_topic(folder.topic_url(name), folder.topic_settings(name, PARTITIONS)).close()
    return folder


def _lines(verb: Verb, *words: object) -> list[dict[str, Any]]:
    done = verb("peek", *words)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def _append(folder: AppFolder, topic: str, value: bytes | None, key: bytes | None = None) -> None:
    with folder.open_topic(topic) as found, found.writer() as writer:
        writer.append(0, [value], None if key is None else [key])


def _produce(folder: AppFolder, requests: int) -> None:
    with Producer(folder) as producer:
        for seed in range(requests):
            producer.impression(**small_impression(seed))
        producer.action("q1", 1_700_000_000_500, 7, "click", weight=0.1)
        producer.heartbeat(1_700_000_100_000)


def test_every_event_of_every_partition_is_shown_up_to_the_limit(small: Path, folder: AppFolder, verb: Verb) -> None:
    _produce(folder, 60)
    shown = _lines(verb, small, "--limit", 1000)
    assert {line["event"] for line in shown} == {"impression"}
    assert {line["request_id"] for line in shown} == {f"q{seed}" for seed in range(60)}
    assert {line["partition"] for line in shown} == set(range(PARTITIONS))
    assert shown == sorted(shown, key=lambda line: (line["partition"], line["offset"], line["index"]))
    assert len(_lines(verb, small, "--limit", 7)) == 7
    assert {line["partition"] for line in _lines(verb, small, "--partition", 1)} == {1}


def test_more_than_one_read_gives_is_shown_too(small: Path, folder: AppFolder, verb: Verb) -> None:
    with folder.open_topic("impressions") as topic, topic.writer() as writer:
        writer.append(1, [bytes(700_000)] * 4)
    assert [line["offset"] for line in _lines(verb, small)] == [0, 1, 2, 3]
    assert [line["offset"] for line in _lines(verb, small, "--partition", 1, "--from", 2)] == [2, 3]


def test_an_event_is_shown_as_it_was_given_with_short_numbers_and_its_own_letters(
    small: Path, folder: AppFolder, verb: Verb
) -> None:
    given = small_impression(3)
    given["user"]["country"] = "Curaçao"
    given["items"][0] |= {"topics": [4, 5], "topics_weights": [9.99, 0.1], "vector": [1e-7, 3.0, 2.5]}
    with Producer(folder) as producer:
        producer.impression(**given)
    raw = verb("peek", small).stdout
    (line,) = map(json.loads, raw.splitlines())
    assert (line["user"]["country"], line["user"]["history"]) == ("Curaçao", given["user"]["history"])
    assert line["items"][0]["topics_weights"] == [9.99, 0.1]
    assert line["items"][0]["vector"] == [1e-7, 3.0, 2.5]
    assert line["items"][1]["tags"] == given["items"][1]["tags"]
    assert (line["served_version"], line["segments"]) == (3, given["segments"])
    assert line["items"][0]["served_score_bought"] is None
    assert "Curaçao" in raw


def test_controls_are_shown_when_asked_for(small: Path, folder: AppFolder, verb: Verb) -> None:
    _produce(folder, 1)
    assert [line["event"] for line in _lines(verb, small, "actions")] == ["action"]
    shown = _lines(verb, small, "actions", "--controls")
    assert sorted(line["event"] for line in shown) == ["action", *["control"] * PARTITIONS]
    assert next(line["kind"] for line in shown if line["event"] == "control") == "HEARTBEAT"


def test_what_ingest_would_refuse_is_shown_with_its_reason(small: Path, folder: AppFolder, verb: Verb) -> None:
    _append(folder, "impressions", b"rubbish")
    _append(folder, "impressions", b"\xc3\x01" + (0xFEDC).to_bytes(8, "little"))
    unreadable = _lines(verb, small)
    assert [line["event"] for line in unreadable] == ["unreadable"] * 2
    assert [line["reason"] for line in unreadable] == ["garbage", "unknown_schema"]
    assert unreadable[1]["detail"].endswith("000000000000fedc")


def test_samples_are_summed_up(small: Path, folder: AppFolder, verb: Verb) -> None:
    batch = small_batch(folder.app, requests=5, rows=20)
    _append(folder, "samples", SampleCodec(folder.app, folder.settings.samples).encode(batch))
    (line,) = _lines(verb, small, "samples")
    assert (line["record"], line["requests"], line["rows"], line["lot"]) == ("samples", 5, 20, 3)
    label = batch.labels[0]
    assert line["labels"][label.name] == {"settled": int(label.settles.sum()), "positive": int(label.value.sum())}
    assert line["watermark_ms"] == batch.header.watermark_ms


def test_dead_letters_and_progress_are_decoded(small: Path, folder: AppFolder, verb: Verb) -> None:
    failure = Failure(0, 2, "malformed", "it ends too early", bytes(100))
    _append(folder, "dead_letters", dead_letter(failure, Origin("t", "id", 1, 7, 5, b"\xff"), 9))
    (letter,) = _lines(verb, small, "dead_letters")
    assert (letter["record"], letter["reason"], letter["key"]) == ("dead_letter", "malformed", "ff")
    assert letter["sha256"] == "cd00e292c5970d3c5e2f0ffa5171e555bc46bfc4faddfb4a418b6840b86e79a3"
    assert letter["head"].endswith("00 ... 100 bytes kept")

    texts = ("window_settings", "feature_fingerprint", "events_topic_id", "actions_topic_id")
    numbers = {"lot": 3, "lots_count": 64, "ingest_run": 1, "watermark_ms": 12, "reached_ms": 12, "wall_ms": 13}
    _append(folder, "progress", PROGRESS.write({**numbers, **dict.fromkeys(texts, "x")}), b"3")
    _append(folder, "progress", None, b"4")
    _append(folder, "progress", b"nonsense", b"5")
    lines = _lines(verb, small, "progress")
    assert [line["record"] for line in lines] == ["progress", "deleted", "unreadable"]
    assert (lines[0]["watermark_ms"], lines[1]["key"]) == (12, "4")


def test_an_offset_without_its_partition_is_refused(small: Path, folder: AppFolder, verb: Verb) -> None:
    assert isinstance(verb("peek", small, "--from", 3).exception, UsageError)


def test_a_topic_that_is_none_is_refused_in_plain_words(small: Path, verb: Verb) -> None:
    done = verb("peek", small, "nowhere")
    assert done.exit_code == 2
    assert "'nowhere' is not one of impressions" in done.output
    assert "Value error" not in done.output
