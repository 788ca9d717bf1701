"""`streamlearn features`: from events to the columns of a request, with processes and a store of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamlearn.apps import AppFolder
from streamlearn.features import keys_of
from streamlearn.interactions import decode_interactions, encode_interactions
from streamlearn.supervision.plan import UpOptions, planned
from streamlearn.testing import wait_until
from tests.cli.place import Verb
from tests.ingest.history import T_MS, fill, records_of, write_app
from tests.ingest.test_interactions import APP, REQUESTS

AT = str(T_MS + 80 * 60_000)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, prism: Path) -> AppFolder:
    """An application whose interactions ingest has written."""
    folder = write_app(tmp_path_factory.mktemp("features") / "app", prism, lots=2, declared=APP)
    fill(folder, 0, REQUESTS, end=True)
    subprocess.run([sys.executable, "-m", "streamlearn", "ingest", str(folder.folder)], check=True, capture_output=True)
    return folder


@contextmanager
def folding(app: AppFolder) -> Iterator[subprocess.Popen[str]]:
    call = [sys.executable, "-m", "streamlearn", "features", "fold", str(app.folder)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "folding the interactions of small" in process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def shown_times(app: AppFolder) -> dict[int, int]:
    """How often something was shown to each user, by key, in the hour before `AT`."""
    found: dict[int, set[int]] = {}
    with app.open_topic("interactions") as topic:
        batches = [decode_interactions(value) for *_, value in records_of(topic)]
    for batch in batches:
        for row in range(len(batch)):
            is_shown = batch.side == "user" and batch.kinds[batch.kind[row]] == "impression"
            if is_shown and batch.event_time_ms[row] <= int(AT):
                # In tiles, as native/features has them: the tile of now, and the 31 before.
                tile_ms = 3_600_000 // 32
                if batch.event_time_ms[row] // tile_ms > int(AT) // tile_ms - 32:
                    found.setdefault(int(batch.user[row]), set()).add(int(batch.identity[row]))
    return {user: len(identities) for user, identities in found.items()}


def test_what_was_done_is_what_a_request_gets(app: AppFolder, ended: Verb) -> None:
    with folding(app) as process:
        wait_until(lambda: behind(app, ended) == [0, 0], "all is folded")
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
    counts = shown_times(app)
    users = list(range(1_000))
    keys = keys_of(app.app.features.slot("user_id"), users).tolist()
    rows = ended("features", "get", app.folder, "user", *users, "--at", AT, "--json").json["rows"]
    assert [row["seen"][0] for row in rows] == [counts.get(key, 0) for key in keys]
    assert sum(counts.values()) > 200
    assert {row["state"] for row in rows} == {"known", "unknown"}
    told = ended("features", "get", app.folder, "user", users[0], "--at", AT).out
    assert "user 0 at 2023-11-1" in told


def behind(app: AppFolder, ended: Verb) -> list[int]:
    shown = ended("features", "show", app.folder, "--json")
    return [row["messages behind"] for row in shown.json["states"]]


def test_a_rebuild_leaves_a_stretch_out_and_a_process_that_folds_follows(app: AppFolder, ended: Verb) -> None:
    first = int(AT) - 3_600_000
    with folding(app) as process:
        wait_until(lambda: behind(app, ended) == [0, 0], "all is folded")
        rebuilt = ended("features", "rebuild", app.folder, "--without", f"{first - 7_200_000}..{AT}", "--json")
        assert rebuilt.json["left_out"] > 200
        rows = ended("features", "get", app.folder, "user", *range(1_000), "--at", AT, "--json").json["rows"]
        assert {row["seen"][0] for row in rows} == {0}
        # Later interactions go into the new states.
        seen = write_again(app)
        wait_until(lambda: process.poll() is not None or seen_by(app, ended) == seen, "what came since")
        assert process.poll() is None
    rebuilt = ended("features", "rebuild", app.folder, "--json")
    assert rebuilt.json["left_out"] == 0
    assert seen_by(app, ended) == sum(shown_times(app).values())


def write_again(app: AppFolder) -> int:
    """Write impressions of users at the end; return how many there are."""
    with app.open_topic("interactions") as topic:
        records = [(partition, decode_interactions(value)) for partition, _, value in records_of(topic)]
        partition, batch = next((partition, batch) for partition, batch in records if batch.side == "user")
        kind = np.full(len(batch), batch.kinds.index("impression"), np.uint8)
        times = np.full(len(batch), int(AT) - 1)
        more = replace(batch, kind=kind, event_time_ms=times, identity=batch.identity + np.uint64(1))
        with topic.writer() as writer:
            writer.append(partition, [encode_interactions(more)])
    return len(set(batch.identity.tolist()))  # ingest may write an interaction twice


def seen_by(app: AppFolder, ended: Verb) -> int:
    rows = ended("features", "get", app.folder, "user", *range(1_000), "--at", AT, "--json").json["rows"]
    return sum(int(row["seen"][0]) for row in rows)


def test_up_folds_where_columns_are_computed(app: AppFolder) -> None:
    members = planned(app, UpOptions(), taken=lambda *_: False).members
    (fold,) = [member for member in members if member.name == "fold"]
    assert fold.command[3:6] == ("features", "fold", str(app.folder))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["get", "user", "ada"], "an id is not a whole number"),
        (["rebuild", "--without", "12:00"], "not a stretch of time"),
        (["rebuild", "--without", "2026-01-02..2026-01-01"], "not a stretch of time"),
        (["get", "person", "1"], "person"),
    ],
)
def test_a_wrong_call_is_refused(app: AppFolder, ended: Verb, words: list[str], said: str) -> None:
    found = ended("features", words[0], app.folder, *words[1:])
    assert found.status == 2
    assert said in found.err


def test_an_application_without_computed_columns_is_told_how(tmp_path: Path, ended: Verb) -> None:
    plain = write_app(tmp_path / "plain", tmp_path, lots=1)
    for verb in ("fold", "show", "rebuild"):
        found = ended("features", verb, plain.folder)
        assert (found.status, "has no computed columns" in found.err) == (2, True)
