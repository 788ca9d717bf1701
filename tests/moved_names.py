"""Clients whose server's name moves to another address: a program that needs a hosts file of its own at /etc/hosts.

It prints each client that followed the name when it connected again.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from streamlearn.features.column_values import described
from streamlearn.load.load_run import Load
from streamlearn.native import native
from streamlearn.online.redis_address import RedisAddress
from streamlearn.online.state_store_redis import RedisStateStore
from streamlearn.ps.orders import Stats
from streamlearn.ps.remote import RemoteLink
from streamlearn.settings import PsSettings
from streamlearn.settings.features import FeatureSettings
from streamlearn.testing import wait_until
from streamlearn.topics.kafka_link import KafkaLink
from streamlearn.topics.settings import AccessSettings
from streamlearn.versions.pointer.registry_redis import RedisRegistry
from tests.online.shop import SPEC
from tests.ps.model import MODEL, OPTIONS

_NAME, _ADDRESSES = "moved.test", ("127.0.0.2", "127.0.0.3")
_WAIT_S = 300.0


class Listener:
    """Accepts connections at one address, counts them, and closes them."""

    def __init__(self, address: str, port: int) -> None:
        self.count = 0
        self._socket = socket.create_server((address, port))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            self.count += 1
            connection.close()


def point(address: str) -> None:
    """Let the name have this address."""
    Path("/etc/hosts").write_text(f"127.0.0.1 localhost\n{address} {_NAME}\n")


def shards(where: str) -> Callable[[], object]:
    link = RemoteLink(MODEL, OPTIONS, PsSettings(addresses=[where]), role="asks")
    return lambda: link.order_all([Stats()], 0.5)


def states(where: str) -> Callable[[], object]:
    address = RedisAddress(_NAME, int(where.rpartition(":")[2]), None, None, "", "", 0)
    client = native.StateClient(described(SPEC.entities), address, 1.0, 1 << 20, 1.0)
    client.set_group(0, "shop", 1)
    keys = [(0, np.arange(1, 3, dtype=np.uint64))]
    return lambda: client.read(keys, 0, 0.5)


def registry(where: str) -> Callable[[], object]:
    return RedisRegistry(f"redis://{where}/0", "shop").pointer


def state_store(where: str) -> Callable[[], object]:
    store = RedisStateStore(f"redis://{where}/0", FeatureSettings(reach_s=1.0))
    return lambda: store.current("shop", SPEC.entities[0])


def kafka(where: str) -> Callable[[], object]:
    link = KafkaLink((where,), AccessSettings(request_timeout_ms=1_000))
    return lambda: link.connect(1_000)


def load(where: str) -> Callable[[], object]:
    return lambda: Load(where, [b""]).ask(0)


CLIENTS = (shards, states, registry, state_store, kafka, load)


def follow(call: Callable[[], object], listener: Listener, what: str) -> None:
    """Call until a connection arrives."""
    before = listener.count

    def arrives() -> bool:
        with suppress(Exception):
            call()
        return listener.count > before

    wait_until(arrives, what, _WAIT_S)


def main() -> None:
    """Move the name of each client's server once."""
    for client in CLIENTS:
        first = Listener(_ADDRESSES[0], 0)
        second = Listener(_ADDRESSES[1], first.port)
        point(_ADDRESSES[0])
        call = client(f"{_NAME}:{first.port}")
        follow(call, first, f"{client.__name__} connects")
        point(_ADDRESSES[1])
        follow(call, second, f"{client.__name__} goes where its name points now")
        print(client.__name__, flush=True)


if __name__ == "__main__":
    main()
    # Clients would try again for long.
    os._exit(0)
