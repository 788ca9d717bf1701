"""The samples of a measured job are counted row by row, also while it writes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.streams.ingest_events import create_topics
from benchmarks.streams.ingest_place import APP
from benchmarks.streams.ingest_samples import made_of, watch
from streamlearn.apps import AppFolder, load_app
from streamlearn.samples import SampleBatch, SampleCodec
from streamlearn.testing import small_batch


def batch(folder: AppFolder, first: int, corrections: int) -> SampleBatch:
    """Rows that were due when their wait was over, and others that came later."""
    made = small_batch(folder.app, requests=4, rows=first + corrections)
    due_ms = made.requests.event_time_ms[made.request_index] + 1_000 * folder.app.groups[0].wait_s
    return replace(made, settle_time_ms=due_ms + (np.arange(first + corrections) >= first))


def test_first_rows_are_told_from_corrections_and_waited_for(tmp_path: Path) -> None:
    folder = load_app(APP, [f"topics.root={tmp_path.as_uri()}"])
    create_topics(folder, 2)
    codec = SampleCodec(folder.app, folder.settings.samples)
    messages = [codec.encode(batch(folder, *rows)) for rows in ((5, 2), (0, 1), (3, 0))]
    with folder.open_topic("samples") as topic, topic.writer() as writer:
        writer.append(0, messages[:2], None, [1_000, 3_000])
        made = made_of(folder)
        assert (made.first_rows, made.corrections, made.last_ms) == (5, 3, 3_000)
        assert made.message_bytes == len(messages[0]) + len(messages[1])

        asked = []

        def is_over(rows: int) -> bool:
            asked.append(rows)
            if len(asked) == 1:
                writer.append(1, messages[2:], None, [2_000])
            return rows == 8

        made = made_of(folder, is_over)
        assert (made.first_rows, made.corrections, made.last_ms) == (8, 3, 3_000)
        assert asked[0] == 5
        assert asked[-1] == 8


def test_rows_that_come_while_it_is_watched_have_their_time_of_arrival(tmp_path: Path) -> None:
    folder = load_app(APP, [f"topics.root={tmp_path.as_uri()}"])
    create_topics(folder, 1)
    given = batch(folder, 4, 0)
    message = SampleCodec(folder.app, folder.settings.samples).encode(given)
    looks = 0
    with folder.open_topic("samples") as topic, topic.writer() as writer:
        writer.append(0, [message])  # what was there before is not met

        def is_over() -> bool:
            nonlocal looks
            looks += 1
            if looks == 1:
                writer.append(0, [message])
            return looks == 4

        found = watch(folder, is_over)
    assert found.settle_ms.tolist() == given.settle_time_ms.tolist()
    assert len(set(found.arrived_ms.tolist())) == 1
