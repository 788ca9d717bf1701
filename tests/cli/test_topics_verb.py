"""`streamlearn topics`: readable in 80 columns, and saying exactly what it made or deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamlearn.apps import load_app
from streamlearn.errors import StreamlearnError, UsageError
from streamlearn.replay import open_replay_topics
from streamlearn.topics import TopicSettings, create_topic

__all__: list[str] = []

Verb = Callable[..., Any]


def _rows(verb: Verb, small: Path, *words: object) -> dict[str, dict[str, Any]]:
    return {row["topic"]: row for row in json.loads(verb("topics", small, "--json", *words).stdout)}


def test_the_table_fits_80_columns_and_breaks_no_word(small: Path, verb: Verb) -> None:
    folder = load_app(small)
    replayed = TopicSettings(partitions=100, retention_ms=-1, retention_bytes=8 << 30)
    create_topic(folder.topic_url("impressions"), replayed).close()
    verb("topics", small, "--create", 100)
    lines = verb("topics", small).stdout.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert [line.split()[0] for line in lines] == [
        "topic", "impressions", "actions", "samples", "progress", "dead_letters", "at",
    ]  # fmt: skip
    assert "for ever, 8.0 GiB a partition" in lines[1]
    assert lines[2].split() == ["actions", "100", "0", "7", "d", "1.0", "MiB"]
    assert lines[-1] == f"at {small.as_uri()}/.streamlearn/topics/small.*"


def test_a_topic_that_lies_elsewhere_is_named_with_its_place(small: Path, verb: Verb) -> None:
    other = f"{small.as_uri()}/other/shown"
    lines = verb("topics", small, "--set", f"topics.impressions={other}").stdout.splitlines()
    assert lines[-2:] == [f"at {small.as_uri()}/.streamlearn/topics/small.*", f"impressions at {other}"]


def test_what_was_created_is_said_and_what_was_there_is_left(small: Path, verb: Verb) -> None:
    first = verb("topics", small, "--create", 4)
    assert "created, with partitions: impressions (4), actions (4), samples (4), progress (1)" in first.stderr
    again = verb("topics", small, "--create", 3)
    assert again.exit_code == 0
    assert "created none" in again.stderr
    assert "samples exists with 4 partitions, not 3" in again.stderr
    assert "progress was there" not in again.stderr
    assert {name: row["partitions"] for name, row in _rows(verb, small).items()} == {
        "impressions": 4, "actions": 4, "samples": 4, "progress": 1, "dead_letters": 4,
    }  # fmt: skip


def test_impressions_and_actions_of_different_partitions_are_a_failure(small: Path, verb: Verb) -> None:
    create_topic(load_app(small).topic_url("impressions"), TopicSettings(partitions=2)).close()
    error = verb("topics", small, "--create", 3).exception
    assert isinstance(error, StreamlearnError)
    assert error.exit_code == 1
    assert error.message == "impressions has 2 partitions and actions has 3 partitions"


@pytest.mark.parametrize(("days", "retention_ms"), [(0, -1), (30, 30 * 86_400_000), (None, 7 * 86_400_000)])
def test_retention_is_as_asked_for_and_progress_is_kept(
    small: Path, verb: Verb, days: int | None, retention_ms: int
) -> None:
    rows = _rows(verb, small, "--create", 1, *(() if days is None else ("--retention-days", days)))
    kept = {name: row["retention_ms"] for name, row in rows.items()}
    assert kept == {**dict.fromkeys(kept, retention_ms), "progress": -1}


def test_topics_for_events_with_times_of_their_own_keep_them_and_a_replay_takes_them(small: Path, verb: Verb) -> None:
    rows = _rows(verb, small, "--create", 1, "--set", "topics.time=event")
    week_ms = 7 * 86_400_000
    assert {name: row["retention_ms"] for name, row in rows.items()} == {
        "impressions": -1, "actions": -1, "samples": week_ms, "progress": -1, "dead_letters": week_ms,
    }  # fmt: skip
    folder = load_app(small, ["topics.time=event"])
    with open_replay_topics(folder) as (impressions, _):
        assert impressions.settings().retention_bytes == folder.settings.replay.retention_bytes


def test_topics_are_deleted_only_when_it_is_said_twice(small: Path, verb: Verb) -> None:
    verb("topics", small, "--create", 2)
    refused = verb("topics", small, "--delete").exception
    assert isinstance(refused, UsageError)
    assert "impressions (0 records)" in refused.message
    assert _rows(verb, small)["impressions"]["id"] != "missing"
    assert verb("topics", small, "--delete", "--yes").exit_code == 0
    assert {row["id"] for row in _rows(verb, small).values()} == {"missing"}


@pytest.mark.parametrize(
    "words", [("--create", 0), ("--yes",), ("--retention-days", 3), ("--delete", "--yes", "--create", 2)]
)
def test_options_that_make_no_sense_are_usage(small: Path, verb: Verb, words: tuple[object, ...]) -> None:
    done = verb("topics", small, *words)
    assert done.exit_code == 2 or isinstance(done.exception, UsageError)
    assert not (small / ".streamlearn").exists()
