"""Requests that are shown in parts: an item that a later part repeats is learned once, wherever a run begins."""

from __future__ import annotations

import signal
from pathlib import Path

from streamlearn.apps import AppFolder
from streamlearn.events import Producer
from streamlearn.testing import small_impression
from tests.ingest.history import STEP_MS, T_MS, acknowledged_ms, learned, outcomes, write_app
from tests.ingest.test_samples_pipeline import ended, job, wait_for_progress

LATER_STEPS = 120  # within the longest window


def fill_in_parts(app: AppFolder, first: int, count: int, *, end: bool = False) -> None:
    """Requests, one every `STEP_MS`; a later part of each repeats an item, and both of that part's items are bought."""
    with Producer(app) as producer:
        for number in range(first, first + count):
            time_ms = T_MS + number * STEP_MS
            shown = small_impression(number, items=3) | {"event_time_ms": time_ms}
            producer.impression(**shown | {"items": shown["items"][:2]})
            if number < LATER_STEPS:
                continue
            later = small_impression(number - LATER_STEPS, items=3) | {"event_time_ms": time_ms}
            producer.impression(**later | {"items": later["items"][1:]})
            for item in later["items"][1:]:
                producer.action(later["request_id"], time_ms + 5_000, item["video_id"], "purchase")
        if end:
            producer.end(T_MS + (first + count) * STEP_MS)


def test_an_item_that_a_later_part_repeats_is_learned_once_though_a_run_begins_between_the_parts(
    prism: Path, tmp_path: Path
) -> None:
    app = write_app(tmp_path / "app", prism, lots=3)
    fill_in_parts(app, 0, 300)
    with job(app) as told:
        wait_for_progress(app, told, T_MS + 280 * STEP_MS)
        told.send_signal(signal.SIGTERM)
        assert ended(app, told)["stopped"]
    start_ms = acknowledged_ms(app) - 3_600_000 - 30_000
    assert start_ms > T_MS + 60 * STEP_MS  # later parts of requests from before it come after it
    fill_in_parts(app, 300, 60, end=True)
    with job(app) as last:
        report = ended(app, last)
    assert report["start_ms"] == start_ms
    assert learned(app) == outcomes(app)
    counts = report["counts"]
    assert counts["impressions_before"] > 0
    assert not counts.keys() & {"actions_late", "actions_orphan"}
