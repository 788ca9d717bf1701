"""Peers: the other nodes of an application that may take pieces of a node's requests. Pure: it reads no registry."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from streamlearn.loopback import is_loopback
from streamlearn.versions.pointer.registry import Door, Node

__all__ = ["PEERS_MAX", "peers_of"]

PEERS_MAX = 16
"""Most peers of a node; the native front keeps a connection to each."""


def peers_of(door: Door, nodes: Iterable[Node]) -> list[str]:
    """Return the addresses at which the peers of the node with this door take pieces.

    Left out are nodes that do not answer now, and those that a token or TLS sets apart. Of many nodes each has others
    as peers, always the same.

    Examples:
        >>> nodes = [Node(boot_id="a", name="a", state="ready", grpc="10.0.0.1:80")]
        >>> nodes += [Node(boot_id="b", name="b", state="draining", grpc="10.0.0.2:80")]
        >>> peers_of(Door("10.0.0.9:80"), nodes)
        ['10.0.0.1:80']
    """
    addresses = {node.grpc for node in nodes if node.state in ("ready", "stale") and _is_alike(door, node)}
    ordered = sorted(addresses, key=lambda address: (zlib.crc32(f"{door.grpc} {address}".encode()), address))
    return ordered[:PEERS_MAX]


def _is_alike(door: Door, node: Node) -> bool:
    if node.grpc in ("", door.grpc) or (node.has_tls, node.has_token) != (door.has_tls, door.has_token):
        return False
    # An address of loopback is another node's only on the same machine.
    return _is_local(node.grpc) == _is_local(door.grpc)


def _is_local(address: str) -> bool:
    return bool(is_loopback(address.rpartition(":")[0]))
