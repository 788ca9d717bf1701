"""A node that says it is idle: it draws requests by that, so what it can do with them is bounded by other means."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.nodes.small_node import SETTINGS, Order, small_nodes
from streamlearn.testing import wait_until
from streamlearn.versions import Node, open_registry
from tests.gateway.place import Access, access, folder_of

_LIES = "TEXT application_utilization=0.001, rps_fractional=1000000.0"
_LIAR, _HONEST = 9, 1
_FEW = 20  # so few that a busy machine asks them while the node is left out, which is 5 s at first
_FAILURES_MAX = 100  # 20 in a row, and those that come before Envoy's other thread has acted on them


class _Liar(BaseHTTPRequestHandler):
    """Answers what a node would, whatever it is asked."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(503 if getattr(self.server, "is_broken", False) else 200)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, status: int) -> None:
        body = json.dumps({"version": _LIAR}).encode()
        self.send_response(status)
        self.send_header("endpoint-load-metrics", _LIES)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def _liar(registry: str) -> Iterator[ThreadingHTTPServer]:
    """A node that lies, registered until the end."""
    server, ended = ThreadingHTTPServer(("127.0.0.1", 0), _Liar), threading.Event()
    address = f"127.0.0.1:{server.server_port}"

    def beat() -> None:
        with open_registry(registry, "ctr", SETTINGS) as nodes:
            while not ended.is_set():
                wall_ms = time.time_ns() // 1_000_000
                nodes.beat(
                    Node(boot_id="liar", name="liar", state="ready", wall_ms=wall_ms, grpc=address, http=address)
                )
                ended.wait(0.2)

    threads = [threading.Thread(target=server.serve_forever), threading.Thread(target=beat)]
    for thread in threads:
        thread.start()
    try:
        yield server
    finally:
        ended.set()
        server.shutdown()
        for thread in threads:
            thread.join()
        server.server_close()


def _share(running: Access, calls: int = 100, failures: int = 0) -> float:
    """The share of requests that the liar is sent; at most so many may fail."""
    answers = [running.call(head={"x-route-key": f"user-{user}"}) for user in range(calls)]
    assert sum(answer.status != 200 for answer in answers) <= failures
    return sum(answer.body.get("version") != _HONEST for answer in answers) / calls


@pytest.fixture
def registry(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/registry.db"


def test_a_node_that_lies_of_its_load_draws_requests_until_it_fails_them(
    registry: str, tmp_path: Path, envoy: Path
) -> None:
    with (
        small_nodes([Order(registry, "ctr", "ctr", "honest", _HONEST)]),
        _liar(registry) as liar,
        access([folder_of(tmp_path, "ctr")], envoy, f"registry.url={registry}", nodes=2) as running,
    ):
        # Its word is taken for it: docs/limits.md says so.
        wait_until(lambda: _share(running) > 0.9, "the lie to be believed")
        liar.is_broken = True  # type: ignore[attr-defined]
        # Retries draw it again, by its weight: what fails until it is left out fails for callers.
        shares = list[float]()

        def is_left_out() -> bool:
            shares.append(_share(running, _FEW, failures=_FEW))
            return shares[-1] == 0.0

        wait_until(is_left_out, "the node that fails to be left out")
        assert sum(shares) * _FEW <= _FAILURES_MAX
        assert running.figure("outlier_detection.ejections_enforced_total") >= 1


def test_by_user_a_lie_draws_no_request(registry: str, tmp_path: Path, envoy: Path) -> None:
    changes = f"registry.url={registry}", "access.trust_headers=true", 'access.balance="user"'
    with (
        small_nodes([Order(registry, "ctr", "ctr", "honest", _HONEST)]),
        _liar(registry),
        access([folder_of(tmp_path, "ctr")], envoy, *changes, nodes=2) as running,
    ):
        first, second = running.while_healthy(2, lambda: (_share(running, 200), _share(running, 200)))
        assert 0.25 < first < 0.75
        assert first == second
