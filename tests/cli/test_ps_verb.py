"""`streamlearn ps` as a process: it says where it listens, serves until it is told to end, and shows how it is."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamlearn.access.token_file import read_token
from streamlearn.apps import load_app
from streamlearn.errors import PartlyDone, ShardRefused, ShardUnreachable
from streamlearn.ps import Epoch, PsClient
from streamlearn.settings import PsSettings
from streamlearn.table import declared_tables
from streamlearn.testing import wait_until
from tests.listener import listening

_END_S_MAX = 120


@contextmanager
def _shard(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "streamlearn", "ps", "--app", str(folder), "--listen", "127.0.0.1:0", *words]
    environment = {name: value for name, value in os.environ.items() if name != "STREAMLEARN_STORE"}
    with (
        (folder / "shard.log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as shard,
    ):
        assert shard.stdout is not None
        try:
            yield shard, shard.stdout.readline().split()[-1]
        finally:
            shard.kill()


def test_a_shard_serves_until_it_is_told_to_end(small: Path, verb: Callable[..., Any]) -> None:
    folder = load_app(small)
    tables = declared_tables(folder.app.tables, folder.settings.tables)
    with _shard(small) as (shard, address):
        with PsClient.connect(folder.app.name, tables, PsSettings(addresses=[address])) as client:
            client.restore(Epoch(4, 2), None)
        shown = verb("ps", "stats", "--app", small, "--address", address, "--json")
        assert shown.exit_code == 0, shown.output
        (said,) = json.loads(shown.stdout)
        assert (said["place"], said["epoch"]) == ("0/1", {"run": 4, "recovery": 2})
        assert "4.2" in verb("ps", "stats", "--app", small, "--address", address).stdout
        shard.send_signal(signal.SIGTERM)
        assert shard.wait(_END_S_MAX) == 0


@pytest.mark.parametrize("place", ["0/1", "1/2"])
def test_a_shard_says_that_it_works_while_it_answers_itself(
    small: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (small / "token").write_text("a-word")
    with listening(monkeypatch) as (heard, _):
        with _shard(small, "--shard", place, "--token-file", str(small / "token")) as (shard, _):
            heard.wait("READY=1")
            for _ in range(3):
                heard.wait("WATCHDOG=1")
            shard.send_signal(signal.SIGSTOP)
            heard.wait_silence(0.5)
            shard.send_signal(signal.SIGCONT)
            heard.wait("WATCHDOG=1")
            shard.send_signal(signal.SIGTERM)
            heard.wait("STOPPING=1")
            assert shard.wait(_END_S_MAX) == 0
        assert "refused" not in (small / "shard.log").read_text()


def test_shards_that_answer_are_shown_beside_one_that_does_not(
    small: Path, verb: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlearn.cli.run.ps._STATS_WAIT_S_MAX", 1.0)
    with _shard(small, "--shard", "0/2") as (_, there), socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        away = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ("ps", "stats", "--app", small, "--address", there, "--address", away)

        def asked(*more: str) -> Any:
            """Ask until the shard that is there answers in time."""
            shown = verb(*words, *more)
            return shown if "0/2" in shown.stdout else None

        shown = wait_until(asked, "the shard that is there to answer")
        assert isinstance(shown.exception, PartlyDone)
        assert shown.exception.exit_code == 3
        assert f"1 of 2 shards did not answer: shard 1 at {away}" in shown.exception.message
        assert "refused" in shown.exception.message
        shown = wait_until(lambda: asked("--json"), "the shard that is there to answer")
        first, second = json.loads(shown.stdout)
        assert (first["place"], first["address"], second["address"]) == ("0/2", there, away)
        assert second["error"].startswith(f"shard 1 at {away}: ")
        assert isinstance(shown.exception, PartlyDone)
        assert isinstance(verb("ps", "stats", "--app", small, "--address", away).exception, ShardUnreachable)


def test_a_shard_says_in_its_log_where_it_stands_and_tells_no_secret(small: Path, verb: Callable[..., Any]) -> None:
    folder = load_app(small)
    tables = declared_tables(folder.app.tables, folder.settings.tables)
    token, log = small / "token", small / "shard.log"
    token.write_text("a-secret-of-many-words\n")
    with _shard(small, "--token-file", str(token), "--set", "telemetry.log_format=json") as (shard, address):
        settings = PsSettings(addresses=[address])
        with pytest.raises(ShardRefused):
            PsClient.connect(folder.app.name, tables, settings, b"another-secret")
        with PsClient.connect(folder.app.name, tables, settings, read_token(token)) as client:
            client.restore(Epoch(4, 2), None)
        wait_until(lambda: "refused a connection" in log.read_text(), "the refusal in the log")
        shard.send_signal(signal.SIGTERM)
        assert shard.wait(_END_S_MAX) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    said = [line["message"] for line in lines]
    assert said[0] == f"shard 0/1 listens on {address}"
    assert (lines[0]["model"], lines[0]["parts"]) == (folder.app.name, "[0, 1024)")
    assert "shard 0/1 is at no version in epoch 4.2" in said
    assert said[-2:] == ["shard 0/1 stops after its current work", "shard 0/1 has stopped"]
    assert "secret" not in log.read_text()


def test_a_shard_that_cannot_be_is_refused_with_help(small: Path, verb: Callable[..., Any]) -> None:
    for words, said in (
        ((), "no application"),
        (("--app", small, "--shard", "3/2"), "invalid shard position '3/2'"),
        (("--app", small, "--tls-cert", "cert.pem"), "--tls-key together"),
        (("--app", small, "--token-file", small / "none"), "cannot be read"),
        (("stats", "--app", small), "ps.addresses is empty"),
    ):
        outcome = verb("ps", *words)
        assert outcome.exit_code != 0
        assert said in str(outcome.exception), words
