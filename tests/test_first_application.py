"""The tutorial's Python is run as a newcomer would, file by file; its foreign client against a real Kafka."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streamlearn.apps import load_app
from streamlearn.topics import partition_of
from tools.services import Kafka

ROOT = Path(__file__).parent.parent


@pytest.fixture
def tutorial(tmp_path: Path) -> Path:
    page = (ROOT / "docs" / "first-application.md").read_text()
    for block in re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S):
        file = tmp_path / block.splitlines()[0].removeprefix("# ")
        file.parent.mkdir(exist_ok=True)
        file.write_text(block)
    return tmp_path


def test_events_by_rows_and_by_columns_are_read_back(tutorial: Path) -> None:
    _run(tutorial, "-m", "streamlearn", "topics", "feed", "--create", "4")
    _run(tutorial, "rows.py")
    _run(tutorial, "columns.py")
    read = _run(tutorial, "read.py").splitlines()
    assert read == ["impressions: 1001 events, 0 unreadable", "actions: 1002 events, 0 unreadable"]


def test_a_client_that_knows_nothing_of_us_is_understood(tutorial: Path, kafka: Kafka) -> None:
    root = f"topics.root=kafka://{kafka.address}"
    _run(tutorial, "-m", "streamlearn", "topics", "feed", "--create", "4", "--set", root)
    _run(tutorial, "-m", "streamlearn", "schema", "feed", "--out", "schemas")
    _run(tutorial, "foreign.py", kafka.address)
    (line,) = _run(tutorial, "-m", "streamlearn", "peek", "feed", "actions", "--set", root).splitlines()
    event = json.loads(line)
    assert (event["event"], event["item_id"], event["action"]) == ("action", 12, "click")
    # Where our Producer would have put it, beside its impression.
    assert event["partition"] == partition_of(b"request-1", 4)
    with load_app(tutorial / "feed", [root]).open_topic("actions") as topic, topic.reader([event["partition"]]) as read:
        records = read.read(event["partition"], 0, wait_ms=120_000)
    assert records.timestamps_ms.tolist() == [event["event_time_ms"]]
    assert _run(tutorial, "read.py", root).splitlines()[1] == "actions: 1 events, 0 unreadable"


def _run(folder: Path, *words: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
