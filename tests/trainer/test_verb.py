"""`streamlearn train` as people call it: where it ends, what it prints, and what it says when it cannot begin."""

from __future__ import annotations

import gc
import json
import shutil
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamlearn.apps import AppFolder, load_app
from streamlearn.cli.main import cli
from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.errors import ConfigError, PositionLost, SpecError, StreamlearnError, TopicMissing, UsageError
from streamlearn.pulse import Pulse
from streamlearn.samples import SampleBatch, SampleCodec
from streamlearn.testing import ManualClock
from streamlearn.topics import TopicSettings, create_topic, open_topic
from streamlearn.trainer import Trainer
from tests.listener import listening
from tests.trainer.processes import newest, write_app
from tests.trainer.runs import known_of
from tests.trainer.stream import messages_of, outcomes, write_messages

_SETTINGS: dict[str, dict[str, Any]] = {
    "trainer": {"step_rows": 64},
    "publisher": {"publish_interval_s": 3_600},
}


@pytest.fixture
def app(tmp_path: Path) -> AppFolder:
    return write_app(tmp_path / "app", _SETTINGS)


@pytest.fixture
def train(verb: Callable[..., Any], app: AppFolder) -> Callable[..., Any]:
    """Runs the verb on the application, in this process; gives typer's result."""
    return partial(verb, app)


def refused(result: Any, kind: type[StreamlearnError], *said: str) -> None:
    assert type(result.exception) is kind, result.output
    text = f"{result.exception.message}\n{result.exception.help}"
    for one in said:
        assert one in text, text


def test_it_trains_to_the_end_there_is_and_says_what_it_did(app: AppFolder, train: Callable[..., Any]) -> None:
    messages = messages_of(app.app, 12)
    write_messages(app, messages)
    result = train("--until-offset", "end", "--json")
    assert result.exit_code == 0, result.output
    report, manifest = json.loads(result.stdout), newest(app)
    assert manifest is not None
    assert (report["run"], report["version"]) == (1, manifest.version)
    assert report["rows"] == manifest.metrics["samples"]
    assert report["rows_read"] == sum(len(batch) for _, batch in messages)
    assert report["rows_dropped"] > 0
    assert (report["rows_refused"], report["rows_bad"], report["recoveries"], report["rewinds"]) == (0, 0, 0, 0)
    assert report["steps"] >= report["rows"] / 64
    assert 0 < report["loss"] < 5
    assert {"seconds_read", "seconds_gather", "seconds_pull", "seconds_learn", "seconds_push"} <= set(report)
    assert known_of(app, messages) == outcomes(messages)
    # Without --json people read the same; and there is nothing left to be learned.
    again = train("--until-offset", "end")
    assert again.exit_code == 0, again.output
    rows = dict(line.split() for line in again.stdout.splitlines() if len(line.split()) == 2)
    assert (rows["run"], rows["rows"], rows["version"]) == ("2", "0", str(manifest.version))
    assert {rows[f"rows_{name}"] for name in ("read", "dropped", "old", "skipped", "bad", "refused")} == {"0"}
    assert rows["loss"] == "-"
    assert f"nothing new to learn: no samples came after version {manifest.version}" in again.stderr
    assert "nothing new" not in result.stderr


def test_it_says_that_it_works_and_is_patient_with_what_takes_long(
    app: AppFolder, train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_messages(app, messages_of(app.app, 4))
    with listening(monkeypatch) as (listener, environ):
        pulse, heard = Pulse(environ), list[str]()
        for module in ("streamlearn.trainer.trainer", "streamlearn.cli.run.train"):
            monkeypatch.setattr(f"{module}.PULSE", pulse)
        begin = Trainer.run

        def hear(self: Trainer, stop: threading.Event, *, show: Any, **more: Any) -> Any:
            def listen(_: Trainer) -> None:
                heard.extend(listener.heard())
                if "WATCHDOG=1" in heard:
                    stop.set()

            return begin(self, stop, show=listen, **more)

        monkeypatch.setattr(Trainer, "run", hear)
        result = train("--until-idle", "120", "--set", "publisher.publish_interval_s=0.2")
        assert result.exit_code == 0, result.output
        heard += listener.heard()
    ready, *others, going_on, ends = heard
    assert ready == "READY=1 WATCHDOG=1"
    assert "WATCHDOG=1" in others
    # Its last version takes what it takes.
    assert any("WATCHDOG_USEC=4200300000" in one for one in others)
    assert going_on == "WATCHDOG=1 WATCHDOG_USEC=300000"
    assert ends == "STOPPING=1 WATCHDOG=1"


def test_it_says_what_was_read_and_not_learned(app: AppFolder, train: Callable[..., Any]) -> None:
    messages = messages_of(app.app, 12)
    write_messages(app, messages)
    train("--until-offset", "end")
    write_messages(app, messages)  # all of it comes again
    result = train("--until-offset", "end", "--set", "trainer.restart_slack_s=1")
    rows = sum(len(batch) for _, batch in messages)
    assert f"nothing new to learn: {rows:,} rows read, but none left to learn" in result.stderr
    again = json.loads(train("--until-offset", "end", "--json").stdout)
    assert again["loss"] is None


def test_deleted_samples_end_it_unless_that_is_accepted(app: AppFolder, train: Callable[..., Any]) -> None:
    url, codec, messages = app.topic_url("samples"), SampleCodec(app.app, app.settings.samples), messages_of(app.app, 8)
    kept = TopicSettings(partitions=2, retention_ms=3_600_000, segment_bytes=1)
    in_two_hours = ManualClock(SYSTEM_CLOCK.wall_ms() + 7_200_000)

    def write(some: list[tuple[int, SampleBatch]]) -> None:
        with app.open_topic("samples") as topic, topic.writer() as writer:
            for partition, batch in some:
                writer.append(partition, [codec.encode(batch)])

    create_topic(url, kept, app.access).close()
    write(messages[:4])
    assert train("--until-offset", "end").exit_code == 0
    manifest = newest(app)
    assert manifest is not None
    write(messages[4:8])
    with open_topic(url, app.access, clock=in_two_hours) as topic, topic.reader() as reader:
        topic.maintain()
        begins = [reader.earliest(partition) for partition in range(2)]
    refused(train("--until-offset", "end"), PositionLost, "is outside", " --accept-lost` continues")
    write(messages[8:])
    result = train("--until-offset", "end", "--accept-lost")
    assert result.exit_code == 0, result.output
    gone = [(at.partition, at.offset, begins[at.partition]) for at in manifest.positions]
    lost = [each for each in gone if each[1] < each[2]]
    assert lost
    rows = dict(line.split() for line in result.stdout.splitlines() if len(line.split()) == 2)
    assert int(rows["rows"].replace(",", "")) > 0
    for partition, begin, end in lost:
        assert rows[f"lost_from_partition_{partition}"] == f"{begin}..{end}"
        said = f"partition {partition} of the samples: offsets {begin} to {end - 1} were deleted before they were"
        assert f"warning: {said} learned" in result.stderr
    # From then on nothing has to be accepted.
    assert train("--until-offset", "end").exit_code == 0


def test_the_newest_version_holds_the_validation_scores_that_were_printed(
    app: AppFolder, train: Callable[..., Any]
) -> None:
    write_messages(app, messages_of(app.app, 200))
    result = train("--until-offset", "end", "--json")
    report, manifest = json.loads(result.stdout), newest(app)
    assert manifest is not None
    printed = {name: value for name, value in report.items() if name.startswith("validation.")}
    assert {"validation.click.auc", "validation.click.log_loss", "validation.click.rows"} <= printed.keys()
    stored = {name: round(value, 6) for name, value in manifest.metrics.items() if name.startswith("validation.")}
    assert stored == printed


def test_what_was_loaded_is_left_out_of_collections(
    app: AppFolder, train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection that goes through all that TensorFlow loaded holds every stage up."""
    write_messages(app, messages_of(app.app, 1))
    loaded: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: loaded.append("tensorflow" in sys.modules))
    assert train("--until-offset", "end").exit_code == 0
    assert loaded
    assert all(loaded)


def test_it_ends_at_offsets_and_goes_on_from_there(app: AppFolder, train: Callable[..., Any]) -> None:
    messages = messages_of(app.app, 10)
    write_messages(app, messages)
    of = {at: [batch for partition, batch in messages if partition == at] for at in (0, 1)}
    first = json.loads(train("--until-offset", "0:2,1:3", "--json").stdout)
    assert first["rows_read"] == sum(map(len, of[0][:2] + of[1][:3]))
    # What is not named is read to where it ends now.
    second = json.loads(train("--until-offset", "1:4", "--json").stdout)
    assert second["rows_read"] == sum(map(len, of[0][2:] + of[1][3:4]))
    third = json.loads(train("--until-offset", "end", "--json").stdout)
    assert third["rows_read"] == sum(map(len, of[1][4:]))
    assert known_of(app, messages) == outcomes(messages)


def test_it_ends_when_nothing_new_has_come_for_a_while(app: AppFolder, train: Callable[..., Any]) -> None:
    messages = messages_of(app.app, 6)
    write_messages(app, messages)
    result = train("--until-idle", "0.05", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows_read"] == sum(len(batch) for _, batch in messages)
    assert known_of(app, messages) == outcomes(messages)


@pytest.mark.parametrize("given", ["2:5", "0", "0:x", "0:-1", "end,0:1", "0:1,", ":1"])
def test_offsets_that_are_none_are_refused_before_anything_is_learned(
    app: AppFolder, train: Callable[..., Any], given: str
) -> None:
    write_messages(app, messages_of(app.app, 2))
    refused(train("--until-offset", given), UsageError, "PARTITION:OFFSET", "2 partitions", "`end`")
    assert newest(app) is None


def test_without_samples_it_says_which_topic_is_missing(app: AppFolder, train: Callable[..., Any]) -> None:
    result = train("--until-offset", "end")
    refused(result, TopicMissing, "samples", "`streamlearn ingest ")
    assert result.exception.help
    assert newest(app) is None


@pytest.mark.parametrize(
    ("model", "kind", "said"),
    [
        ("nonesuch", SpecError, ("'nonesuch'", "dcn_v2", "MODULE:CLASS")),
        ("model:Nonesuch", SpecError, ("has no Nonesuch",)),
        ("nonesuch:Toy", ConfigError, ("nonesuch",)),
    ],
)
def test_a_model_there_is_none_of_is_refused_with_those_there_are(
    tmp_path: Path, model: str, kind: type[StreamlearnError], said: tuple[str, ...]
) -> None:
    folder = write_app(tmp_path / "other", _SETTINGS, model)
    refused(CliRunner().invoke(cli, ["train", str(folder.folder), "--until-offset", "end"]), kind, *said)


def test_settings_of_a_call_lie_over_those_of_the_folder(app: AppFolder, train: Callable[..., Any]) -> None:
    write_messages(app, messages_of(app.app, 6))
    result = train("--until-offset", "end", "--json", "--set", "trainer.step_rows=16")
    report = json.loads(result.stdout)
    assert report["steps"] >= report["rows"] / 16
    refused(train("--set", "trainer.step_rows=0"), ConfigError, "trainer.step_rows")


def test_a_label_that_is_added_is_named_before_the_model_speaks_of_dims(
    tmp_path: Path, verb: Callable[..., Any]
) -> None:
    app = write_app(tmp_path / "app", _SETTINGS, model="logistic")
    write_messages(app, messages_of(app.app, 2))
    assert verb(app, "--until-offset", "end").exit_code == 0
    manifest = newest(app)
    assert manifest is not None
    # Elsewhere, because a process reads an application's code once; the store is the same.
    changed = Path(shutil.copytree(app.folder, tmp_path / "changed"))
    more = 'labels=(*app.labels, *(Label(name, name, "fast") for name in ("share", "hide", "save")))'
    with (changed / "app.py").open("a") as file:
        file.write(f"from streamlearn.features import Label\n\napp = replace(app, {more})\n")
    said = (
        f"version {manifest.version} of 'learnable' has the labels click, bought; this application has click, bought,"
    )
    result = verb(load_app(changed), "--until-offset", "end")
    refused(result, UsageError, f"{said} share, hide, save", "new name")
    assert UsageError.exit_code == 2
