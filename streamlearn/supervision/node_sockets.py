"""NodeSockets: the listening sockets of an application's nodes. `up` owns them, so they outlive each node."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from streamlearn.supervision.handover import Sockets, give, opened_door
from streamlearn.supervision.member import Member
from streamlearn.supervision.ports import LOOPBACK, listener, taken_error

__all__ = ["NodeSockets", "node_sockets"]


class NodeSockets:
    """The sockets of nodes by the node's name; another `up` may ask for them at `door`."""

    def __init__(self, nodes: Mapping[str, Sockets], door: socket.socket | None = None) -> None:
        self._nodes, self._door = {**nodes}, door

    def of(self, name: str) -> Sockets:
        """Return the sockets of a member; none if it is not a node, or was told to end."""
        return self._nodes.get(name, {})

    def share(self) -> None:
        """Give the sockets to each `up` that waits for them. It never blocks."""
        if self._door is not None:
            give(self._door, [*self._nodes.values()])

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
        yield NodeSockets(by_name, held.enter_context(opened_door(folder)))


def _listener(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        return listener(int(port), host.strip("[]").replace("localhost", LOOPBACK))
    except OSError:
        raise taken_error(address) from None
