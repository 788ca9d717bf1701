"""Metrics over HTTP: within bounds, and beyond loopback only to those who have the token."""

from __future__ import annotations

import errno
import itertools
import socket
import socketserver
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from streamlearn import bounded_server, metrics_server
from streamlearn.errors import ConfigError, ServiceError
from streamlearn.metrics_server import MetricsServer, serve_metrics
from streamlearn.settings.telemetry import TelemetrySettings
from streamlearn.telemetry import counter
from streamlearn.testing import wait_until

_WAIT_S = 120.0


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is late because the machine stands still."""
    monkeypatch.setattr(metrics_server, "_ARRIVAL_S", _WAIT_S)
    monkeypatch.setattr(bounded_server, "_EVICTION_S_MAX", _WAIT_S)


def read(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_WAIT_S) as answer:
        return str(answer.read().decode())


def test_metrics_are_served_on_loopback_until_closed() -> None:
    read_events = counter("ingest", "served", "Events read.")
    read_events.inc()
    server = MetricsServer("127.0.0.1:0")
    try:
        assert "streamlearn_ingest_served_total 1.0" in read(server.port)
        assert server._server.server_address[0] == "127.0.0.1"
    finally:
        server.close()
        REGISTRY.unregister(read_events)
    with pytest.raises(urllib.error.URLError):
        read(server.port)


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    server = MetricsServer("127.0.0.1:0")
    yield server
    server.close()


def connected(server: MetricsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=_WAIT_S)


def answer_to(server: MetricsServer, head: str) -> bytes:
    """What the server answers until it closes the connection."""
    with connected(server) as connection, suppress(ConnectionError):
        connection.sendall(head.encode())
        return b"".join(iter(lambda: connection.recv(65_536), b""))
    return b""


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection that sent nothing."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def threads(before: Collection[threading.Thread] = ()) -> int:
    """The threads of connections, without those that other tests may have left."""
    names = (thread.name for thread in threading.enumerate() if thread not in before)
    return sum("process_request_thread" in name for name in names)


def test_silent_connections_are_bounded_and_prometheus_still_gets_in(server: MetricsServer) -> None:
    most = metrics_server._CONNECTIONS_MAX
    with ExitStack() as held:
        silent = [held.enter_context(connected(server)) for _ in range(3 * most)]
        begin_s = time.monotonic()
        assert "# HELP" in read(server.port)
        assert time.monotonic() - begin_s < metrics_server._ARRIVAL_S
        wait_until(lambda: threads() <= most, "the ends of the threads of the oldest")
        # The oldest made room.
        assert all(is_closed(connection) for connection in silent[:most])
        assert not is_closed(silent[-1])


def test_a_connection_that_stays_silent_is_closed(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server._server, "arrival_s", 0.05)
    before = threading.enumerate()
    with connected(server) as silent:
        wait_until(lambda: is_closed(silent), "the end of the connection")
    wait_until(lambda: threads(before) == 0, "the end of its thread")


def test_connections_without_a_thread_are_closed_and_take_no_place(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_: object) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    with monkeypatch.context() as patch:
        patch.setattr(socketserver.ThreadingMixIn, "process_request", no_thread)
        for _ in range(2 * metrics_server._CONNECTIONS_MAX):
            assert answer_to(server, "") == b""
    assert "# HELP" in read(server.port)


def test_the_head_of_a_request_is_bounded(server: MetricsServer) -> None:
    head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + f"x: {'y' * 200}\r\n" * 1_000
    assert answer_to(server, f"{head}\r\n") == b""


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:9460", "LocalHost:9460", "[::1]:9460"])
def test_metrics_are_given_under_a_loopback_name(server: MetricsServer, host: str) -> None:
    answer = answer_to(server, f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n")
    assert b" 200 OK" in answer
    assert b"# HELP" in answer


@pytest.mark.parametrize(
    "headers",
    ["", "Host: a.example\r\n", "Host: 127.0.0.1.a.example\r\n", "Host: localhost\r\nHost: a.example\r\n"],
)
def test_a_page_of_another_site_reads_no_metrics(server: MetricsServer, headers: str) -> None:
    answer = answer_to(server, f"GET /metrics HTTP/1.1\r\n{headers}\r\n")
    assert b" 403 " in answer
    assert b"# HELP" not in answer


def test_prometheus_gets_the_format_that_it_asks_for(server: MetricsServer) -> None:
    accept = "application/openmetrics-text; version=1.0.0"
    answer = answer_to(server, f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n")
    assert b"Content-Type: application/openmetrics-text" in answer
    assert answer.endswith(b"# EOF\n")


def test_accepting_without_free_file_descriptors_pauses_between_attempts(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts_s: list[float] = []

    def no_descriptor(_: object) -> None:
        attempts_s.append(time.monotonic())
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(socketserver.TCPServer, "get_request", no_descriptor)
        with connected(server):
            wait_until(lambda: len(attempts_s) >= 4, "attempts")
    pauses_s = [later - earlier for earlier, later in itertools.pairwise(attempts_s)]
    assert min(pauses_s) >= 0.9 * bounded_server._ACCEPT_PAUSE_S
    assert "# HELP" in read(server.port)


def test_a_taken_port_is_said_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=rf"127\.0\.0\.1:{port}: Address already in use") as caught:
            serve_metrics(TelemetrySettings(listen=f"127.0.0.1:{port}"))
    assert "telemetry.listen" in caught.value.help


def test_another_machine_needs_the_token(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:0, which other machines can reach") as caught:
        serve_metrics(TelemetrySettings(listen="0.0.0.0:0"))
    assert "telemetry.token_file" in caught.value.help
    file = tmp_path / "token"
    file.write_text("open-sesame\n")
    with serve_metrics(TelemetrySettings(listen="0.0.0.0:0", token_file=str(file))) as server:
        assert server is not None
        # Any name will do: a page of another site does not know the token.
        for head, status in (
            ("", b" 401 "),
            ("Authorization: Bearer open-sesamf\r\n", b" 401 "),
            ("Authorization: open-sesame\r\n", b" 401 "),
            ("Authorization: bearer open-sesame\r\n", b" 200 "),
        ):
            answer = answer_to(server, f"GET /metrics HTTP/1.1\r\nHost: node-7:9460\r\n{head}\r\n")
            assert status in answer
            assert (b"# HELP" in answer) == (status == b" 200 ")


@pytest.mark.parametrize("address", ["9460", "node-7:9460", "127.0.0.1:65536", "127.0.0.1:"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"telemetry\.listen is .*, which is not an address"):
        serve_metrics(TelemetrySettings(listen=address))


def test_no_address_serves_nothing() -> None:
    with serve_metrics(TelemetrySettings()) as server:
        assert server is None
