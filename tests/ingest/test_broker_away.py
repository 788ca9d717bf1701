"""A broker that goes away in the midst of a run: ingest waits for it, goes on, and nothing is lost or learned twice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from streamlearn.apps import load_app
from streamlearn.testing import wait_until
from tests.campaign import away_s, some
from tests.ingest.history import STEP_MS, T_MS, learned, outcomes, write_app
from tests.ingest.on_flink import Feed, ended, log_of
from tests.ingest.test_samples_pipeline import check_messages, job
from tools.services import Kafka


@pytest.mark.parametrize("how", some(["killed", "stopped"]))
def test_a_broker_that_is_away_for_a_while_is_waited_for_and_nothing_is_lost(
    how: str, own_kafka: Kafka, prism: Path, topic_name: str, tmp_path: Path
) -> None:
    app = write_app(tmp_path / "app", prism, lots=4, prefix=f"kafka://{own_kafka.address}/{topic_name}-")
    settings = app.folder / "app.toml"
    # A broker that is slow to come back is waited for too.
    patient = "[topics]\nreach_s = 600\ndelivery_timeout_s = 600"
    settings.write_text(settings.read_text().replace("[topics]", patient))
    feed = Feed(load_app(app.folder))
    feed.more(150)
    with job(app) as process:
        feed.until_acknowledged(T_MS + 100 * STEP_MS, process)
        # What these have to become is written while the broker goes.
        feed.more(20)
        own_kafka.kill() if how == "killed" else own_kafka.stop()
        back_s = time.monotonic() + away_s()

        def is_over() -> bool:
            assert process.poll() is None, log_of(app)
            return time.monotonic() > back_s

        wait_until(is_over, "the broker may come back", away_s() + 300)
        own_kafka.launch()
        feed.more(30, end=True)
        report = ended(app, process)
    assert not report["stopped"]
    assert report["run"] == 1
    expected = outcomes(app)
    assert len(expected) > 300
    assert learned(app) == expected
    check_messages(app)
