"""KuaiRand's days by ingest and by backfill, on Prism and on Flink: a trainer learns the same, to the byte.

`make test` takes the first day, and ingest alone on Flink; with KUAIRAND_DAYS=7 EXAMPLES_TIMES=2 it is the whole week,
all four ways, and `pytest -s` prints what each counts and how long it takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.apps import AppFolder, load_app
from streamlearn.events import Producer
from streamlearn.marks import MarkedRows, Marks
from streamlearn.replay import HistoryBlock, Replayer, load_history, open_replay_topics
from streamlearn.samples import SampleBatch, SampleCodec
from streamlearn.settings.join import MarksSettings
from streamlearn.topics import create_topic
from tests.campaign import some
from tests.ingest.history import records_of
from tests.ingest.slow_samples import rows_made
from tools.services import FlinkJobServer

FOLDER = Path(__file__).parents[2] / "examples" / "kuairand"
DAYS = int(os.environ.get("KUAIRAND_DAYS", "1"))
DAY_MS, DEADLINE_S = 86_400_000, 1_200.0
# Identity and label to what is learned of them: the label's final value, its rate, and all features.
Facts = dict[tuple[tuple[int, int, int], int], tuple[int, float, bytes, bytes, tuple[str, ...]]]


class FirstDays:
    """The first days of the week, with every tenth action two minutes late, so that corrections are needed."""

    def __init__(self, days: int) -> None:
        self._history = load_history(FOLDER, {"delayed": "0.1"})
        self._days = days
        self.events_count, self.begin_ms = None, self._history.begin_ms

    def blocks(self, span_ms: int) -> Iterator[HistoryBlock]:
        """Whole blocks alone."""
        last_ms = self.begin_ms + self._days * DAY_MS
        return takewhile(lambda block: block.until_ms <= last_ms, self._history.blocks(span_ms))


@pytest.fixture(scope="module")
def sets(prism: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The settings by which the example finds topics that hold its days."""
    root = tmp_path_factory.mktemp("equal").as_uri()
    found = [f"topics.root={root}", f"ingest.prism_location={prism}", "replay.heartbeat_s=3600"]
    folder = load_app(FOLDER, found)
    with open_replay_topics(folder) as topics, Producer(folder, impressions=topics[0], actions=topics[1]) as producer:
        Replayer(FirstDays(DAYS), producer, folder.settings.replay).run()
    return found


def made(sets: list[str], verb: str, runner: str, *more: str) -> tuple[AppFolder, dict[str, Any]]:
    """What a verb makes of the days in topics of its own."""
    root = sets[0].partition("=")[2]
    own = [f"topics.{name}={root}/{runner}.{verb}.{name}" for name in ("samples", "progress", "dead_letters")]
    changes = [*sets, *own, *more]
    folder = load_app(FOLDER, changes)
    for name, partitions in (("samples", 3), ("interactions", 3), ("dead_letters", 1), ("progress", 1)):
        create_topic(folder.topic_url(name), folder.topic_settings(name, partitions), exist_ok=True).close()
    words = [part for change in changes for part in ("--set", change)]
    call = [sys.executable, "-m", "streamlearn", verb, str(FOLDER), "--json", *words]
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(done.stdout)
    print(f"{verb} on {runner}: {report['seconds']:.1f} s, {report['counts'] or 'no counts'}")
    return folder, report


def messages(folder: AppFolder) -> Iterator[SampleBatch]:
    codec = SampleCodec(folder.app, folder.settings.samples)
    with folder.open_topic("samples") as topic:
        for *_, value in records_of(topic):
            yield codec.decode(value)


def facts(folder: AppFolder) -> tuple[Facts, int]:
    """What a trainer learns, each label of an identity once; and how many labels it corrects."""
    labels = len(folder.app.labels)
    marks, found, corrected = Marks(labels, MarksSettings()), Facts(), 0
    for step, batch in enumerate(messages(folder), 1):
        settled = marks.settle(step, _marked(batch))
        rows = zip(rows_made([batch]), settled.learn.tolist(), settled.correct.tolist(), strict=True)
        for row, learn, correct in rows:
            for bit in range(labels):
                value, _, rate, *_ = row.labels[bit]
                fact = (value, rate, row.user, row.item, row.segments)
                if learn >> bit & 1:
                    assert (row.identity, bit) not in found
                    found[row.identity, bit] = fact
                if correct >> bit & 1:
                    assert found[row.identity, bit] == (0, *fact[1:])
                    found[row.identity, bit] = fact
                    corrected += 1
        marks.acknowledge(step)
    return found, corrected


def _marked(batch: SampleBatch) -> MarkedRows:
    requests = batch.requests
    settles, positive = (
        sum(
            (getattr(label, name).astype(np.uint32) << np.uint32(bit) for bit, label in enumerate(batch.labels)),
            np.zeros(len(batch), np.uint32),
        )
        for name in ("settles", "value")
    )
    where = requests.partition, requests.offset, requests.event_time_ms
    return MarkedRows(batch.header.events_topic_id, *where, batch.request_index, batch.item_index, settles, positive)


@pytest.fixture(scope="module")
def streamed(sets: list[str]) -> tuple[AppFolder, dict[str, Any], Facts, int]:
    """What ingest makes on Prism, and what is learned of it."""
    folder, report = made(sets, "ingest", "prism")
    return folder, report, *facts(folder)


def test_the_days_are_the_same_to_a_trainer_whichever_way_they_came(sets: list[str], streamed: Any) -> None:
    folder, report, by_ingest, corrected = streamed
    filled, backfill_report = made(sets, "backfill", "prism")
    by_backfill, _ = facts(filled)
    assert by_ingest == by_backfill
    counts, values = report["counts"], [value for value, *_ in by_ingest.values()]
    seen = {
        "impressions": counts["impressions"],
        "duplicates": counts["impressions_duplicate"],
        "positives": sum(values),
        "negatives": len(values) - sum(values),
        "corrections": corrected,
        "dead letters": _letters(folder),
        "dead letters of the backfill": _letters(filled),
    }
    print(json.dumps(seen))
    assert seen["dead letters"] == seen["dead letters of the backfill"] == 0
    assert corrected == counts["rows_correction"] > 100 * DAYS
    assert seen["duplicates"] > 100 * DAYS
    assert backfill_report["counts"]["impressions"] == counts["impressions"]
    assert backfill_report["stretches"] >= DAYS
    assert {rate for _, rate, *_ in by_ingest.values()} == {1.0}
    if DAYS == 7:  # what tests/examples/test_kuairand_samples.py counts in the file
        expected = {"impressions": 94_121, "duplicates": 2_979, "positives": 41_096 + 28_935, "negatives": 113_579}
        assert {name: seen[name] for name in expected} == expected


def _letters(folder: AppFolder) -> int:
    with folder.open_topic("dead_letters") as topic:
        return sum(1 for _ in records_of(topic))


@pytest.mark.parametrize("verb", some(["ingest", "backfill"]))
def test_the_days_are_the_same_to_a_trainer_on_whichever_runner(
    sets: list[str], streamed: Any, flink: FlinkJobServer, verb: str
) -> None:
    _, _, on_prism, corrected = streamed
    more = [
        "ingest.runner=flink",
        f"ingest.job_endpoint={flink.job_endpoint}",
        f"ingest.artifact_endpoint={flink.artifact_endpoint}",
        "ingest.checkpoint_s=1",
    ]
    on_flink, corrected_there = facts(made(sets, verb, "flink", *more)[0])
    assert on_flink == on_prism
    assert verb == "backfill" or corrected_there == corrected
