"""The sockets of nodes: they outlive a node, and the `up` of another application gets them from the one that runs."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from streamlearn.access.address import socket_address
from streamlearn.errors import ServiceError, UsageError
from streamlearn.supervision import Member, Signals, node_sockets, taken_over
from streamlearn.supervision.member import NODES, TRAINER
from streamlearn.supervision.node_sockets import NodeSockets
from streamlearn.supervision.ports import free_ports
from streamlearn.supervision.supervisor import Supervisor
from streamlearn.testing import wait_until
from tests.supervision.test_supervisor import _SETTINGS, Watch, python

_WAIT_S = 300.0
_Answer = TypeVar("_Answer")


def members(nodes: int = 2) -> list[Member]:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2 * nodes)]
    where = [{"grpc": addresses.pop(), "http": addresses.pop(), "metrics": "127.0.0.1:1"} for _ in range(nodes)]
    made = [Member(f"node-{number}", NODES, ("x",), where=one) for number, one in enumerate(where, 1)]
    return [Member("trainer", TRAINER, ("x",), where={"metrics": "127.0.0.1:2"}), *made]


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), _WAIT_S)


def addresses_at(folder: Path) -> list[dict[str, str]]:
    with taken_over(folder) as taken:
        assert taken is not None
        return [{kind: socket_address(one) for kind, one in node.items()} for node in taken]


def answered(owner: NodeSockets, ask: Callable[[], _Answer]) -> _Answer:
    """What an asker gets in the end, while the owner looks for askers."""
    with ThreadPoolExecutor(1) as askers:
        asking = askers.submit(ask)

        def is_done() -> bool:
            owner.share()
            return asking.done()

        wait_until(is_done, "an answer", _WAIT_S)
        return asking.result()


def addresses_from(owner: NodeSockets, folder: Path) -> list[dict[str, str]]:
    return answered(owner, lambda: addresses_at(folder))


def test_another_application_gets_the_sockets_and_keeps_them(tmp_path: Path) -> None:
    # A path that is longer than an address may be.
    folder = tmp_path / ("x" * 120)
    planned = members()
    address = planned[2].where["http"]
    taking = taken_over(folder)
    with node_sockets(planned, folder) as owner:
        assert stat.S_IMODE((folder / ".streamlearn" / "up.sock").stat().st_mode) == 0o600
        assert [*owner.of("trainer")] == []
        taken = answered(owner, taking.__enter__)
    assert taken is not None
    # The first `up` has ended.
    assert not (folder / ".streamlearn" / "up.sock").exists()
    assert [{kind: socket_address(one) for kind, one in node.items()} for node in taken] == [
        planned[1].listens, planned[2].listens,
    ]  # fmt: skip
    with connect(address), closing(taken[1]["http"].accept()[0]):
        pass
    # The second one gives them to a third.
    with node_sockets(planned, tmp_path, taken) as owner:
        assert owner.of("node-2") is taken[1]
        assert addresses_from(owner, tmp_path) == [planned[1].listens, planned[2].listens]
        owner.release("node-1")
        owner.release("node-1")
        assert addresses_from(owner, tmp_path) == [planned[2].listens]
    taking.__exit__(None, None, None)
    with pytest.raises(ConnectionRefusedError):
        connect(address)


def test_an_address_that_is_taken_is_named_and_nothing_is_kept(tmp_path: Path) -> None:
    planned = members()
    host, _, port = planned[2].where["http"].rpartition(":")
    with socket.create_server((host, int(port))), pytest.raises(ServiceError, match=f"{port} is already in use"):
        node_sockets(planned, tmp_path).__enter__()
    with node_sockets(planned, tmp_path):
        pass


def test_without_an_up_or_with_one_of_another_user_nothing_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="cannot take over sockets") as caught:
            addresses_at(folder)
        assert f"start `streamlearn up {folder}`" in caught.value.help
    with taken_over(None) as taken:
        assert taken is None
    with (
        node_sockets(members(), tmp_path) as owner,
        monkeypatch.context() as other,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asker,
    ):
        other.setattr(os, "geteuid", lambda: -1)
        with pytest.raises(UsageError, match="it is another user's"):
            addresses_at(tmp_path)
        # It gives nothing to such an asker.
        asker.connect(str(tmp_path / ".streamlearn" / "up.sock"))
        owner.share()
        asker.settimeout(_WAIT_S)
        assert asker.recv(9) == b""
    # A file that an `up` left behind when it was killed is in nobody's way.
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(tmp_path / ".streamlearn" / "up.sock"))
    with node_sockets([], tmp_path) as owner:
        assert addresses_from(owner, tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"[]x", b'[["grpc"]]', b"{}"])
def test_an_answer_that_is_none_is_refused(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgspec.json, "encode", lambda _: content)
    with node_sockets([], tmp_path) as owner, pytest.raises(UsageError, match="cannot take over sockets"):
        addresses_from(owner, tmp_path)


def test_where_no_socket_can_be_made_an_application_runs_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".streamlearn").touch()
    with node_sockets(members(1), tmp_path) as owner:
        assert owner.of("node-1")
        owner.share()
    assert "cannot give sockets to another application" in caplog.text


# Ends at its first start; then answers one connection at its second socket, and says what it has.
_NODE = """
import os, pathlib, signal, socket, sys
names = [os.environ[f"LISTEN_{name}"] for name in ("FDS", "FDNAMES")]
pathlib.Path(sys.argv[2]).touch()
if not pathlib.Path(sys.argv[1]).exists():
    pathlib.Path(sys.argv[1]).touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
    told.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
is_own = os.environ["LISTEN_PID"] == str(os.getpid())
# Pipes and the null device, the sockets, and the folder that is being listed.
files = sorted(map(int, os.listdir("/proc/self/fd")))
with socket.socket(fileno=4) as listener:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(f"{names} {is_own} {files}".encode())
signal.pause()
"""


def test_a_node_gets_its_sockets_at_each_start_and_connections_wait_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LISTEN_PID", "1")
    first = members(1)[1]
    command = python(_NODE, str(tmp_path / "was_here"), str(tmp_path / "starts"))
    node = Member(first.name, NODES, command, where=first.where)
    with node_sockets([node], tmp_path) as sockets, connect(node.where["http"]) as waiting:
        answers: list[str] = []

        def read(signals: Signals, pids: dict[str, int]) -> None:
            del pids
            answers.append(waiting.recv(999).decode())
            signals.stop.set()

        watch = Watch(["node-1"], read)
        lines = Supervisor([node], _SETTINGS, tmp_path, sockets=sockets).run(watch.signals, watch)
    assert answers == ["['2', 'grpc:http'] True [0, 1, 2, 3, 4, 5]"]
    assert [(one["ended"], one["restarts"]) for one in lines] == [("status 0", 1)]
    with pytest.raises(ConnectionRefusedError):
        connect(node.where["http"])


_OWNER = """
import sys, time
from pathlib import Path
from streamlearn.supervision import Member, node_sockets
node = Member("node-1", 2, ("x",), where={"grpc": sys.argv[2]})
with node_sockets([node], Path(sys.argv[1])) as sockets:
    print("listens", flush=True)
    while True:
        sockets.share()
        time.sleep(0.01)
"""


def test_sockets_go_on_when_their_first_owner_is_killed(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    call: list[Any] = [sys.executable, "-c", _OWNER, tmp_path, address]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "listens\n"
        with taken_over(tmp_path) as taken:
            os.kill(owner.pid, signal.SIGKILL)
            owner.wait()
            assert taken is not None
            with connect(address), closing(taken[0]["grpc"].accept()[0]):
                pass
    with pytest.raises(ConnectionRefusedError):
        connect(address)
