"""`streamlearn up` as people run it: events become scores, what is killed comes back, and nothing stays behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamlearn.access.address import socket_address
from streamlearn.cli.main import cli
from streamlearn.errors import TopicMissing, UsageError
from streamlearn.supervision import taken_over
from streamlearn.testing import wait_until
from streamlearn.versions import open_store
from streamlearn.versions.pointer.switch_log import SwitchLog
from tests.ingest.history import fill, write_app
from tests.listener import listening

_WAIT_S = 300.0
_APP = """\
from dataclasses import replace

from streamlearn.testing import small_app

app = replace(small_app(), model="logistic")
"""
_RENAMED = """
click, *others = app.labels
app = replace(app, labels=(replace(click, name="tap"), *others))
"""
_SETTINGS = """\
[trainer]
step_rows = 32

[tables]
rows_max = 100_000

[publisher]
publish_interval_s = 0.5

[serving]
users_buckets = [1]
candidates_buckets = [4]
cache_folder = "{cache}"

[front]
listen = "127.0.0.1:0"
http = "127.0.0.1:0"
deadline_ms = 30_000

[up]
silence_s_max = 600.0
stop_s_max = 300.0
"""
_ASKED = {
    "user": {"user_id": 7, "history": [1]},
    "items": [{"video_id": 3, "tags": [], "topics": [], "vector": [1, 2, 3]}],
}


class Running:
    """A `streamlearn up` in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], err: Path) -> None:
        self.process, self._err = process, err

    @property
    def said(self) -> str:
        """Its stderr."""
        return self._err.read_text()

    def wait_said(self, word: str, times: int = 1) -> None:
        """Wait until it has said so."""

        def is_said() -> bool:
            assert self.process.poll() is None, self.said
            return self.said.count(word) >= times

        wait_until(is_said, f"{word!r} {times} times in {self._err}", _WAIT_S)

    def pids(self, name: str = r"\S+") -> list[int]:
        """Processes that it has started, in turn."""
        return [int(pid) for pid in re.findall(rf" started {name} pid=(\d+)", self.said)]


@contextmanager
def running(folder: Path, *words: str) -> Iterator[Running]:
    """Run it; it is killed in the end, and all of its own with it."""
    err, out = folder / "up.err", folder / "up.out"
    call = [sys.executable, "-m", "streamlearn", "up", str(folder), "--json", *words]
    with err.open("w") as errors, out.open("w") as answers:
        process = subprocess.Popen(call, stdout=answers, stderr=errors, text=True)
        try:
            yield Running(process, err)
        finally:
            process.kill()
            process.wait()


def ask(http: str) -> int:
    """The version that answered a request."""
    asked = urllib.request.Request(f"http://{http}/score", json.dumps(_ASKED).encode())
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return int(json.load(answer)["version"])


def test_events_become_scores_what_is_killed_comes_back_and_nothing_stays_behind(
    tmp_path: Path, prism: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = write_app(tmp_path / "app", prism, lots=2)
    (app.folder / "app.py").write_text(_APP)
    with (app.folder / "app.toml").open("a") as file:
        file.write(_SETTINGS.format(cache=tmp_path / "compiled"))
    SwitchLog(open_store(app.store_url), "small").begin("small", "small2", by="test")
    with listening(monkeypatch) as (heard, _), running(app.folder) as up:
        fill(app, 0, 60)
        up.wait_said("small is up: ")
        up.wait_said(f"small answers the callers of small; `streamlearn switch {app.folder} --to small2` lets small2")
        # To whom `up` itself says how it is; its processes speak to it alone.
        heard.wait("READY=1", "WATCHDOG=1")
        http = re.findall(r"node-1 http ([^,\s]+)", up.said)[0]
        wait_until(lambda: ask(http) > 1, "scores of what was learned", _WAIT_S)
        os.kill(up.pids("node-1")[0], signal.SIGKILL)
        up.wait_said(" node-1 is ready", 2)
        # At the address that callers know.
        assert ask(http) > 1
        # Whose socket another application may share.
        with taken_over(app.folder) as taken:
            assert taken is not None
            assert [*map(socket_address, taken[0].values())][1] == http
        # A change that live models do not allow costs no answer: only what restarts meanwhile is given up.
        (app.folder / "app.py").write_text(_APP + _RENAMED)
        up.wait_said("app.py changed since the start")
        doctor = [sys.executable, "-m", "streamlearn", "doctor", "--app", str(app.folder)]
        checked = subprocess.run(doctor, stdout=subprocess.PIPE, text=True, check=False)
        assert checked.returncode == 1
        assert "fix what is wrong: newest samples, newest version" in checked.stdout, checked.stdout
        os.kill(up.pids("trainer")[0], signal.SIGKILL)
        up.wait_said("trainer ended with status 2; giving it up, the others go on")
        assert ask(http) > 1
        (app.folder / "app.py").write_text(_APP)
        up.wait_said(" trainer is ready", 2)
        # And the loop goes on.
        before = ask(http)
        fill(app, 60, 60)
        wait_until(lambda: ask(http) > before, "scores of what came since", _WAIT_S)
        heard.heard()
        heard.wait("WATCHDOG=1")
        up.process.send_signal(signal.SIGTERM)
        heard.wait("STOPPING=1")
        assert up.process.wait(_WAIT_S) == 0, up.said
        assert heard.heard() == []
        stopped = re.findall(r" stopping ([\w-]+)(?=\s)", up.said)
        assert stopped == ["ingest", "trainer", "node-1"]
        assert len(up.pids()) == 6
        assert not any(Path(f"/proc/{pid}").exists() for pid in up.pids())
    found = json.loads((app.folder / "up.out").read_text())
    assert [(one["process"], one["ended"], one["restarts"]) for one in found] == [
        ("ingest", "status 0", 0), ("trainer", "status 0", 2), ("node-1", "status 0", 1),
    ]  # fmt: skip
    logs = {one.name for one in (app.folder / ".streamlearn" / "logs").iterdir()}
    assert logs == {"ingest.log", "trainer.log", "node-1.log", "up.lock"}


def test_a_process_that_fails_ends_all_with_its_words(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", Path("/nowhere"), lots=2)
    with running(app.folder, "--nodes", "0", "--set", "ingest.runner=direct") as up:
        assert up.process.wait(_WAIT_S) == 1
        assert "error: ingest ended with status 2" in up.said
        # Its own two lines.
        assert re.search(r"\n +error: .*direct.*\n +help: ", up.said), up.said
        assert str(app.folder / ".streamlearn" / "logs" / "ingest.log") in up.said
        assert not any(Path(f"/proc/{pid}").exists() for pid in up.pids())


def test_without_topics_it_says_at_once_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(_APP)
    error = CliRunner().invoke(cli, ["up", str(tmp_path), "--set", "front.listen=127.0.0.1:0"]).exception
    assert isinstance(error, TopicMissing), error
    assert f"streamlearn topics {tmp_path} --create" in error.help


@pytest.mark.parametrize(
    "words",
    [["--tls-cert", "a.pem"], ["--shards", "65"], ["--set", "front.listen=nowhere"], ["--beside", "/nowhere"]],
)
def test_what_cannot_be_is_refused(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "app.py").write_text(_APP)
    assert isinstance(CliRunner().invoke(cli, ["up", str(tmp_path), *words]).exception, UsageError)
