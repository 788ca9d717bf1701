"""`streamlearn ps` as a process: it says where it listens, serves until it is told to end, and shows how it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamlearn.apps import load_app
from streamlearn.ps import Epoch, PsClient
from streamlearn.settings import PsSettings
from streamlearn.table import declared_tables

_END_S_MAX = 20


@contextmanager
def _shard(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "streamlearn", "ps", "--app", str(folder), "--listen", "127.0.0.1:0", *words]
    environment = {name: value for name, value in os.environ.items() if name != "STREAMLEARN_STORE"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as shard:
        assert shard.stdout is not None
        try:
            yield shard, shard.stdout.readline().split()[-1]
        finally:
            shard.kill()


def test_a_shard_serves_until_it_is_told_to_end(small: Path, verb: Callable[..., Any]) -> None:
    folder = load_app(small)
    tables = declared_tables(folder.app.features, folder.settings.tables)
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


def test_a_shard_that_cannot_be_is_refused_with_help(small: Path, verb: Callable[..., Any]) -> None:
    for words, said in (
        ((), "no application"),
        (("--app", small, "--shard", "3/2"), "no place"),
        (("--app", small, "--tls-cert", "cert.pem"), "belong together"),
        (("--app", small, "--token-file", small / "none"), "cannot be read"),
        (("stats", "--app", small), "ps.addresses is empty"),
    ):
        outcome = verb("ps", *words)
        assert outcome.exit_code != 0
        assert said in str(outcome.exception), words
