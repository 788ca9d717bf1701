"""The command line as its users meet it: in a process of its own, by what it prints and how it exits."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from typer.testing import CliRunner

from streamlearn.apps import load_app
from streamlearn.cli.main import cli
from streamlearn.errors import UsageError
from streamlearn.events import Producer
from streamlearn.schemas.app import app_schemas
from streamlearn.testing import wait_until
from streamlearn.topics import create_topic
from streamlearn.versions import open_store
from tests.versions.history import MODEL, Trainer

ROOT = Path(__file__).parents[2]
KUAIRAND = ROOT / "examples" / "kuairand"


def _streamlearn(*words: object, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "streamlearn", *map(str, words)]
    whole = {**os.environ, "COLUMNS": "200", "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd or ROOT, env=whole, timeout=600, check=False)


def test_help_names_every_verb_and_what_it_does() -> None:
    done = _streamlearn("--help")
    assert done.returncode == 0
    for verb in ("demo", "doctor", "peek", "replay", "schema", "settings", "topics"):
        assert verb in done.stdout


def test_a_wrong_option_exits_with_two() -> None:
    assert _streamlearn("doctor", "--nonsense").returncode == 2
    assert _streamlearn("nonsense").returncode == 2


def test_a_folder_that_is_no_application_is_said_in_two_lines(tmp_path: Path) -> None:
    done = _streamlearn("settings", tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"error: {tmp_path} is not an application folder: it has no app.py",
        "help: name the folder of an application, such as examples/kuairand",
    ]


def test_a_place_that_cannot_be_written_is_named_and_no_traceback_shown(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = _streamlearn("schema", KUAIRAND, "--out", tmp_path / "file" / "schemas")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: {tmp_path / 'file' / 'schemas'}: Not a directory",
        "help: check that the path exists, has free space and is writable; --set telemetry.log_level=debug shows more",
    ]


def test_a_shell_is_told_the_verbs_that_begin_as_what_was_typed() -> None:
    script = Path(sys.executable).parent / "streamlearn"
    asked = {"_STREAMLEARN_COMPLETE": "complete_bash", "COMP_WORDS": "streamlearn d", "COMP_CWORD": "1"}
    done = subprocess.run([script], env={**os.environ, **asked}, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["demo", "diff", "doctor"]
    assert "--install-completion" in _streamlearn("--help").stdout


def test_doctor_names_versions_and_the_native_build() -> None:
    def answered() -> Any:
        """What it says once no program that it asks is slow, as on a loaded machine."""
        done = _streamlearn("doctor", "--json")
        return None if "timed out" in done.stdout else done

    done = wait_until(answered, "all programs to say their versions")
    findings = {finding["what"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert findings["native module"]["state"] == "ok"
    assert findings["tensorflow"]["detail"].startswith("2.")
    assert "gpu" in findings


def test_doctor_fails_on_an_address_that_does_not_answer_and_hides_its_password() -> None:
    url = "redis://:hunter2@127.0.0.1:1/0"
    done = _streamlearn("doctor", "--json", STREAMLEARN_REGISTRY=url)
    finding = next(one for one in json.loads(done.stdout) if one["what"] == "STREAMLEARN_REGISTRY")
    assert (done.returncode, finding["state"]) == (1, "wrong")
    assert "hunter2" not in done.stdout + done.stderr


def test_settings_show_what_a_run_would_have() -> None:
    done = _streamlearn("settings", KUAIRAND, "--json", "--set", "events.linger_ms=7")
    assert json.loads(done.stdout)["events.linger_ms"] == 7


def test_settings_fit_80_columns_and_mark_what_differs(small: Path, verb: Callable[..., Any]) -> None:
    lines = verb("settings", small, "--set", "events.linger_ms=7").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "* events.linger_ms = 7  (default 50)" in lines
    assert [line for line in lines if line.startswith("*")] == ["* events.linger_ms = 7  (default 50)"]
    assert json.loads(verb("settings", small, "--changed", "--json").stdout) == {}


@pytest.mark.parametrize("options", [(), ("--json",), ("--changed",), ("--changed", "--json")])
def test_settings_show_urls_without_their_login(
    small: Path, verb: Callable[..., Any], options: tuple[str, ...]
) -> None:
    secret = (
        "--set",
        "registry.url=redis://hopper:SEC@RET/1@host:1/2",
        "--set",
        'ps.addresses=["tcp://u:SECRET@host"]',
    )
    shown = verb("settings", small, *secret, *options).stdout
    assert "redis://host:1/2" in shown
    assert "hopper" not in shown
    assert "SEC" not in shown


def test_settings_show_urls_without_a_login_as_they_are(small: Path, verb: Callable[..., Any]) -> None:
    shown = verb("settings", small, "--set", "versions.store=file:///models/a@b", "--json").stdout
    assert json.loads(shown)["versions.store"] == "file:///models/a@b"


def test_a_setting_that_is_none_is_refused_with_the_one_that_was_meant() -> None:
    done = _streamlearn("settings", KUAIRAND, "--set", "events.linger=7")
    assert done.returncode == 2
    assert "did you mean 'events.linger_ms'?" in done.stderr


def test_schemas_are_printed_one_by_one_and_written_all_at_once(tmp_path: Path, verb: Callable[..., Any]) -> None:
    impression = json.loads(_streamlearn("schema", KUAIRAND, "impression").stdout)
    assert impression["name"] == "streamlearn.kuairand.Impression"
    verb("schema", KUAIRAND, "--out", tmp_path)
    assert json.loads((tmp_path / "impression.avsc").read_text()) == impression
    assert len(list(tmp_path.glob("*.avsc"))) == len(json.loads(verb("schema", KUAIRAND, "--json").stdout))


@pytest.mark.parametrize("kind", ["impression", "action"])
def test_the_example_of_an_event_is_valid(small: Path, verb: Callable[..., Any], kind: str) -> None:
    event = json.loads(verb("schema", small, kind, "--example").stdout)
    assert event.pop("kind") == kind
    folder = load_app(small)
    declared = app_schemas(folder.app)[kind].json
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(declared), event, strict=True)
    for name in ("impressions", "actions"):
        create_topic(folder.topic_url(name)).close()
    with Producer(folder) as producer:
        getattr(producer, kind)(**event)
    assert verb("schema", small, "sample", "--example").exception.message.startswith("--example needs the name")


def test_a_shell_is_told_the_settings_and_the_versions_that_begin_as_what_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "store"))
    Trainer(store).story((1, 2, 14))
    monkeypatch.setenv("STREAMLEARN_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("STREAMLEARN_REGISTRY", "none")

    def proposed(*words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", " ".join(("streamlearn", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        return CliRunner().invoke(cli, [], env={"_STREAMLEARN_COMPLETE": "complete_bash"}).stdout.split()

    assert proposed("train", "shop", "--set", "publisher.on_") == ["publisher.on_reject="]
    assert proposed("show", MODEL, "1") == ["14", "1"]
    assert proposed("rollback", MODEL, "--to", "2") == ["2"]
    assert proposed("show", "no-model", "1") == []


def test_help_of_a_verb_that_runs_without_a_sub_verb_does_not_name_one(verb: Callable[..., Any]) -> None:
    assert "serve [OPTIONS] {APP}" in verb("serve", "--help").stdout
    assert "serve tune [OPTIONS] {APP}" in verb("serve", "tune", "--help").stdout


def test_topics_are_created_counted_and_peeked_into(tmp_path: Path, verb: Callable[..., Any]) -> None:
    root = f"topics.root=file://{tmp_path}"
    missing = json.loads(verb("topics", KUAIRAND, "--json", "--set", root).stdout)
    assert {row["id"] for row in missing} == {"missing"}
    limits = ("--limit-events", 200, "--set", "replay.partitions=2")
    done = _streamlearn("replay", KUAIRAND, "--speed", 0, "--set", root, *limits)
    assert done.returncode == 0, done.stderr
    rows = {row["topic"]: row for row in json.loads(verb("topics", KUAIRAND, "--json", "--set", root).stdout)}
    assert rows["impressions"]["partitions"] == 2
    assert rows["impressions"]["records"] > 0
    lines = verb("peek", KUAIRAND, "impressions", "--set", root).stdout.splitlines()
    assert {json.loads(line)["event"] for line in lines} == {"impression"}


def test_columns_of_no_schema_are_usage_and_those_of_one_are_listed(small: Path, verb: Callable[..., Any]) -> None:
    refused = verb("schema", small, "--columns").exception
    assert isinstance(refused, UsageError)
    assert "name one of impression, action" in refused.help
    listed = verb("schema", small, "action", "--columns", "--json")
    assert {"column": "item_id", "dtype": "int64"} in json.loads(listed.stdout)


@pytest.mark.parametrize("words", [["schema"], ["peek", "nowhere"]])
def test_what_is_missing_or_wrong_is_usage(words: list[str]) -> None:
    assert _streamlearn(*words).returncode == 2
