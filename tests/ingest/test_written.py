"""What became of events is said at the end: samples, dead letters by reason; no sample at all is a failure."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamlearn.apps import AppFolder
from streamlearn.cli.main import cli
from streamlearn.errors import ConfigError, PartlyDone
from streamlearn.ingest import ProgressLog, begin_run
from streamlearn.ingest.output.sink_counts import RecentLetters, Written
from streamlearn.testing import ManualClock
from streamlearn.topics import TopicSettings, create_topic, delete_topic
from tests.ingest.history import T_MS, fill, messages, write_app


def ran(verb: str, app: AppFolder, *words: str) -> Any:
    return CliRunner().invoke(cli, [verb, str(app.folder), *words], env={"COLUMNS": "120"})


def table(out: str) -> dict[str, str]:
    return {
        name.strip(): value for name, _, value in (line.rpartition(" ") for line in map(str.rstrip, out.splitlines()))
    }


def garbage(app: AppFolder, topic: str, records: int) -> None:
    """Records that are no events, then the end of both topics."""
    with app.open_topic(topic) as opened, opened.writer() as writer:
        writer.append(0, [b"garbage"] * records, timestamps_ms=[T_MS] * records)


@pytest.fixture
def app(prism: Path, tmp_path: Path) -> AppFolder:
    return write_app(tmp_path / "app", prism, lots=2)


def test_ingest_says_how_many_samples_and_dead_letters_there_are(app: AppFolder) -> None:
    garbage(app, "impressions", 3)
    fill(app, 0, 40, end=True)
    done = ran("ingest", app)
    assert done.exit_code == 0, done.output
    said = table(done.stdout)
    assert int(said["samples"].replace(",", "")) == sum(len(batch) for _, batch in messages(app))
    assert said["dead letters garbage"] == "3"
    assert int(said["dead letters"]) == sum(int(said[one]) for one in said if one.startswith("dead letters "))
    assert "3 garbage" in done.stderr
    assert f"help: `streamlearn peek {app.folder} dead_letters`" in done.stderr


def test_nothing_but_dead_letters_is_a_failure_of_ingest_and_of_backfill(app: AppFolder) -> None:
    garbage(app, "impressions", 5)
    fill(app, 0, 0, end=True)
    done = ran("ingest", app)
    refused(done, "no event became a sample: 5 dead letters: 5 garbage", "dead_letters`")
    assert table(done.stdout)["dead letters garbage"] == "5"
    refused(ran("backfill", app, "--runner", "direct"), "5 dead letters: 5 garbage", "dead_letters`")


def test_a_backfill_says_the_same_of_some(app: AppFolder) -> None:
    garbage(app, "impressions", 2)
    fill(app, 0, 40, end=True)
    done = ran("backfill", app, "--runner", "direct")
    assert done.exit_code == 0, done.output
    said = table(done.stdout)
    assert int(said["samples"].replace(",", "")) == sum(len(batch) for _, batch in messages(app))
    assert said["dead letters garbage"] == "2"
    assert "2 garbage" in done.stderr


@pytest.mark.parametrize(
    ("written", "is_failure"),
    [
        (Written(0, 0, {}), False),  # nothing came
        (Written(9, 0, {"unknown_schema": 4}), False),  # windows are open still, and 4 of 13 may be
        (Written(0, 0, {"unknown_schema": 4}), True),
        (Written(7, 0, {"unknown_schema": 4, "orphan": 7}), True),  # actions on what could not be read
        (Written(7, 3, {"orphan": 7}), False),
    ],
)
def test_it_is_a_failure_where_nothing_else_came(written: Written, is_failure: bool) -> None:
    if is_failure:
        with pytest.raises(PartlyDone, match="no event became a sample") as refusal:
            written.check("shop", 1.0)
        assert "topics.old_schemas" in refusal.value.help
    else:
        written.check("shop", 1.0)


def test_late_actions_are_helped_by_the_window_of_their_label_group() -> None:
    """Out-of-orderness bounds how long impressions wait for each other; it gives no action more time."""
    said = Written(9, 8, {"late": 1}).warning("shop")
    assert said.endswith("; late: if these are actions, lengthen window_s of their label group")
    assert "out_of_order" not in said


def test_more_dead_letters_than_may_be_are_a_failure() -> None:
    written = Written(190, 100, {"garbage": 10, "late": 6})  # 16 of 200: what is late could be read
    written.check("shop", 0.08)
    with pytest.raises(PartlyDone, match=r"8\.0% of the events became dead letters: 16 dead letters") as refusal:
        written.check("shop", 0.07)
    assert "raise ingest.dead_share_max, now 0.07" in refusal.value.help


@pytest.mark.parametrize("verb", [("ingest",), ("backfill", "--runner", "direct")])
def test_a_command_that_ends_says_by_its_status_that_too_much_was_lost(app: AppFolder, verb: tuple[str, ...]) -> None:
    garbage(app, "impressions", 10)
    fill(app, 0, 40, end=True)
    call = [sys.executable, "-m", "streamlearn", verb[0], str(app.folder), *verb[1:], "--set"]
    lost = subprocess.run([*call, "ingest.dead_share_max=0.05"], capture_output=True, text=True, check=False)
    assert lost.returncode == 3, lost.stderr
    assert table(lost.stdout)["dead letters garbage"] == "10"
    assert "of the events became dead letters" in lost.stderr
    assert "ingest.dead_share_max, now 0.05" in lost.stderr
    # Where so many are right; what is there is read once more.
    right = subprocess.run([*call, "ingest.dead_share_max=0.5"], capture_output=True, text=True, check=False)
    assert right.returncode == 0, right.stderr


def test_the_dead_letters_of_the_last_minutes_are_a_share_of_their_events(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    recent = RecentLetters(clock)
    recent.add(50, 40)
    assert recent.share(0.05) == 0.0  # of so few nothing is said
    recent.add(150, 10)
    with caplog.at_level(logging.ERROR):
        assert [recent.share(0.05), recent.share(0.05)] == [0.25, 0.25]
    assert [record.message for record in caplog.records] == [
        "25.0 % of the events of the last minutes became dead letters"
    ]
    clock.sleep(600)  # what was 200 counts as 100
    recent.add(400, 0)
    assert recent.share(0.05) == 0.05
    clock.sleep(60_000)
    recent.add(100, 100)
    assert recent.share(0.05) == pytest.approx(1.0)


def test_samples_of_other_features_are_not_added_to(app: AppFolder, tmp_path: Path) -> None:
    fill(app, 0, 40, end=True)
    assert ran("ingest", app).exit_code == 0
    running = begin_run(app)
    before = len(list(messages(app)))
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "app.py").write_text(CHANGED)
    (changed / "app.toml").write_text((app.folder / "app.toml").read_text())
    root = f"topics.root={app.topic_url('samples').rpartition('/')[0]}"
    for verb in ("ingest", "backfill"):
        error = CliRunner().invoke(cli, [verb, str(changed), "--set", root]).exception
        assert isinstance(error, ConfigError)
        assert "do not match the current features and labels of 'small'" in error.message
        assert "Change an application" in error.help
    with ProgressLog.open(app.topic_url("progress"), app.access) as log:
        assert log.standing().run == running.run  # which goes on
    assert len(list(messages(app))) == before
    # Begun anew, there is nothing that they would be mixed with.
    delete_topic(app.topic_url("samples"))
    create_topic(app.topic_url("samples"), TopicSettings(partitions=3, retention_ms=-1)).close()
    done = CliRunner().invoke(cli, ["backfill", str(changed), "--set", root, "--runner", "direct"])
    refused(done, "no event became a sample", "unknown_schema", "topics.old_schemas")


CHANGED = """\
from dataclasses import replace

from streamlearn.features import Slot
from streamlearn.testing import small_app

app = small_app()
app = replace(app, features=replace(app.features, slots=(*app.features.slots, Slot("mood", "item", default=0))))
"""


def refused(done: Any, *said: str) -> None:
    assert type(done.exception) is PartlyDone, done.output
    assert done.exception.exit_code == 3
    text = f"{done.exception.message}\n{done.exception.help}"
    for one in said:
        assert one in text, text
