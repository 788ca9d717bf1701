"""`streamlearn serve` as a process: it answers with what was trained, follows a rollback, and drains."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from streamlearn.access import check_address
from streamlearn.apps import AppFolder
from streamlearn.errors import ConfigError
from streamlearn.open_files import allow_connections
from streamlearn.testing import wait_until
from tests.listener import listening
from tests.trainer.processes import job, said, write_app
from tests.trainer.stream import messages_of, write_messages

_WAIT_S = 300.0


@pytest.fixture
def trained(tmp_path: Path) -> AppFolder:
    """An application with some versions."""
    app = write_app(
        tmp_path / "app",
        {
            "trainer": {"step_rows": 64},
            "publisher": {"publish_interval_s": 0.05},
            "serving": {
                "users_buckets": [1, 4], "candidates_buckets": [4, 16], "cache_folder": str(tmp_path / "compiled"),
            },
            "front": {"listen": "127.0.0.1:0", "http": "127.0.0.1:0", "deadline_ms": 30_000},
            "telemetry": {"log_format": "json"},
        },
        model="deepfm",
    )  # fmt: skip
    write_messages(app, messages_of(app.app, 40))
    with job(app, "--until-offset", "end") as process:
        assert process.wait(_WAIT_S) == 0, said(app)
    return app


@contextmanager
def serving(app: AppFolder, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A node in a process of its own, and where its HTTP is; it is killed in the end."""
    call = [sys.executable, "-m", "streamlearn", "serve", str(app.folder), *more]
    out, log = app.folder / "serve.out", app.folder / "serve.log"
    with out.open("w") as to, log.open("w") as errors:
        process = subprocess.Popen(call, stdout=to, stderr=errors, text=True)
        try:

            def is_served() -> bool:
                assert process.poll() is None, log.read_text()[-4_000:]
                return "is served" in out.read_text()

            wait_until(is_served, "a node that is ready", _WAIT_S)
            yield process, out.read_text().partition("http ")[2].partition(": version")[0]
        finally:
            process.kill()
            process.wait()


def ask(http: str, items: int = 3, route: str | None = None) -> dict[str, Any]:
    """The answer to one request."""
    body = {
        "user": {"user_id": 7, "history": [1, 2], "age": 0.5},
        "items": [{"video_id": at, "tags": [at % 3], "length": 1.0} for at in range(items)],
    }
    data = json.dumps(body if route is None else body | {"route_key": route}).encode()
    asked = urllib.request.Request(f"http://{http}/score", data, {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def streamlearn(*words: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "streamlearn", *words]
    return subprocess.run(call, capture_output=True, text=True, timeout=_WAIT_S, check=False)


def test_a_node_answers_with_what_was_trained_follows_a_rollback_and_drains(
    trained: AppFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(monkeypatch) as (heard, _), serving(trained, "--name", "node-1") as (process, http):
        heard.wait("WATCHDOG=1")
        first = ask(http)
        version = first["version"]
        assert version > 1
        assert {name: len(scores) for name, scores in first["scores"].items()} == {"click": 3, "bought": 3}
        assert all(0 < one < 1 for scores in first["scores"].values() for one in scores)
        # Merged with others, and beyond every bucket, a candidate is scored the same.
        with ThreadPoolExecutor(8) as pool:
            for found in pool.map(lambda items: ask(http, items), [3, 1, 9, 20, 33, 2, 3, 12] * 3):
                items = min(3, len(found["scores"]["click"]))
                assert found["scores"]["click"][:items] == pytest.approx(first["scores"]["click"][:items], rel=1e-4)
        place = ("--app", str(trained.folder))
        done = streamlearn("promote", "learnable", "1", *place, "--canary", "0.5", "--accept", "--json")
        assert done.returncode == 0, done.stderr
        seen = [ask(http, route=f"user-{at % 20}")["version"] for at in range(40)]
        assert set(seen) == {1, version}
        assert seen[:20] == seen[20:]
        done = streamlearn("rollback", "learnable", *place, "--to", "1", "--reason", "try", "--json")
        assert done.returncode == 0, done.stderr
        assert [one["node"] for one in json.loads(done.stdout)["acted"]] == ["node-1"]
        # Whoever waited for the ack is answered by the older version at once.
        assert ask(http)["version"] == 1
        heard.heard()
        heard.wait("WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        heard.wait("STOPPING=1")
        assert process.wait(_WAIT_S) == 0
    # Nothing is left of graphs that were brought from the store.
    assert "Traceback" not in (trained.folder / "serve.log").read_text()


def test_a_node_with_a_token_says_that_it_works_while_two_thousand_connections_say_nothing(
    trained: AppFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = trained.folder / "token"
    token.write_text("open-sesame")
    # As many open files as most systems allow a process that asks for no more: fewer than its connections need.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        heard, _ = stack.enter_context(listening(monkeypatch))
        _, where = stack.enter_context(serving(trained, "--token-file", str(token)))
        allow_connections(5_000)
        host, _, port = where.rpartition(":")
        silent = [stack.enter_context(socket.create_connection((host, int(port)), 60)) for _ in range(2_000)]
        heard.heard()
        beats: list[str] = []

        def is_heard() -> bool:
            beats.extend(heard.heard())
            return len(beats) > 3

        wait_until(is_heard, "it says that it works", 30)
        asked = urllib.request.Request(f"http://{where}/v2", headers={"Authorization": "Bearer open-sesame"})
        for _ in range(20):
            with urllib.request.urlopen(asked, timeout=60) as answer:
                assert answer.status == 200
        assert len(silent) == 2_000


def lane_processes(node: int) -> list[int]:
    """The processes of a node's lanes."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            status = (folder / "status").read_text()
            if f"\nPPid:\t{node}\n" in status and b"lane_main" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def test_a_node_whose_lanes_are_processes_outlives_them_and_they_end_with_it(trained: AppFolder) -> None:
    with serving(trained, "--lanes", "2", "--set", "serving.lane_processes=true") as (process, http):
        first = ask(http)
        # Merged with others, and beyond every bucket, a candidate is scored the same.
        with ThreadPoolExecutor(8) as pool:
            for found in pool.map(lambda items: ask(http, items), [3, 1, 9, 20, 33, 2, 3, 12] * 3):
                items = min(3, len(found["scores"]["click"]))
                assert found["scores"]["click"][:items] == pytest.approx(first["scores"]["click"][:items], rel=1e-4)
        before = lane_processes(process.pid)
        assert len(before) == 2
        # The node itself has no TensorFlow.
        assert "tensorflow" not in Path(f"/proc/{process.pid}/maps").read_text()
        assert "tensorflow" in Path(f"/proc/{before[0]}/maps").read_text()
        os.kill(before[0], signal.SIGKILL)
        # The other lane goes on, and does what the first had in hand.
        assert [ask(http)["scores"] for _ in range(20)] == [first["scores"]] * 20

        def is_replaced() -> bool:
            return len(lane_processes(process.pid)) == 2 and before[0] not in lane_processes(process.pid)

        wait_until(is_replaced, "another process", _WAIT_S)
        done = streamlearn("rollback", "learnable", "--app", str(trained.folder), "--to", "1", "--reason", "try")
        assert done.returncode == 0, done.stderr
        assert ask(http)["version"] == 1
        lanes = lane_processes(process.pid)
        process.kill()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in lanes), "the end of lanes", _WAIT_S)


def test_a_node_that_waits_for_a_first_version_ends_when_it_is_told_to(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", {"front": {"listen": "127.0.0.1:0", "http": "127.0.0.1:0"}}, model="deepfm")
    log = app.folder / "serve.log"
    environment = os.environ | {"STREAMLEARN_CACHE": str(tmp_path / "cache")}
    call = [sys.executable, "-m", "streamlearn", "serve", str(app.folder), "--name", "lonely"]
    with log.open("w") as errors:
        process = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
    try:
        # It has registered, and so reached the loop in which it waits.
        registry = app.folder / ".streamlearn"
        wait_until(lambda: any(registry.rglob("*.db")), "its registry", _WAIT_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(_WAIT_S) == 0, log.read_text()[-4_000:]
    finally:
        process.kill()
        process.wait()


def test_an_address_that_others_reach_needs_a_token() -> None:
    for address in ("127.0.0.1:0", "localhost:80", "[::1]:8001", "127.1.2.3:8001"):
        check_address("front.listen", address, has_token=False)
    for address in ("0.0.0.0:8001", "[::]:8001", "10.0.0.1:80"):
        with pytest.raises(ConfigError, match="callers need no token"):
            check_address("front.listen", address, has_token=False)
        check_address("front.listen", address, has_token=True)
    for address in ("8001", "host", "127.0.0.1:", "127.0.0.1:70000", "somewhere:80"):
        with pytest.raises(ConfigError, match="is not an address"):
            check_address("front.listen", address, has_token=True)


def test_what_cannot_be_served_is_told_in_two_lines(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", {}, model="deepfm")
    for words in (["--listen", "0.0.0.0:0"], ["--listen", "nowhere"], ["--tls-cert", "a.pem"]):
        done = streamlearn("serve", str(app.folder), *words)
        assert done.returncode == 2
        assert "error: " in done.stderr
        assert "help: " in done.stderr
