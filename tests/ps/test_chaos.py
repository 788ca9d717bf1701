"""Shards and trainers that are killed, and a network that cuts and repeats: no push is lost, none learned twice."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.table import TableSet
from streamlearn.testing import wait_until
from streamlearn.versions import load
from tests.processes import started
from tests.ps.actors import newest, run_shard, run_trainer, steps_learned, take_step
from tests.ps.model import KEYS, OPTIONS
from tests.ps.proxy import Proxy

_KILLS = int(os.environ.get("CHAOS_KILLS", "60"))
_SHARDS = 3
_WAIT_S_MAX = 300.0


class Actors:
    """Processes that are started again when they are killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store, self.done = str(folder / "versions"), str(folder / "done")
        self.ports = [_free_port() for _ in range(_SHARDS)]
        self.proxies = [Proxy(port, self.rng.randrange(1 << 30)) for port in self.ports]
        self.shards: list[Any] = [self._shard(number) for number in range(_SHARDS)]
        self.runs, self.steps, self.trainer = 0, 1 << 30, None
        self.start_trainer()

    def _shard(self, number: int) -> Any:
        return started(run_shard, f"{number}/{_SHARDS}", self.ports[number], self.store)

    def start_trainer(self) -> None:
        """Begin another run."""
        self.runs += 1
        addresses = [proxy.address for proxy in self.proxies]
        self.trainer = started(run_trainer, addresses, self.store, self.runs, self.steps, self.done)

    def kill(self) -> None:
        """Kill someone, and start them again."""
        number = self.rng.randrange(_SHARDS + 1)
        if number == _SHARDS:
            _kill(self.trainer)
            self.start_trainer()
        else:
            _kill(self.shards[number])
            self.shards[number] = self._shard(number)

    def end(self) -> None:
        """Kill them all."""
        for process in (self.trainer, *self.shards):
            _kill(process)
        for proxy in self.proxies:
            proxy.close()


def _kill(process: Any) -> None:
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join(_WAIT_S_MAX)
    process.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.fixture
def actors(tmp_path: Path) -> Iterator[Actors]:
    made = Actors(tmp_path, seed=1)
    yield made
    made.end()


def test_whatever_is_killed_every_step_is_learned_once(actors: Actors) -> None:
    learned = 0
    for kill in range(_KILLS):
        if kill % 4 == 0:
            # Now and then something is let be done, so that deaths meet every stage of it.
            learned = wait_until(partial(_more, actors, learned), "another version", deadline_s=_WAIT_S_MAX)
        actors.proxies[actors.rng.randrange(_SHARDS)].trouble(actors.rng.random() < 0.5)
        actors.kill()
    for proxy in actors.proxies:
        proxy.trouble(False)
    _kill(actors.trainer)
    actors.steps = _learned(actors) + 10
    actors.start_trainer()
    wait_until(lambda: Path(actors.done).exists(), "the last trainer to end", deadline_s=_WAIT_S_MAX)
    chain = newest(actors.store)
    assert chain is not None
    assert steps_learned(chain) == actors.steps
    found, expected = TableSet(OPTIONS), TableSet(OPTIONS)
    load(chain, found, training=True)
    for number in range(actors.steps):
        take_step(expected, number)
    for name, table in expected.tables.items():
        rows = found[name].lookup(KEYS)
        assert np.array_equal(rows.view(np.uint32), table.lookup(KEYS).view(np.uint32)), name
    _check_learning_goes_on(found, expected, actors.steps)


def _check_learning_goes_on(found: TableSet, expected: TableSet, number: int) -> None:
    """State and counts of keys without a row are the same too: what is learned next comes out the same."""
    for tables in (found, expected):
        take_step(tables, number)
    for name, table in expected.tables.items():
        assert np.array_equal(found[name].lookup(KEYS), table.lookup(KEYS)), name


def _more(actors: Actors, than: int) -> int:
    """How many steps the newest version has learned, once they are more."""
    learned = _learned(actors)
    return learned if learned > than else 0


def _learned(actors: Actors) -> int:
    return steps_learned(newest(actors.store))
