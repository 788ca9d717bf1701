"""A trainer as a publisher sees one: steps whose pushes are a function of their number, and what it notes at each.

A version says how many steps it has learned, so that whoever goes on from it must come to what one trainer that took
every step once comes to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streamlearn.features import TableSpec
from streamlearn.ps import Epoch, PsClient, Shelf
from streamlearn.publisher import CutState, Lineage, Publisher
from streamlearn.settings import PublisherSettings
from streamlearn.table import Adagrad, TableOptions, TableSet
from streamlearn.testing import ManualClock
from streamlearn.versions import Chain, Cut, Store, load, load_tensors, record_of
from streamlearn.versions.format.manifest import Position

__all__ = ["INTERVAL_S", "KEYS", "MODEL", "OPTIONS", "ROWS", "Training", "check_learned", "lineage", "take_step"]

MODEL = "ctr"
INTERVAL_S = 10.0
ROWS = 60
OPTIONS = (TableOptions(TableSpec("main", 4, 0.05), rows_max=20_000, optimizer=Adagrad(rate=0.1), tick_ms=1_000),)
KEYS = np.random.default_rng(5).integers(0, 1 << 64, 300, np.uint64, endpoint=False)


def lineage(row_type: Any = "float32") -> Lineage:
    return Lineage(MODEL, "features", "windows", tuple(record_of(one, row_type=row_type) for one in OPTIONS))


def take_step(pusher: Any, number: int, *, poison: float = 0.0) -> None:
    """Push what one step pushes, to a client or to tables."""
    rng = np.random.default_rng(number)
    for options in OPTIONS:
        name, dim = options.spec.name, options.spec.dim
        keys = rng.choice(KEYS, ROWS)
        gradients = rng.standard_normal((len(keys), dim), np.float32) + np.float32(poison)
        if isinstance(pusher, TableSet):
            pusher[name].push(keys, gradients, now_ms=number * 1_000)
        else:
            pusher.push(name, keys, gradients, now_ms=number * 1_000)


def check_learned(store: Store, steps: int) -> None:
    """The newest version is what one process comes to that took so many steps once, dense weights and all."""
    chain = Chain.find(store, MODEL)
    assert chain.manifest.metrics["steps"] == steps
    found, expected = TableSet(OPTIONS), TableSet(OPTIONS)
    load(chain, found, training=True)
    for number in range(steps):
        take_step(expected, number)
    for _ in range(2):
        for name, table in expected.tables.items():
            rows = found[name].lookup(KEYS)
            assert np.array_equal(rows.view(np.uint32), table.lookup(KEYS).view(np.uint32)), name
        # The optimizer's state is that of the rows: what is learned next comes out the same.
        for tables in (found, expected):
            take_step(tables, steps)
    assert load_tensors(store, chain.head)["w"].tolist() == [1 + steps / 1024] * 8


class Training:
    """A trainer with a publisher.

    Args:
        store: Where versions go.
        settings: Of the publisher.
        client: Its parameter server; one in this process by default.
        given: What else the publisher takes.
    """

    def __init__(
        self,
        store: Store,
        settings: PublisherSettings | None = None,
        *,
        client: PsClient | None = None,
        row_type: Any = "float32",
        **given: Any,
    ) -> None:
        self.store, self.clock = store, given.pop("clock", None) or ManualClock()
        self.client = client or PsClient.local(OPTIONS, Shelf(store, MODEL))
        self.steps = self.learned = 0
        self.metrics: dict[str, float] = {}
        self.dense_of: Callable[[int], Any] = lambda steps: np.full(8, 1 + steps / 1024, np.float32)
        settings = settings or PublisherSettings(publish_interval_s=INTERVAL_S, row_type=row_type)
        self.publisher = Publisher(
            self.client, store, lineage(row_type), settings, clock=self.clock, by="tests", **given
        )

    def begin(self) -> Training:
        """Start, restore all shards, and publish the first version if there is none."""
        resumed = self.publisher.start()
        self._restore(Epoch(resumed.run), resumed.chain)
        return self

    def recover(self) -> None:
        """What a trainer does after a shard died."""
        assert self.client.epoch is not None
        epoch = self.client.epoch.next()
        self._restore(epoch, self.publisher.resume().chain)

    def _restore(self, epoch: Epoch, chain: Chain | None) -> None:
        self.client.restore(epoch, None if chain is None else chain.ref)
        self.steps = 0 if chain is None else int(chain.manifest.metrics["steps"])
        self.learned = 0
        if chain is None:
            self.publisher.first(self.note)

    def note(self) -> CutState:
        position = Position(topic="memory://samples", topic_id="id", partition=0, offset=self.steps)
        metrics = {"steps": float(self.steps)} | self.metrics
        return CutState(
            cut=Cut(positions=(position,), watermark_ms=self.steps * 1_000, metrics=metrics),
            learned_rows=self.learned,
            dense={"w": self.dense_of(self.steps)},
            dense_optimizer={"m": np.full(8, -self.steps, np.float32)},
            marks={"page": b"marks of %d" % self.steps},
            golden={"requests": b"golden of %d" % self.steps},
        )

    def step(self, count: int = 1, *, poison: float = 0.0) -> None:
        """Learn from some steps, with a boundary after each."""
        for _ in range(count):
            take_step(self.client, self.steps, poison=poison)
            self.steps += 1
            self.learned += ROWS
            self.publisher.boundary(self.note)

    def tick(self) -> bool:
        """Let an interval pass, and publish what is due; returns when nothing is under way."""
        self.clock.sleep(INTERVAL_S)
        is_cut = self.publisher.boundary(self.note)
        assert self.publisher.settle(60)
        return is_cut

    def publish(self, steps: int = 1, *, poison: float = 0.0) -> None:
        """Learn, and publish it."""
        self.step(steps, poison=poison)
        assert self.tick()

    def close(self) -> None:
        self.publisher.close()
        self.client.close()

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()
