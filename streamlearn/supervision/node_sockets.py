"""NodeSockets: the listening sockets of an application's nodes. `up` owns them, so they outlive each node.

The `up` of one application gives them to the `up` of another one. A process that has such a socket may accept its
connections. The socket lives until the last process closes it.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from streamlearn.access.address import host_and_port
from streamlearn.errors import UsageError
from streamlearn.struct_decoder import from_json
from streamlearn.supervision.member import Member
from streamlearn.supervision.ports import LOOPBACK, listener, taken_error

__all__ = ["NodeSockets", "Sockets", "node_sockets", "taken_over"]

Sockets = Mapping[str, socket.socket]
"""The listening sockets of a node by protocol: grpc and, if it answers by HTTP, http."""

_LOG = logging.getLogger("streamlearn.up")
_FILE = "up.sock"
# 64 nodes with two sockets each.
_FILES_MAX, _BYTES_MAX = 128, 1 << 14
_ASKERS_MAX = 8
# `share` is called at least twice a second.
_WAIT_S = 10.0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: `ucred` of unix(7)


class NodeSockets:
    """The sockets of nodes by the node's name; another `up` may ask for them at `door`."""

    def __init__(self, nodes: Mapping[str, Sockets], door: socket.socket | None = None) -> None:
        self._nodes, self._door = {**nodes}, door

    def of(self, name: str) -> Sockets:
        """Return the sockets of a member; none if it is not a node, or was told to end."""
        return self._nodes.get(name, {})

    def share(self) -> None:
        """Give duplicates of the sockets to the processes of this user that wait for them. It never blocks."""
        if self._door is None:
            return
        content = msgspec.json.encode([[*sockets] for sockets in self._nodes.values()])
        files = [one.fileno() for sockets in self._nodes.values() for one in sockets.values()]
        for _ in range(_ASKERS_MAX):
            try:
                asker, _ = self._door.accept()
            except OSError:
                return
            with asker, suppress(OSError):
                asker.setblocking(False)
                if _is_own(asker):
                    socket.send_fds(asker, [content], files)

    def release(self, name: str) -> None:
        """Close the sockets of a node that ends. Callers are refused then, unless another process has them too."""
        for one in self._nodes.pop(name, {}).values():
            one.close()


@contextmanager
def node_sockets(
    members: Sequence[Member], folder: Path, shared: Sequence[Sockets] | None = None
) -> Iterator[NodeSockets]:
    """Listen at the addresses of all nodes, or use `shared` sockets in their order; another `up` asks in `folder`.

    Raises:
        ServiceError: An address is taken.
    """
    nodes = [member for member in members if member.listens]
    with ExitStack() as held:
        sockets = shared or [
            {kind: held.enter_context(_listener(address)) for kind, address in node.listens.items()} for node in nodes
        ]
        by_name = dict(zip([node.name for node in nodes], sockets, strict=True))
        yield NodeSockets(by_name, held.enter_context(_opened_door(folder)))


def _listener(address: str) -> socket.socket:
    host, port = host_and_port("address", address)
    try:
        return listener(port, host.replace("localhost", LOOPBACK))
    except OSError:
        raise taken_error(address) from None


@contextmanager
def _opened_door(folder: Path) -> Iterator[socket.socket | None]:
    """Listen for askers in an application's folder; yield None, and log it, if that is not possible there."""
    own = folder / ".streamlearn"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as door:
        try:
            own.mkdir(parents=True, exist_ok=True)
            (own / _FILE).unlink(missing_ok=True)
            os.fchmod(door.fileno(), 0o600)  # the file gets this mode
            with _short(own) as path:
                door.bind(path)
            door.listen(_ASKERS_MAX)
        except OSError as error:
            _LOG.warning("cannot give sockets to another application: %s: %s", own / _FILE, error.strerror or error)
            yield None
            return
        try:
            yield door
        finally:
            with suppress(OSError):
                (own / _FILE).unlink()


@contextmanager
def taken_over(folder: Path | None) -> Iterator[list[Sockets] | None]:
    """Yield the sockets of each node of the application in `folder`, which its `up` gives; None without a folder.

    Raises:
        UsageError: No `up` of this user runs there, or it gave nothing that can be used.
    """
    if folder is None:
        yield None
        return
    with ExitStack() as held:
        try:
            nodes = _asked(folder / ".streamlearn", held)
        except (OSError, msgspec.DecodeError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or "it gave none"
            message = f"cannot take over sockets from the `up` in {folder}: {reason}"
            hint = f"start `streamlearn up {folder}` first, as the same user; or leave out --beside"
            raise UsageError(message, help=hint) from None
        yield nodes


def _asked(folder: Path, held: ExitStack) -> list[Sockets]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asker:
        asker.settimeout(_WAIT_S)
        with _short(folder) as path:
            asker.connect(path)
        if not _is_own(asker):
            raise PermissionError(errno.EPERM, "it is another user's")
        content, files, *_ = socket.recv_fds(asker, _BYTES_MAX, _FILES_MAX, socket.MSG_CMSG_CLOEXEC)
    sockets = [held.enter_context(socket.socket(fileno=file)) for file in files]
    kinds = from_json(content, list[list[str]])
    if sum(map(len, kinds)) != len(sockets):
        raise OSError(errno.EMFILE, f"{len(sockets)} of its {sum(map(len, kinds))} sockets arrived")
    rest = iter(sockets)
    return [{kind: next(rest) for kind in node} for node in kinds]


def _is_own(peer: socket.socket) -> bool:
    """Whether the process at the other end is of this user."""
    _, user, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.geteuid())


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """Yield a path of the socket that is short enough for an address, which has 108 bytes."""
    file = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{file}/{_FILE}"
    finally:
        os.close(file)
