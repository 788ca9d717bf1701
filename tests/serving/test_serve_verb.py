"""`streamlearn serve` as a process: it answers with what was trained, follows a rollback, and drains."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.hosts.rolling import RollingNode, rolling_figures
from benchmarks.hosts.round_robin import RoundRobin
from streamlearn.access.address import check_address
from streamlearn.apps import AppFolder, load_app
from streamlearn.cli.main import cli
from streamlearn.errors import ConfigError
from streamlearn.load.synthetic_requests import invented
from streamlearn.open_files import allow_connections
from streamlearn.testing import wait_until
from streamlearn.trainer import Until, ends_of, train
from streamlearn.versions import Chain, PointerLog, open_registry, open_store
from tests.listener import listening
from tests.trainer.processes import write_app
from tests.trainer.stream import messages_of, write_messages

_WAIT_S = 300.0


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an application with some versions; its nodes keep in one place what they compile."""
    root = tmp_path_factory.mktemp("learned")
    app = write_app(
        root / "app",
        {
            "trainer": {"step_rows": 64},
            "publisher": {"publish_interval_s": 0.05},
            "serving": {
                "users_buckets": [1, 4], "candidates_buckets": [4, 16], "cache_folder": str(root / "compiled"),
            },
            "front": {"listen": "127.0.0.1:0", "http": "127.0.0.1:0", "deadline_ms": 30_000},
            "telemetry": {"log_format": "json"},
            # Beside its topics, so that a copy of the folder has versions of its own.
            "versions": {},
        },
        model="deepfm",
    )  # fmt: skip
    messages = messages_of(app.app, 40)
    for some in (messages[:20], messages[20:]):  # each run makes a version, however slowly, and the first one two
        write_messages(app, some)
        train(app, threading.Event(), until=lambda topic: Until(ends_of(topic, "end")))
    return app.folder


@pytest.fixture
def trained(learned: Path, tmp_path: Path) -> AppFolder:
    """An application with some versions, for one test."""
    return load_app(shutil.copytree(learned, tmp_path / "app"))


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


def ask(http: str, items: int = 3, route: str | None = None, token: str = "") -> dict[str, Any]:
    """The answer to one request."""
    body = {
        "user": {"user_id": 7, "history": [1, 2], "age": 0.5},
        "items": [{"video_id": at, "tags": [at % 3], "length": 1.0} for at in range(items)],
    }
    data = json.dumps(body if route is None else body | {"route_key": route}).encode()
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    asked = urllib.request.Request(f"http://{http}/score", data, headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def verb(app: AppFolder, *words: str) -> str:
    """What a verb on the application's versions says, run in this process; it waits for nodes to follow."""
    done = CliRunner().invoke(cli, [words[0], "learnable", *words[1:], "--wait", "120", "--app", str(app.folder)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_node_that_is_held_to_a_version_answers_with_it_whatever_the_pointer_does(trained: AppFolder) -> None:
    store = open_store(trained.store_url)
    older = Chain.find(store, "learnable").version - 1
    with serving(trained, "--version", str(older)) as (process, http):
        assert ask(http)["version"] == older
        words = ("rollback", "learnable", "--to", str(older - 1), "--wait", "0", "--app", str(trained.folder))
        CliRunner().invoke(cli, words)
        assert PointerLog(store, "learnable").newest().active_version == older - 1
        with open_registry(trained.registry_url, "learnable") as registry:
            assert not registry.nodes()
        assert ask(http)["version"] == older
        process.send_signal(signal.SIGTERM)
        assert process.wait(_WAIT_S) == 0
    with pytest.raises(AssertionError, match="9999 does not exist"), serving(trained, "--version", "9999"):
        pass


def test_a_node_answers_with_what_was_trained_among_silent_connections_follows_a_rollback_and_drains(
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
        process, http = stack.enter_context(serving(trained, "--name", "node-1", "--token-file", str(token)))
        heard.wait("WATCHDOG=1")
        scored = partial(ask, http, token="open-sesame")
        first = scored()
        version = first["version"]
        assert version > 1
        assert {name: len(scores) for name, scores in first["scores"].items()} == {"click": 3, "bought": 3}
        assert all(0 < one < 1 for scores in first["scores"].values() for one in scores)
        # Merged with others, and beyond every bucket, a candidate is scored the same.
        with ThreadPoolExecutor(8) as pool:
            for found in pool.map(scored, [3, 1, 9, 20, 33, 2, 3, 12] * 3):
                items = min(3, len(found["scores"]["click"]))
                assert found["scores"]["click"][:items] == pytest.approx(first["scores"]["click"][:items], rel=1e-4)
        with ExitStack() as silence:
            say_nothing(http, silence)
            heard.heard()
            beats: list[str] = []

            def is_heard() -> bool:
                beats.extend(heard.heard())
                return len(beats) > 3

            wait_until(is_heard, "it says that it works", _WAIT_S)
            for _ in range(20):
                assert scored()["scores"] == first["scores"]
        verb(trained, "promote", "1", "--canary", "0.5", "--accept", "--json")
        seen = [scored(route=f"user-{at % 20}")["version"] for at in range(40)]
        assert set(seen) == {1, version}
        assert seen[:20] == seen[20:]
        done = verb(trained, "rollback", "--to", "1", "--reason", "try", "--json")
        assert [one["node"] for one in json.loads(done)["acted"]] == ["node-1"]
        # Whoever waited for the ack is answered by the older version at once.
        assert scored()["version"] == 1
        heard.heard()
        heard.wait("WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        heard.wait("STOPPING=1")
        assert process.wait(_WAIT_S) == 0
    # Nothing is left of graphs that were brought from the store.
    assert "Traceback" not in (trained.folder / "serve.log").read_text()


def test_a_node_that_other_machines_reach_goes_on_answering_until_they_can_know_that_it_leaves(
    trained: AppFolder,
) -> None:
    token = trained.folder / "token"
    token.write_text("open-sesame")
    words = ("--listen", "0.0.0.0:0", "--http", "0.0.0.0:0", "--token-file", str(token), "--set", "front.drain_s=7")
    with serving(trained, *words) as (process, http):
        assert ask(http, token="open-sesame")["scores"]
        begun_s = time.monotonic()
        process.send_signal(signal.SIGTERM)

        def is_ready() -> bool:
            try:
                with urllib.request.urlopen(f"http://{http}/ready", timeout=60):
                    return True
            except urllib.error.HTTPError as error:
                return error.code != 503

        wait_until(lambda: not is_ready(), "it says that it is not ready", 6.5)
        # Each request has a connection of its own. An answer with an error would end the test.
        while is_answered(http, "open-sesame"):
            pass
        assert time.monotonic() - begun_s > 6.5
        assert process.wait(_WAIT_S) == 0


def test_a_rolling_restart_leaves_no_request_of_a_stock_client_without_an_answer(
    trained: AppFolder, tmp_path: Path
) -> None:
    requests = invented(trained.app.features, np.full(8, 3), 50, np.random.default_rng(1))
    messages = requests.messages(trained.app.features, trained.app.served_name)
    with ExitStack() as stack:
        nodes = []
        for name in ("node-1", "node-2", "node-3"):
            node = RollingNode(trained.folder, name, tmp_path)
            stack.callback(node.close)
            node.wait_ready()
            nodes.append(node)
        client = stack.enter_context(RoundRobin([node.address for node in nodes], messages))
        said: list[str] = []
        figures = rolling_figures(nodes, client, 20.0, said.append)
    assert figures["rolling_errors"] == 0, said
    assert figures["rolling_statuses_wrong"] == 0
    assert figures["rolling_answers"] > 200


def is_answered(http: str, token: str) -> bool:
    """Whether a request was answered; it was not if nobody took the connection."""
    try:
        assert ask(http, token=token)["scores"]
    except urllib.error.HTTPError:
        raise
    except (urllib.error.URLError, ConnectionError) as error:
        if isinstance(getattr(error, "reason", error), ConnectionError):
            return False
        raise
    return True


def say_nothing(http: str, stack: ExitStack) -> None:
    """Open two thousand connections."""
    allow_connections(5_000)
    host, _, port = http.rpartition(":")
    for _ in range(2_000):
        stack.enter_context(socket.create_connection((host, int(port)), 60))


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
        verb(trained, "rollback", "--to", "1", "--reason", "try")
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
        call = [sys.executable, "-m", "streamlearn", "serve", str(app.folder), *words]
        done = subprocess.run(call, capture_output=True, text=True, timeout=_WAIT_S, check=False)
        assert done.returncode == 2
        assert "error: " in done.stderr
        assert "help: " in done.stderr
