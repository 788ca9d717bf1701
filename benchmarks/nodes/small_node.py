"""A node without TensorFlow, as a process: `python -m benchmarks.nodes.small_node` with its order as JSON.

Its lane takes a given time for each execution and gives zeros. Its version says which application answered. It also
finds one item, whose id is that version.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from streamlearn.features import FeatureSpec, Label, Slot
from streamlearn.native import native
from streamlearn.serving.front import FrontLimits
from streamlearn.serving.item_indexes import VersionItems
from streamlearn.serving.model_schema import ItemInputs, described
from streamlearn.serving.node import NodeLimits
from streamlearn.settings.versions import RegistrySettings
from streamlearn.table import TableOptions, TableSet
from streamlearn.testing import wait_until
from streamlearn.versions import Node, Registry, open_registry

__all__ = ["FEATURES", "SETTINGS", "Order", "SmallNode", "small_nodes"]

SETTINGS = RegistrySettings(node_ttl_s=2.0, silent_s=5.0, poll_ms=50)
FEATURES = FeatureSpec(
    slots=(Slot("user_id", "user", table="main", dim=4), Slot("item_id", "item", table="main", dim=4)),
    item_id="item_id",
)
_LIMITS = {"candidates_max": 64, "values_max": 512, "message_bytes_max": 1 << 16}
_BEAT_S, _DIM = 0.2, 4


@dataclass(frozen=True)
class Order:
    """What to serve.

    Attributes:
        registry: URL of the registry.
        app: The application, as the registry knows it.
        model: The name that callers use.
        name: The node's name.
        version: The version that it answers with.
        took_ms: How long an execution takes.
        older: Versions before it that the node keeps.
        canary: A newer version on trial, for no share of the requests; 0 for none.
        host: The address that it listens at.
    """

    registry: str
    app: str
    model: str
    name: str
    version: int = 1
    took_ms: float = 0.0
    older: tuple[int, ...] = ()
    canary: int = 0
    host: str = "127.0.0.1"


def _serve(order: Order) -> None:
    tables = TableSet([TableOptions(spec, 100) for spec in FEATURES.tables])
    staged = [*order.older, order.version, *([order.canary] if order.canary else [])]
    for parent, version in zip([None, *staged], staged, strict=False):
        tables.stage(version, parent, [])
    text = described(FEATURES, [Label("click", "click", "fast")], list(tables.dims), _LIMITS)
    limits = FrontLimits(1, 100, 1_000, 0, 0, 0, 8, 1.0, 0, False, 1_000_000, 20_000_000)
    front = native.Front(text, ([1, 4], [4, 16], [1]), limits, 8)
    addresses, bounds = (f"{order.host}:0", f"{order.host}:0"), NodeLimits(1, 1_000, 1_000, 1 << 16, 5_000)
    node = native.FrontNode(order.model, front, addresses, bounds, metrics=str)
    handles = {version: front.add(version, tables.native) for version in staged}
    front.activate(handles[order.version])
    front.set_canary((handles[order.canary], 0.0) if order.canary else None)
    finder = _finder(tables, limits)
    found = {version: finder.add(version, tables.native, items=_one_item(version).found) for version in staged}
    finder.activate(found[order.version])
    finder.set_canary((found[order.canary], 0.0) if order.canary else None)
    node.retrieve_by(finder)
    assert front.take(0, 0.0) is None
    stopped, ended = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())

    def lane(source: Any, width: int) -> None:
        while not ended.is_set():
            work = source.take(0, 0.05)
            if work is not None:
                threading.Event().wait(order.took_ms / 1e3)  # as an execution does
                source.give(work, np.zeros((16, width), np.float32))

    threads = [threading.Thread(target=lane, args=given) for given in ((front, 1), (finder, _DIM))]
    for thread in threads:
        thread.start()
    node.set_state(True)
    assert node.http is not None
    registry = open_registry(order.registry, order.app, SETTINGS)
    boot_id, since_ms = f"{order.name}-{time.time_ns()}", time.time_ns() // 1_000_000
    print(json.dumps([node.grpc, node.http]), flush=True)
    while True:
        state = "draining" if stopped.is_set() else "ready"
        record = {"boot_id": boot_id, "name": order.name, "state": state, "since_ms": since_ms, "staged": tuple(staged)}
        registry.beat(Node(**record, wall_ms=time.time_ns() // 1_000_000, grpc=node.grpc, http=node.http))  # type: ignore[arg-type]
        if stopped.wait(_BEAT_S):
            break
    # As a node does: it is not ready, goes on answering for a while, and ends connections.
    node.set_state(False, "it is shutting down")
    threading.Event().wait(3.0)
    node.stop()
    front.drain()
    finder.drain()
    ended.set()
    for thread in threads:
        thread.join()
    registry.leave(boot_id)
    registry.close()


def _finder(tables: TableSet, limits: FrontLimits) -> Any:
    """A front that finds the one item of each version."""
    items = ItemInputs(native.slot_salt(FEATURES.slot("item_id").salt_name), False, 10, _DIM)
    text = described(FEATURES, [], list(tables.dims), _LIMITS, items=items)
    return native.Front(text, ([1, 4], [4, 16], [1]), limits, 8)


def _one_item(version: int) -> VersionItems:
    keys, none = np.array([1], np.uint64), np.zeros(0, np.uint64)
    blocks = native.Blocks(_DIM).apply(keys, np.ones((1, _DIM), np.int8), np.ones(1, np.float32), none)
    return VersionItems(blocks, native.RawIds(False).apply(keys, np.array([version]), none), None)


class SmallNode:
    """The process; the constructor starts it. `words` are a command that runs another one, such as on another host."""

    def __init__(self, order: Order, words: Sequence[str] = ()) -> None:
        command = [*words, sys.executable, "-m", "benchmarks.nodes.small_node", json.dumps(asdict(order))]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        self._where: list[str] = []

    @property
    def where(self) -> list[str]:
        """Its addresses of gRPC and HTTP."""
        if not self._where:
            assert self.process.stdout is not None
            self._where = json.loads(self.process.stdout.readline())
        return self._where

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def small_nodes(orders: Sequence[Order], words: Sequence[Sequence[str]] = ()) -> Iterator[list[SmallNode]]:
    """Yield nodes that are in their registries, in the order of the orders; for `words` see `SmallNode`."""
    nodes = [SmallNode(order, how) for order, how in zip(orders, words or [()] * len(orders), strict=True)]
    try:
        for order, node in zip(orders, nodes, strict=True):
            grpc = node.where[0]
            with open_registry(order.registry, order.app, SETTINGS) as registry:
                wait_until(partial(_is_registered, registry, grpc), f"{order.name} to register")
        yield nodes
    finally:
        for node in nodes:
            node.close()


def _is_registered(registry: Registry, grpc: str) -> bool:
    return grpc in [node.grpc for node in registry.nodes()]


def _main(words: Any) -> None:
    _serve(Order(**json.loads(words[0])))


if __name__ == "__main__":
    _main(sys.argv[1:])
