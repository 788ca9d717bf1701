"""Serving that logs a share of its requests, in a whole job on Prism: actions on the others are counted alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlearn.apps import AppFolder, load_app
from streamlearn.events import Producer, is_logged
from streamlearn.testing import small_impression
from tests.ingest.history import STEP_MS, T_MS, learned, messages, outcomes, records_of, write_app
from tests.ingest.test_samples_pipeline import ended, job

REQUESTS, SHARE = 600, 0.3


def write(app: AppFolder) -> tuple[int, int, int]:
    """What serving logs and what people do, each by a producer: logged requests, actions on them, actions on others."""
    logged, acts = 0, {True: 0, False: 0}
    with Producer(app) as serving, Producer(app) as player:
        for seed in range(REQUESTS):
            given = small_impression(seed) | {"event_time_ms": T_MS + seed * STEP_MS}
            is_one = is_logged(given["request_id"], app.settings.join.logged_share)
            if is_one:
                serving.impression(**given)
                logged += 1
            # Some act before what they saw is written; on requests that are not logged also beyond all windows.
            for after_ms in (5_000, *([-1_000] if seed % 2 else []), *([] if is_one else [7_200_000])):
                time_ms = given["event_time_ms"] + after_ms
                player.action(given["request_id"], time_ms, given["items"][0]["video_id"], "click")
                acts[is_one] += 1
        serving.flush()
        player.flush()
        player.end(T_MS + REQUESTS * STEP_MS + 7_200_000)
    return logged, acts[True], acts[False]


def test_actions_of_requests_that_serving_did_not_log_are_counted_and_set_aside_nowhere(
    prism: Path, tmp_path: Path
) -> None:
    app = write_app(tmp_path / "app", prism, lots=3)
    with (app.folder / "app.toml").open("a") as settings:
        settings.write(f"\n[join]\nlogged_share = {SHARE}\n")
    app = load_app(app.folder)
    logged, actions, unlogged = write(app)
    assert logged == pytest.approx(SHARE * REQUESTS, rel=0.25)
    with job(app) as process:
        counts = ended(app, process)["counts"]
    assert counts["impressions"] == logged
    assert counts["actions_unlogged"] == unlogged
    assert counts["actions"] == actions + unlogged
    assert not counts.keys() & {"actions_orphan", "actions_late", "actions_before", "impressions_late"}
    with app.open_topic("dead_letters") as topic:
        assert list(records_of(topic)) == []
    expected = outcomes(app)
    assert learned(app) == expected
    assert sum(label for (_, bit), label in expected.items() if bit == 0) == logged
    assert sum(len(batch.requests) for _, batch in messages(app)) >= logged
