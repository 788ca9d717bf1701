"""Nodes on hosts of their own behind Envoy, and the cable of one is pulled.

`test_hosts` runs it in a network namespace of its own. Prints what callers saw, as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from benchmarks.nodes.small_node import Order, small_nodes
from streamlearn.testing import wait_until
from tests.gateway.place import Access, access, folder_of, infer
from tools.chaos.network import Network

_CALLERS = 4
_EJECTED_S = 120.0


class _Call(NamedTuple):
    """A request: when it began and ended, and the version that answered; 0 without an answer."""

    begin_s: float
    end_s: float
    version: int


def _given_while(running: Access, host: str, wait_calls: Callable[[int, int], None]) -> int:
    """How many requests a host that is left out is given while others are answered."""
    wait_calls(10, 2)  # all threads of Envoy know it then
    before = running.given(host)
    assert before >= 40
    wait_calls(100, 2)
    return running.given(host) - before


def _main(place: Path, envoy: Path) -> None:
    registry = f"sqlite://{place}/registry.db"
    with closing(Network(("node-1", "node-2"), place)) as network:
        hosts = network.addresses.items()
        orders = [Order(registry, "ctr", "ctr", name, at, host=host) for at, (name, host) in enumerate(hosts, 1)]
        words = [network.command(name, ()) for name in network.addresses]
        with (
            small_nodes(orders, words),
            access([folder_of(place, "ctr")], envoy, f"registry.url={registry}", nodes=2) as running,
        ):
            client = triton.InferenceServerClient(f"127.0.0.1:{running.port}")

            def by_grpc() -> int:
                try:
                    return int(infer(client, "ctr"))
                except InferenceServerException:
                    return 0

            def by_http() -> int:
                try:
                    answer = running.call(timeout_s=60)
                except OSError:
                    return 0
                return int(str(answer.body["version"])) if answer.status == 200 else 0

            calls, stopped = dict[str, list[_Call]](http=[], grpc=[]), threading.Event()

            def ask(protocol: str, one: Callable[[], int]) -> None:
                while not stopped.is_set():
                    begin_s = time.monotonic()
                    version = one()
                    calls[protocol].append(_Call(begin_s, time.monotonic(), version))

            def wait_calls(more: int, version: int) -> None:
                have = {protocol: len(made) for protocol, made in calls.items()}

                def has_more() -> bool:
                    new = (made[have[protocol] :] for protocol, made in calls.items())
                    return all(sum(one.version == version for one in some) >= more for some in new)

                wait_until(has_more, "answers")

            with ThreadPoolExecutor(2 * _CALLERS) as callers:
                for _ in range(_CALLERS):
                    callers.submit(ask, "http", by_http)
                    callers.submit(ask, "grpc", by_grpc)
                try:
                    wait_calls(20, 1)
                    cut_s = time.monotonic()
                    network.cut("node-1")
                    wait_until(lambda: running.healthy() == 1, "the node to be left out", _EJECTED_S)
                    ejected_s = time.monotonic()
                    given = _given_while(running, network.addresses["node-1"], wait_calls)
                    quiet_s = time.monotonic()
                    network.mend("node-1")
                    wait_calls(20, 1)
                finally:
                    stopped.set()
            client.close()
    after = [one for made in calls.values() for one in made if ejected_s < one.begin_s and one.end_s < quiet_s]
    said = {
        "ejected_s": ejected_s - cut_s,
        "lost": {name: sum(one.version == 0 for one in made) for name, made in calls.items()},
        "longest_s": {name: max(one.end_s - one.begin_s for one in made) for name, made in calls.items()},
        "after": sorted({one.version for one in after}),
        "after_given": given,
        "after_longest_s": max(one.end_s - one.begin_s for one in after),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
