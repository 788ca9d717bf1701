"""`streamlearn console`: what it says when it starts, what it refuses, and that it ends when told to."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.place import Place
from tests.console.asked import TOKEN, Asked
from tests.pages import ROOT

_WAIT_S = 300.0


@pytest.fixture
def app(place: Place, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An application whose model has versions."""
    for name in ("STREAMLEARN_STORE", "STREAMLEARN_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    return _app(place)


@pytest.fixture
def still_app(still_place: Place) -> Path:
    """Another, for what is refused."""
    return _app(still_place)


def _app(place: Place) -> Path:
    folder = place.folder / "app"
    folder.mkdir(exist_ok=True)
    (folder / "app.py").write_text('from streamlearn.testing import small_app\n\napp = small_app("ctr")\n')
    (folder / "app.toml").write_text(
        f'[versions]\nstore = "{place.folder}/store"\n[registry]\nurl = "sqlite://{place.folder}/registry.db"\n'
    )
    return folder


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "streamlearn", "console", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_WAIT_S, check=False)


def test_it_serves_until_it_is_told_to_end_and_keeps_its_token_to_itself(app: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_bytes(TOKEN + b"\n")
    words = [sys.executable, "-m", "streamlearn", "console", str(app), "--listen", "127.0.0.1:0"]
    words += ["--token-file", str(token)]
    # As of `streamlearn up` with the same settings.
    taken = socket.create_server(("127.0.0.1", 0))
    words += ["--set", f"telemetry.listen=127.0.0.1:{taken.getsockname()[1]}"]
    with (
        taken,
        subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running,
    ):
        try:
            assert running.stdout is not None
            line = running.stdout.readline()
            found = re.fullmatch(r"the console of ctr is at http://(.*)/ \(moves need the token\)\n", line)
            assert found is not None, line
            ask = Asked(found[1])
            assert ask.state()["state"]["pointer"]["active"] == 5
            assert ask.move("rollback", {"to": 4}).json["active"] == 4
            running.send_signal(signal.SIGTERM)
            out, err = running.communicate(timeout=_WAIT_S)
        finally:
            running.kill()
    assert running.returncode == 0, err
    assert "rollback by console: the pointer is at 4" in err
    assert "the console goes on without metrics of its own" in err
    assert TOKEN.decode() not in line + out + err


def test_it_shows_how_far_computed_features_are_folded(app: Path) -> None:
    declared = "from pathlib import Path\nfrom tests.online.shop import folder_of\n\n"
    (app / "app.py").write_text(f"{declared}app = folder_of(Path('.'), name='ctr').app\n")
    words = [sys.executable, "-m", "streamlearn", "console", str(app), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            found = re.search(r"http://(.*)/", running.stdout.readline())
            assert found is not None
            state = Asked(found[1]).state()["state"]
        finally:
            running.kill()
    assert state["pointer"]["active"] == 5
    assert state["features"]["store"] == f"sqlite://{app.resolve()}/.streamlearn/features.db"
    assert "interactions does not exist" in state["features"]["error"], "there is no topic"


def test_it_asks_the_trainer_who_learns(app: Path) -> None:
    words = [sys.executable, "-m", "streamlearn", "console", str(app), "--listen", "127.0.0.1:0"]
    words += ["--set", "workers.slices=2", "--leader", "127.0.0.1:1"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            found = re.search(r"http://(.*)/", running.stdout.readline())
            assert found is not None
            workers = Asked(found[1]).state()["state"]["workers"]
        finally:
            running.kill()
    assert workers["error"].startswith("the trainer at 127.0.0.1:1: ")
    assert workers["help"].startswith(f"check that `streamlearn train {app.resolve()} --set workers.slices=2` runs")
    assert workers["members"] == []


def test_others_reach_it_only_with_a_token(still_app: Path, tmp_path: Path) -> None:
    refused = run(still_app, "--listen", "0.0.0.0:0")
    assert refused.returncode == 2
    assert "console.listen is 0.0.0.0:0, which other machines can reach" in refused.stderr
    assert "--token-file" in refused.stderr
    empty = tmp_path / "empty"
    empty.write_text("\n")
    assert "does not hold a token" in run(still_app, "--token-file", empty).stderr


def test_a_certificate_without_its_key_is_refused(still_app: Path, tmp_path: Path) -> None:
    assert run(still_app, "--tls-cert", tmp_path / "c.pem").returncode == 2
    (tmp_path / "c.pem").write_text("none")
    said = run(still_app, "--listen", "127.0.0.1:0", "--tls-cert", tmp_path / "c.pem", "--tls-key", tmp_path / "c.pem")
    assert (said.returncode, "cannot be used" in said.stderr) == (2, True), said.stderr
