"""Logs and metrics: the lines, the names, and the server on loopback."""

from __future__ import annotations

import errno
import io
import itertools
import json
import logging
import re
import socket
import socketserver
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from prometheus_client import REGISTRY

from streamlearn import telemetry
from streamlearn.errors import ServiceError
from streamlearn.settings.telemetry import TelemetrySettings
from streamlearn.telemetry import MetricsServer, counter, gauge, histogram, serve_metrics, set_up_logging
from streamlearn.testing import wait_until

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger("streamlearn")
    before = (list(root.handlers), root.level, root.propagate)
    yield
    root.handlers[:], root.level, root.propagate = before[0], before[1], before[2]
    root.setLevel(before[1])


@pytest.fixture
def noun() -> Iterator[str]:
    """A noun no other test has; its metrics are taken away afterwards."""
    noun = f"test{next(_numbers)}"
    yield noun
    for collector in {one for name, one in REGISTRY._names_to_collectors.items() if noun in name}:
        REGISTRY.unregister(collector)


def logged(log_format: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    settings = TelemetrySettings(log_format=log_format, log_level=level)  # type: ignore[arg-type]
    set_up_logging(settings, stream)
    return stream


LOG = logging.getLogger("streamlearn.ingest.join")


def fail() -> None:
    message = "no room"
    try:
        raise OSError(message)
    except OSError:
        LOG.exception("a lot stopped", extra={"lot": 3})


def test_a_line_for_people_has_time_level_place_message_and_extras() -> None:
    stream = logged("human")
    LOG.info("lot %d is %s", 3, "open", extra={"rows": 12, "age_s": 1.5})
    assert re.fullmatch(r"\d\d:\d\d:\d\d info    ingest\.join: lot 3 is open rows=12 age_s=1\.5\n", stream.getvalue())


def test_a_line_for_people_is_followed_by_its_exception() -> None:
    stream = logged("human")
    fail()
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("error   ingest.join: a lot stopped lot=3")
    assert lines[1].startswith("Traceback")
    assert lines[-1] == "OSError: no room"


def test_a_text_from_elsewhere_begins_no_line_and_moves_no_cursor() -> None:
    stream = logged("human")
    LOG.info("moved by %s", "a\r\x1b[2K\n02:54:00 info    console.api: all is well", extra={"who": "a\nb\u0085"})
    first, second, third = stream.getvalue().splitlines()
    assert first.endswith(r"moved by a\x0d\x1b[2K")
    assert second == "  02:54:00 info    console.api: all is well who=a"
    assert third == r"  b\x85"


def test_a_json_line_is_one_object_with_the_extras_beside_the_message() -> None:
    stream = logged("json")
    LOG.warning("lot %d\nis ü", 3, extra={"rows": 12, "where": io.StringIO})
    assert stream.getvalue().count("\n") == 1
    line = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line.pop("time"))
    assert line == {
        "level": "warning",
        "logger": "streamlearn.ingest.join",
        "message": "lot 3\nis ü",
        "rows": 12,
        "where": "<class '_io.StringIO'>",
    }


def test_a_json_line_holds_its_exception() -> None:
    stream = logged("json")
    fail()
    line = json.loads(stream.getvalue())
    assert line["lot"] == 3
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("OSError: no room")


def test_setting_up_again_replaces_what_was_set_up() -> None:
    first = logged("human")
    second = logged("json")
    LOG.info("once")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_only_the_level_asked_for_and_above_is_written() -> None:
    stream = logged("human", "warning")
    LOG.info("quiet")
    LOG.warning("loud")
    assert len(stream.getvalue().splitlines()) == 1


def test_lines_are_not_repeated_by_the_programs_own_logging() -> None:
    logged("human")
    other = io.StringIO()
    handler = logging.StreamHandler(other)
    logging.getLogger().addHandler(handler)
    try:
        LOG.error("ours")
    finally:
        logging.getLogger().removeHandler(handler)
    assert other.getvalue() == ""


def test_metrics_are_named_after_component_noun_and_unit(noun: str) -> None:
    counter("ingest", noun, "Events read.").inc(2)
    gauge("ps", f"{noun}_held", "bytes", "Bytes held.").set(7)
    histogram("serving", f"{noun}_wait", "seconds", "Waits.", (0.1, 1.0)).observe(0.5)
    assert REGISTRY.get_sample_value(f"streamlearn_ingest_{noun}_total") == 2
    assert REGISTRY.get_sample_value(f"streamlearn_ps_{noun}_held_bytes") == 7
    found = REGISTRY.get_sample_value(f"streamlearn_serving_{noun}_wait_seconds_bucket", {"le": "1.0"})
    assert found == 1


def test_asking_twice_gives_the_same_metric(noun: str) -> None:
    assert counter("ingest", noun, "A.") is counter("ingest", noun, "A.")
    first = gauge("ingest", noun, "rows", "A.", ("lot",))
    assert gauge("ingest", noun, "rows", "A.", ("lot",)) is first
    waits = histogram("ingest", noun, "seconds", "A.", (1.0,))
    assert histogram("ingest", noun, "seconds", "A.", (1.0,)) is waits


@pytest.mark.parametrize(
    ("component", "noun", "unit"), [("cook", "a", "rows"), ("ps", "A", "rows"), ("ps", "a", "miles")]
)
def test_a_name_outside_the_pattern_is_a_bug(component: str, noun: str, unit: str) -> None:
    with pytest.raises(AssertionError):
        gauge(component, noun, unit, "Never.")


def read(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_metrics_are_served_on_loopback_until_closed(noun: str) -> None:
    counter("ingest", noun, "Events read.").inc()
    server = MetricsServer(0)
    try:
        assert f"streamlearn_ingest_{noun}_total 1.0" in read(server.port)
        assert server._server.server_address[0] == "127.0.0.1"
    finally:
        server.close()
    with pytest.raises(urllib.error.URLError):
        read(server.port)


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    server = MetricsServer(0)
    yield server
    server.close()


def connected(server: MetricsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


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


def threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_silent_connections_are_bounded_and_prometheus_still_gets_in(server: MetricsServer) -> None:
    most = telemetry._CONNECTIONS_MAX
    with ExitStack() as held:
        silent = [held.enter_context(connected(server)) for _ in range(3 * most)]
        begin_s = time.monotonic()
        assert "# HELP" in read(server.port)
        assert time.monotonic() - begin_s < telemetry._MetricsConnection.timeout
        assert threads() <= most
        # The oldest made room.
        assert all(is_closed(connection) for connection in silent[:most])
        assert not is_closed(silent[-1])


def test_a_connection_that_stays_silent_is_closed(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry._MetricsConnection, "timeout", 0.05)
    with connected(server) as silent:
        wait_until(lambda: is_closed(silent), "the end of the connection")
    wait_until(lambda: threads() == 0, "the end of its thread")


def test_connections_without_a_thread_are_closed_and_take_no_place(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_: object) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    with monkeypatch.context() as patch:
        patch.setattr(socketserver.ThreadingMixIn, "process_request", no_thread)
        for _ in range(2 * telemetry._CONNECTIONS_MAX):
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
    assert min(pauses_s) >= 0.9 * telemetry._ACCEPT_PAUSE_S
    assert "# HELP" in read(server.port)


def test_a_taken_port_is_said_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=rf"127\.0\.0\.1:{port}: Address already in use") as caught:
            serve_metrics(TelemetrySettings(metrics_port=port))
    assert "telemetry.metrics_port" in caught.value.help


def test_no_port_serves_nothing() -> None:
    assert serve_metrics(TelemetrySettings()) is None


def test_public_names_are_listed() -> None:
    assert set(telemetry.__all__) == {
        "AGES_S",
        "MetricsServer",
        "counter",
        "counter_family",
        "gauge",
        "gauge_family",
        "histogram",
        "histogram_family",
        "metrics_text",
        "serve_metrics",
        "set_up_logging",
    }


def test_libraries_are_heard_from_a_level_on_and_our_own_words_come_once() -> None:
    stream, root = io.StringIO(), logging.getLogger()
    before = list(root.handlers)
    try:
        for _ in range(2):
            set_up_logging(TelemetrySettings(), stream, libraries="error")
        logging.getLogger("somebody").warning("chatter")
        logging.getLogger("somebody").error("it broke")
        logging.getLogger("streamlearn.ingest").warning("ours")
    finally:
        root.handlers[:] = before
    lines = stream.getvalue().splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines] == ["error   somebody: it broke", "warning ingest: ours"]
