"""A request that one node could not answer in time is scored by two, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamlearn.apps import AppFolder
from streamlearn.errors import ConfigError
from streamlearn.models.tf_calls import Place
from streamlearn.serving.node import Node
from streamlearn.serving.peers import PEERS_MAX, peers_of
from streamlearn.testing import wait_until
from streamlearn.trainer import Until, ends_of, train
from streamlearn.versions.pointer.registry import Door
from streamlearn.versions.pointer.registry import Node as Listed
from tests.trainer.processes import write_app
from tests.trainer.stream import messages_of, write_messages

_WAIT_S = 300.0
_CANDIDATES = 2_000


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> AppFolder:
    """An application with a version, whose nodes find each other soon."""
    root = tmp_path_factory.mktemp("split")
    app = write_app(
        root / "app",
        {
            "trainer": {"step_rows": 64},
            # One bucket: all executions have one shape, so that scores have the same bits however a request is cut.
            "serving": {"users_buckets": [1], "candidates_buckets": [2], "cache_folder": str(root / "compiled")},
            "front": {"listen": "127.0.0.1:0", "http": "127.0.0.1:0", "split_pieces_max": 2},
            "replica": {"beat_s": 0.2},
        },
        model="deepfm",
    )
    write_messages(app, messages_of(app.app, 4))
    train(app, threading.Event(), until=lambda topic: Until(ends_of(topic, "end")))
    return app


@contextmanager
def serving(app: AppFolder, name: str, place: Path) -> Iterator[tuple[str, int]]:
    """Yield the HTTP address and the pid of a node in a process of its own, which is killed in the end.

    A node can predict its own time only if it gets the processor: it comes before others, where this is allowed.
    """
    call = ["nice", "-n", "-20", sys.executable, "-m", "streamlearn", "serve", str(app.folder), "--name", name]
    out, log = place / f"{name}.out", place / f"{name}.log"
    with out.open("w") as to, log.open("w") as errors:
        process = subprocess.Popen(call, stdout=to, stderr=errors, text=True)
    try:

        def is_served() -> bool:
            assert process.poll() is None, log.read_text()[-4_000:]
            return "is served" in out.read_text()

        wait_until(is_served, "a node that is ready", _WAIT_S)
        yield out.read_text().partition("http ")[2].partition(": version")[0], process.pid
    finally:
        process.kill()
        process.wait()


def ask(http: str, deadline_ms: int) -> tuple[int, bytes]:
    """Return the status and the body of the answer to a large request, which is always the same."""
    items = [{"video_id": at, "tags": list(range(at % 5)), "length": 1.0} for at in range(_CANDIDATES)]
    user = {"user_id": 7, "history": [1, 2], "age": 0.5}
    body = {"id": "q", "user": user, "items": items, "deadline_ms": deadline_ms}
    request = urllib.request.Request(
        f"http://{http}/score", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_WAIT_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def metric(http: str, name: str) -> float:
    """Return a metric of a node."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=_WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(f"{name} "))


def pieces(http: str, outcome: str) -> int:
    """Return how many pieces had this outcome."""
    return int(metric(http, f'streamlearn_serving_pieces_total{{outcome="{outcome}"}}'))


def peers_ratio(http: str) -> float:
    """Return the share of peers with a connection."""
    return metric(http, "streamlearn_serving_peers_ratio")


def test_a_request_of_2_000_candidates_is_scored_by_two_nodes_as_by_one_also_after_one_hung(
    learned: AppFolder, tmp_path: Path
) -> None:
    with serving(learned, "home", tmp_path) as (home, _), serving(learned, "peer", tmp_path) as (peer, peer_pid):
        status, whole = ask(home, 30_000)
        assert status == 200
        assert len(json.loads(whole)["scores"]["click"]) == _CANDIDATES

        def whole_ms() -> float:
            """The time of a request on one node now, which depends on what else the machine does."""
            begin_s = time.monotonic()
            assert ask(home, 30_000) == (200, whole)
            return (time.monotonic() - begin_s) * 1e3

        assert pieces(home, "sent") == 0
        shares = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]

        def is_split() -> bool:
            """Whether a deadline is too short for one node and long enough for two; costs move while it is sought."""
            shares.append(shares.pop(0))
            deadline_ms = max(1, int(shares[0] * whole_ms()))
            before = pieces(home, "answered")
            status, split = ask(home, deadline_ms)
            assert status != 200 or split == whole
            return status == 200 and pieces(home, "answered") == before + 1

        wait_until(is_split, "a request in two pieces", _WAIT_S)
        assert pieces(peer, "taken") >= 1
        alone_ms = int(2 * whole_ms())
        os.kill(peer_pid, signal.SIGSTOP)
        try:

            def is_answered_alone() -> bool:
                """Whether a request is answered without the peer; those that were lost end by their deadline."""
                begin_s = time.monotonic()
                status, answer = ask(home, alone_ms)
                assert time.monotonic() - begin_s < alone_ms / 1e3 + 30
                assert status != 200 or answer == whole
                return status == 200 and peers_ratio(home) == 0

            wait_until(is_answered_alone, "the peer to be found gone", _WAIT_S)
        finally:
            os.kill(peer_pid, signal.SIGCONT)
        wait_until(is_split, "a request in two pieces again", _WAIT_S)


def test_a_node_with_tls_does_not_begin_to_split_without_an_authority(learned: AppFolder, tmp_path: Path) -> None:
    files = (tmp_path / "cert.pem", tmp_path / "key.pem")
    with pytest.raises(ConfigError, match=r"front.split_pieces_max is 2 and nodes take TLS"):
        Node(learned, tls=files, places=[Place("/CPU:0")])


def _listed(number: int, **more: Any) -> Listed:
    given = {"boot_id": str(number), "name": str(number), "state": "ready", "grpc": f"10.0.0.{number}:80"}
    return Listed(**(given | more))


def test_peers_are_nodes_that_answer_and_have_the_same_door() -> None:
    door = Door("10.0.0.1:80", has_token=True)
    nodes = [
        _listed(1, has_token=True),
        _listed(2, has_token=True),
        _listed(3, has_token=True, state="draining"),
        _listed(4, has_token=True, state="starting"),
        _listed(5, has_token=True, state="aside"),
        _listed(6, has_token=True, state="stale"),
        _listed(7, has_token=False),
        _listed(8, has_token=True, has_tls=True),
        _listed(9, has_token=True, grpc=""),
        _listed(10, has_token=True, grpc="127.0.0.1:80"),
    ]
    assert sorted(peers_of(door, nodes)) == ["10.0.0.2:80", "10.0.0.6:80"]
    local = Door("127.0.0.1:80", has_token=True)
    assert peers_of(local, [*nodes, _listed(11, has_token=True, grpc="127.0.0.1:81")]) == ["127.0.0.1:81"]


def test_of_many_nodes_each_has_others_as_peers() -> None:
    nodes = [_listed(number) for number in range(1, 101)]
    peers = [peers_of(Door(node.grpc), nodes) for node in nodes]
    assert all(len(each) == len({*each}) == PEERS_MAX for each in peers)
    chosen = [sum(node.grpc in each for each in peers) for node in nodes]
    assert max(chosen) <= 3 * PEERS_MAX
    assert peers[0] == peers_of(Door(nodes[0].grpc), reversed(nodes))
