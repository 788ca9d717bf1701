"""Clients that only read: they follow the shards from epoch to epoch, and change nothing."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from streamlearn.errors import ShardNotReady, ShardUnreachable, UsageError
from streamlearn.features import FeatureSpec, Slot
from streamlearn.ps import Epoch, PsClient
from streamlearn.ps.orders import Expire, Order, Remove, Restore, Seal
from streamlearn.samples import FeatureColumns, SlotColumns
from streamlearn.settings import PsSettings
from streamlearn.table import Packing
from streamlearn.testing import wait_until
from streamlearn.versions import Store, VersionRef, open_store
from tests.processes import started
from tests.ps.actors import run_shard
from tests.ps.conftest import SETTINGS, listening
from tests.ps.model import EXPIRIES, KEYS, MODEL, OPTIONS, Twin, committed, head


@pytest.fixture(params=[1, 3], ids=["one shard", "three shards"])
def both(request: pytest.FixtureRequest, store: Store) -> Iterator[tuple[PsClient, PsClient, PsSettings]]:
    """A trainer whose shards stand at empty tables, one that only reads, and their settings."""
    with ExitStack() as stack:
        settings = listening(stack, store, request.param)
        trainer = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings))
        trainer.restore(Epoch(1), None)
        yield trainer, stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings, reads_only=True)), settings


def test_a_reader_reads_what_the_trainer_writes(both: tuple[PsClient, PsClient, PsSettings], store: Store) -> None:
    trainer, reader, _ = both
    twin = Twin()
    twin.step(trainer, 1)
    twin.check(reader)
    committed(trainer, store, 1, None)
    twin.keep(1)
    twin.step(trainer, 2)
    twin.check(reader, at=1)
    spec = FeatureSpec(slots=(Slot("one", "item", dim=8, table="main"),), dense=(), item_id="one")
    columns = FeatureColumns({"one": SlotColumns(KEYS[:100])}, {})
    mine, theirs = (Packing(spec.pack.item, source).flat(columns, 100) for source in (reader, twin.tables))
    assert np.array_equal(mine, theirs)
    assert [one.retained for one in reader.stats()] == [(1,)] * reader.shards
    assert reader.epoch is None


def test_a_reader_follows_restores(both: tuple[PsClient, PsClient, PsSettings], store: Store) -> None:
    trainer, reader, _ = both
    twin = Twin()
    twin.step(trainer, 1)
    first: VersionRef = committed(trainer, store, 1, None).ref
    twin.keep(1)
    for recovery in range(1, 5):
        twin.step(trainer, 2)
        twin.check(reader)
        trainer.restore(Epoch(1, recovery), first)
        twin.go_back()
        twin.check(reader)
    trainer.restore(Epoch(2), None)
    Twin().check(reader)


def test_no_pull_is_of_two_epochs(store: Store) -> None:
    with ExitStack() as stack:
        settings = listening(stack, store, 3)
        trainer = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings))
        reader = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings, reads_only=True))
        trainer.restore(Epoch(1), None)
        versions: list[VersionRef | None] = [None]
        rows = [trainer.pull("main", KEYS)]
        twin = Twin()
        for number in (1, 2):
            twin.step(trainer, number)
            versions.append(committed(trainer, store, number, versions[-1]).ref)
            rows.append(trainer.pull("main", KEYS))
        found: list[int] = []
        ended = threading.Event()

        def read() -> None:
            while not ended.is_set():
                pulled = reader.pull("main", KEYS)
                found.append(next((at for at, one in enumerate(rows) if np.array_equal(one, pulled)), -1))

        reading = threading.Thread(target=read)
        reading.start()
        try:
            for recovery in range(1, 13):
                before = len(found)
                trainer.restore(Epoch(1, recovery), versions[recovery % 3])
                wait_until(lambda before=before: len(found) > before + 1, "a pull of the new epoch")  # type: ignore[misc]
        finally:
            ended.set()
            reading.join()
        assert set(found) == {0, 1, 2}


CHANGES: list[tuple[str, Callable[[PsClient], Any]]] = [
    ("push", lambda client: client.push("main", KEYS[:1], np.ones((1, 8), np.float32), now_ms=0)),
    ("restore", lambda client: client.restore(Epoch(9), None)),
    ("seal", lambda client: client.seal(1)),
    ("export", lambda client: client.export(head(1, None))),
    ("commit", lambda client: client.commit(VersionRef(version=1, run=1, sha256="0" * 64))),
    ("abandon", lambda client: client.abandon(1)),
    ("expire", lambda client: client.expire(EXPIRIES, now_ms=0, budget_keys=1)),
]


@pytest.mark.parametrize(("verb", "call"), CHANGES, ids=[verb for verb, _ in CHANGES])
def test_a_reader_is_told_by_name_what_it_cannot_do(store: Store, verb: str, call: Callable[[PsClient], Any]) -> None:
    with ExitStack() as stack:
        settings = listening(stack, store, 1)
        reader = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings, reads_only=True))
        with pytest.raises(UsageError, match=f"read-only: it cannot {verb}"):
            call(reader)


@pytest.mark.parametrize(
    "order",
    [Restore(Epoch(9)), Seal(Epoch(1), 1), Expire(Epoch(1), 1, EXPIRIES, 0, 1), Remove(Epoch(1), {})],
    ids=lambda order: type(order).__name__,
)
def test_shards_refuse_a_reader_that_does_not_keep_its_word(store: Store, order: Order) -> None:
    with ExitStack() as stack:
        settings = listening(stack, store, 1)
        trainer = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings))
        trainer.restore(Epoch(1), None)
        reader = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings, reads_only=True))
        (answer,) = reader._link.order_all([order], 120.0)
        assert isinstance(answer, UsageError)
        assert "read-only" in answer.message
        (stats,) = trainer.stats()
        assert (stats.epoch, stats.sealed, stats.served["refused_reads_only"]) == (Epoch(1), None, 1)


def test_a_reader_waits_for_the_first_restore_within_its_bound(store: Store) -> None:
    with ExitStack() as stack:
        settings = listening(stack, store, 2)
        hasty = msgspec.structs.replace(settings, retry_wait_ms_max=400)
        reader = stack.enter_context(_hasty_reader(hasty))
        with pytest.raises(ShardNotReady, match="shard 0"):
            reader.pull("main", KEYS)
        trainer = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings))
        trainer.restore(Epoch(1), None)
        patient = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings, reads_only=True))
        Twin().check(patient)


def test_a_reader_lives_on_when_a_shard_is_killed_and_all_are_restored(tmp_path: Path) -> None:
    url, ports, processes = str(tmp_path / "versions"), [_free_port() for _ in range(2)], {}
    store = open_store(url)

    def start(number: int) -> None:
        processes[number] = started(run_shard, f"{number}/2", ports[number], url)

    def kill(number: int) -> None:
        pid = processes[number].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        processes[number].join(120)

    addresses = [f"127.0.0.1:{port}" for port in ports]
    settings = msgspec.structs.replace(SETTINGS, addresses=addresses, backoff_ms_max=50, connect_wait_ms_max=500)
    hasty = msgspec.structs.replace(settings, retry_wait_ms_max=1_000)
    with ExitStack() as stack:
        for number in range(2):
            start(number)
            stack.callback(kill, number)
        trainer = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings))
        trainer.restore(Epoch(1), None)
        reader = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings, reads_only=True))
        impatient = stack.enter_context(_hasty_reader(hasty))

        def names(number: int) -> bool:  # another shard may be slow
            with pytest.raises((ShardUnreachable, ShardNotReady)) as refused:
                impatient.pull("main", KEYS)
            return isinstance(refused.value, ShardUnreachable) and f"shard {number}" in refused.value.message

        twin = Twin()
        twin.step(trainer, 1)
        newest = committed(trainer, store, 1, None).ref
        twin.keep(1)
        for recovery in range(1, 4):
            twin.step(trainer, 1 + recovery)
            twin.check(reader)
            kill(recovery % 2)
            wait_until(lambda number=recovery % 2: names(number), "the killed shard to be named")  # type: ignore[misc]
            start(recovery % 2)
            trainer.restore(Epoch(1, recovery), newest)
            twin.go_back()
            twin.check(reader)


def _hasty_reader(settings: PsSettings) -> PsClient:
    """A client that soon gives up, once it is connected: a loaded machine may need longer for that."""

    def connected() -> PsClient | None:
        with suppress(ShardUnreachable):
            return PsClient.connect(MODEL, OPTIONS, settings, reads_only=True)
        return None

    client = wait_until(connected, "the shards to be connected")
    assert client is not None
    return client


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
