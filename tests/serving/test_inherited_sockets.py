"""Sockets that a node inherits: taken by their names, refused if they do not listen; and how a node stands aside."""

from __future__ import annotations

import fcntl
import http.client
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamlearn.access.address import socket_address
from streamlearn.errors import UsageError
from streamlearn.models.tf_calls import Place
from streamlearn.native import native
from streamlearn.serving.hello import answers_hello, is_at_door
from streamlearn.serving.inherited_sockets import InheritedSockets, inherited_sockets
from streamlearn.serving.node import Node, NodeLimits
from streamlearn.testing import small_folder, wait_until
from tests.serving.test_front import Rig

_FIRST = 200
_WAIT_S = 300.0
_HELLO_S = 0.2


@contextmanager
def passed(names: str, *sockets: Any, pid: int | None = None) -> Iterator[dict[str, str]]:
    """What a parent passes to this process, from `_FIRST` on."""
    for number, one in enumerate(sockets, _FIRST):
        assert fcntl.fcntl(one, fcntl.F_DUPFD, number) == number
    try:
        yield {
            "LISTEN_PID": str(os.getpid() if pid is None else pid),
            "LISTEN_FDS": str(len(sockets)),
            "LISTEN_FDNAMES": names,
            "HOME": "/",
        }
    finally:
        for number in range(_FIRST, _FIRST + len(sockets)):
            try:
                os.close(number)
            except OSError:
                continue  # its socket was closed


@pytest.fixture
def listeners() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        yield first, second


def test_sockets_are_taken_by_their_names_and_passed_on_to_nobody(
    listeners: tuple[socket.socket, socket.socket],
) -> None:
    with passed("http:grpc", *listeners) as environ:
        taken = inherited_sockets(environ, has_http=True, first=_FIRST)
        assert environ == {"HOME": "/"}
        assert taken is not None
        with closing(taken):
            assert taken.addresses == (socket_address(listeners[1]), socket_address(listeners[0]))
            assert taken.files == (_FIRST + 1, _FIRST)
            assert not any(os.get_inheritable(file) for file in (_FIRST, _FIRST + 1))
    with passed("grpc", listeners[0]) as environ:
        taken = inherited_sockets(environ, has_http=False, first=_FIRST)
        assert taken is not None
        assert taken.addresses == (socket_address(listeners[0]), "")
        taken.close()


def test_those_of_another_process_are_left_alone(listeners: tuple[socket.socket, socket.socket]) -> None:
    with passed("grpc:http", *listeners, pid=1) as environ:
        assert inherited_sockets(environ, has_http=True, first=_FIRST) is None
        assert environ == {"HOME": "/"}
    assert inherited_sockets({}, has_http=True) is None


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("grpc:other", "named 'grpc:other', but the node needs grpc and http"),
        ("grpc", "2 inherited sockets are named 'grpc'"),
        ("grpc:grpc", "named 'grpc:grpc'"),
        ("", "named ''"),
    ],
)
def test_other_names_are_refused(listeners: tuple[socket.socket, socket.socket], names: str, said: str) -> None:
    with passed(names, *listeners) as environ, pytest.raises(UsageError, match=said) as caught:
        inherited_sockets(environ, has_http=True, first=_FIRST)
    assert "FileDescriptorName=" in caught.value.help


@pytest.mark.parametrize("count", ["", "0", "-1", "two", "65"])
def test_a_count_that_is_none_is_refused(count: str) -> None:
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count, "LISTEN_FDNAMES": "grpc"}
    with pytest.raises(UsageError, match="LISTEN_FDS"):
        inherited_sockets(environ, has_http=False)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (tempfile.TemporaryFile, "of grpc is not a socket"),
        (lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM), "of grpc does not listen by TCP"),
        (lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM), "of grpc does not listen by TCP"),
        (lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), "of grpc does not listen by TCP"),
    ],
)
def test_what_does_not_listen_is_refused(make: Callable[[], Any], said: str) -> None:
    with make() as one, passed("grpc", one) as environ, pytest.raises(UsageError, match=said) as caught:
        inherited_sockets(environ, has_http=False, first=_FIRST)
    assert "ListenStream=HOST:PORT" in caught.value.help
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "grpc"}
    with pytest.raises(UsageError, match="of grpc is not a socket: Bad file descriptor"):
        inherited_sockets(environ, has_http=False, first=_FIRST)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def _status(address: str, path: str) -> int:
    with closing(http.client.HTTPConnection(address, timeout=_WAIT_S)) as caller:
        caller.request("GET", path)
        return caller.getresponse().status


def test_a_node_that_stands_aside_says_why_and_still_answers_at_sockets_of_its_own(rig: Rig) -> None:
    rig.node.stand_aside("another application answers")
    rig.node.set_state(True)
    assert rig.front.activate(rig.handles[2])
    wait_until(lambda: rig.ask("/ready")[1].get("stale") == "another application answers", "the reason")
    assert rig.ask("/ready") == (503, {"ready": False, "stale": "another application answers"})
    assert rig.ask("/v2/models/shop/ready")[0] == 503
    assert rig.ask("/health")[0] == 200
    assert not rig.node.is_aside
    assert is_at_door(rig.node, _WAIT_S, tls=False)
    rig.node.stand_aside(None)
    assert rig.ask("/ready") == (200, {"ready": True})


def test_of_nodes_that_share_sockets_only_the_one_that_does_not_stand_aside_accepts(
    rig: Rig, listeners: tuple[socket.socket, socket.socket]
) -> None:
    files = (listeners[0].fileno(), listeners[1].fileno())
    where = socket_address(listeners[1])
    assert rig.front.activate(rig.handles[2])

    def made(aside: str | None) -> Any:
        limits = NodeLimits(1, 100, 100, 1 << 16, 200)
        return native.FrontNode("shop", rig.front, ("no", "no"), limits, metrics=str, sockets=files, aside=aside)

    with ExitStack() as ends:
        old, new = made(None), made("it is not its turn")
        assert (old.is_aside, new.is_aside) == (False, True)
        ends.callback(old.stop)
        ends.callback(new.stop)
        assert (old.grpc, old.http) == (new.grpc, where)
        for aside, node in ((old, new), (new, old), (old, new)):
            aside.stand_aside("another application answers")
            node.set_state(True)
            node.stand_aside(None)
            assert (aside.is_aside, node.is_aside) == (True, False)
            wait_until(lambda: _status(where, "/ready") == 200, "a node that is ready")
            before = {name: count for name, count, *_ in aside.lines()}
            assert {_status(where, "/ready") for _ in range(4)} == {200}
            # Its own check goes past the sockets, where the other node answers.
            assert is_at_door(aside, _WAIT_S, tls=False)
            assert is_at_door(node, _WAIT_S, tls=False)
            assert {name: count for name, count, *_ in aside.lines()} == before
        # The sockets outlive both nodes.
        new.stop()
        assert not answers_hello(where, _HELLO_S, tls=False)
        old.stand_aside(None)
        assert _status(where, "/health") == 200
        old.stop()
        assert not is_at_door(old, _HELLO_S, tls=False)
    with socket.create_connection(listeners[1].getsockname(), _WAIT_S):
        listeners[1].accept()[0].close()


def test_a_node_stands_aside_before_its_first_version(
    tmp_path: Path, listeners: tuple[socket.socket, socket.socket]
) -> None:
    sockets = InheritedSockets(*(one.dup() for one in listeners))
    where, grpc = socket_address(listeners[1]), socket_address(listeners[0])
    with Node(small_folder(tmp_path), places=[Place("/CPU:0")], sockets=sockets) as node:
        node._switches.wait_known(_WAIT_S)
        node._native.stand_aside("not yet")
        assert (node.grpc, node.http, sockets.grpc.fileno()) == (grpc, where, -1)
        with socket.create_connection(listeners[1].getsockname(), _WAIT_S) as waiting:
            waiting.sendall(b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert node._is_working(_WAIT_S)
            node._native.stand_aside("really not yet")
            node._native.stand_aside(None)
            waiting.settimeout(_WAIT_S)
            answer = waiting.makefile().read()
        assert answer.startswith("HTTP/1.1 503")
        assert "not yet" not in answer
        node._native.stand_aside("not any more")
        assert node._native.is_aside


def test_a_descriptor_that_is_not_open_is_a_service_error(rig: Rig) -> None:
    with pytest.raises(Exception, match="cannot listen"):
        native.FrontNode(
            "shop", rig.front, ("no", None), NodeLimits(1, 9, 9, 1 << 16, 9), metrics=str, sockets=(_FIRST, None)
        )
