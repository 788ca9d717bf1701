"""What fails leaves nothing behind: refused exports, versions given up, trainers that were replaced, damaged files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from streamlearn.errors import (
    CutFailed,
    EpochOver,
    PushUnsure,
    ShardNotReady,
    ShardUnreachable,
    StreamlearnError,
    TableBusy,
    TableFull,
    VersionDefect,
)
from streamlearn.ps import Epoch, Place, PsClient, ShardServer, Shelf
from streamlearn.settings import PsSettings
from streamlearn.table import Expiry
from streamlearn.testing import wait_until
from streamlearn.versions import Store, VersionRef
from tests.ps.conftest import SETTINGS, listening
from tests.ps.model import EXPIRIES, KEYS, MODEL, OPTIONS, Twin, committed, head
from tests.ps.proxy import Proxy


def test_an_export_against_a_version_that_is_not_kept_leaves_no_trace(client: PsClient, store: Store) -> None:
    twin = Twin()
    twin.step(client, 1)
    first = committed(client, store, 1, None).ref
    twin.step(client, 2)
    second = committed(client, store, 2, first).ref
    client.seal(3)
    with pytest.raises(CutFailed):
        client.export(head(3, first))
    assert client.export(head(3, second))
    client.abandon(3)
    twin.step(client, 3)
    third = committed(client, store, 4, second).ref
    client.restore(Epoch(2), None)
    client.restore(Epoch(3), third)
    twin.check(client)


def test_a_number_that_is_sealed_again_is_written_again(client: PsClient, store: Store) -> None:
    twin = Twin()
    twin.step(client, 1)
    client.seal(1)
    client.export(head(1, None))
    client.abandon(1)
    twin.step(client, 2)
    newest = committed(client, store, 1, None).ref
    client.restore(Epoch(2), None)
    client.restore(Epoch(3), newest)
    twin.check(client)


def test_versions_that_are_given_up_one_after_another_take_no_more_memory(client: PsClient, store: Store) -> None:
    twin = Twin()
    twin.step(client, 1)
    newest = committed(client, store, 1, None).ref
    rows = []
    for version in range(2, 9):
        twin.step(client, version)
        client.seal(version)
        twin.step(client, 10 * version)
        client.abandon(version)
        rows.append(sum(table.rows for one in client.stats() for table in one.tables.values()))
    assert rows[-1] <= rows[1] + len(KEYS)
    newest = committed(client, store, 9, newest).ref
    client.restore(Epoch(2), None)
    client.restore(Epoch(3), newest)
    twin.check(client)


def test_after_a_push_that_failed_half_way_nothing_is_pushed_or_cut(store: Store) -> None:
    small = [msgspec.structs.replace(OPTIONS[0], rows_max=1)]
    keys = np.arange(60_000, dtype=np.uint64)
    with PsClient.local(small, Shelf(store, MODEL)) as client:
        client.restore(Epoch(1), None)
        with pytest.raises(TableFull):
            client.push("main", keys, np.ones((len(keys), 8), np.float32), now_ms=0)
        for call in (
            lambda: client.seal(1),
            lambda: client.push("main", keys[:1], np.ones((1, 8), np.float32), now_ms=0),
        ):
            with pytest.raises(PushUnsure):
                call()
        client.restore(Epoch(2), None)
        client.push("main", keys[:1], np.ones((1, 8), np.float32), now_ms=0)


def test_of_two_trainers_of_one_epoch_the_second_is_refused(store: Store) -> None:
    with ExitStack() as stack:
        settings = listening(stack, store, 2)
        first, second = (stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings)) for _ in range(2))
        first.restore(Epoch(1), None)
        Twin().step(first, 1)
        with pytest.raises(EpochOver):
            second.restore(Epoch(1), None)
        second.restore(Epoch(2), None)
        Twin().check(second)
        # And the one that was replaced is told so, and may come back under a higher epoch.
        for call in (lambda: first.seal(1), lambda: first.pull("main", KEYS)):
            with pytest.raises(EpochOver):
                call()
        first.restore(Epoch(3), None)
        Twin().step(first, 2)


def test_who_comes_too_late_ends_no_export(store: Store) -> None:
    with ExitStack() as stack:
        settings = listening(stack, store, 1)
        client = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings))
        client.restore(Epoch(5), None)
        Twin().step(client, 1)
        client.seal(1)
        first = client.export(head(1, None))
        late = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings))
        with pytest.raises(StreamlearnError):
            late.restore(Epoch(2), None)
        assert client.export(head(1, None)) == first


def test_a_damaged_file_is_named_on_shards_as_it_is_in_process(client: PsClient, store: Store, tmp_path: Path) -> None:
    Twin().step(client, 1)
    newest = committed(client, store, 1, None).ref
    for file in (tmp_path / "versions").rglob("rows/*.arrow"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.chmod(0o644)
        file.write_bytes(bytes(data))
    client.restore(Epoch(2), None)
    with pytest.raises(VersionDefect) as found:
        client.restore(Epoch(3), newest)
    assert found.value.defect == "corrupted"
    with pytest.raises((ShardNotReady, EpochOver)):
        client.pull("main", KEYS)
    client.restore(Epoch(4), None)
    Twin().step(client, 2)


def test_a_version_of_another_number_is_refused_before_anything_is_sealed(client: PsClient, store: Store) -> None:
    with pytest.raises(ValueError, match="version"):
        client.seal(-1)
    twin = Twin()
    twin.step(client, 1)
    newest: VersionRef = committed(client, store, 1, None).ref
    assert newest.version == 1


@contextmanager
def _behind_proxies(settings: PsSettings) -> Iterator[tuple[list[Proxy], PsSettings]]:
    proxies = [Proxy(int(address.rpartition(":")[2]), seed=1) for address in settings.addresses]
    try:
        yield proxies, msgspec.structs.replace(settings, addresses=[proxy.address for proxy in proxies])
    finally:
        for proxy in proxies:
            proxy.close()


def test_an_order_to_expire_whose_answer_was_lost_is_the_same_order_when_it_comes_again(store: Store) -> None:
    with ExitStack() as stack:
        clean = listening(stack, store, 3)
        proxies, settings = stack.enter_context(_behind_proxies(listening(stack, store, 3)))
        control, client = (stack.enter_context(PsClient.connect(MODEL, OPTIONS, one)) for one in (clean, settings))
        for one in (control, client):
            one.restore(Epoch(1), None)
            Twin().step(one, 1)
        later: dict[str, Any] = {"now_ms": 90_000, "budget_keys": 40}
        for number, lost in enumerate((1, 0, 2, None)):
            expected = control.expire(EXPIRIES, **later)
            for _ in range(0 if lost is None else 2):
                proxies[lost or 0].lose_answer()
                with pytest.raises(ShardUnreachable, match=f"shard {lost}"):
                    client.expire(EXPIRIES, **later)
            assert client.expire(EXPIRIES, **later) == expected, number
        assert [one.tables for one in client.stats()] == [one.tables for one in control.stats()]


def test_another_order_to_expire_ends_the_one_that_was_not_answered(store: Store) -> None:
    with ExitStack() as stack:
        clean = listening(stack, store, 2)
        proxies, settings = stack.enter_context(_behind_proxies(listening(stack, store, 2)))
        control, client = (stack.enter_context(PsClient.connect(MODEL, OPTIONS, one)) for one in (clean, settings))
        other = {"main": Expiry(idle_ms=1_000)}
        for one in (control, client):
            one.restore(Epoch(1), None)
            Twin().step(one, 1)
        control.expire(EXPIRIES, now_ms=90_000, budget_keys=40)
        proxies[1].lose_answer()
        with pytest.raises(ShardUnreachable):
            client.expire(EXPIRIES, now_ms=90_000, budget_keys=40)
        expected = control.expire(other, now_ms=91_000, budget_keys=30)
        assert client.expire(other, now_ms=91_000, budget_keys=30) == expected
        assert [one.tables for one in client.stats()] == [one.tables for one in control.stats()]


def test_other_orders_whose_answers_were_lost_may_come_again(store: Store) -> None:
    with ExitStack() as stack:
        proxies, settings = stack.enter_context(_behind_proxies(listening(stack, store, 2)))
        client = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings))
        client.restore(Epoch(1), None)
        twin = Twin()
        twin.step(client, 1)
        newest = committed(client, store, 1, None).ref
        twin.step(client, 2)
        proxies[0].lose_answer()
        with pytest.raises(CutFailed):
            client.seal(2)
        client.seal(2)
        proxies[1].lose_answer()
        with pytest.raises(ShardUnreachable):
            client.abandon(2)
        client.abandon(2)
        twin.step(client, 3)
        newest = committed(client, store, 3, newest).ref
        client.restore(Epoch(2), None)
        client.restore(Epoch(3), newest)
        twin.check(client)


class _Stuck:
    """Has every write of a store wait until it is let go."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.let_go = threading.Semaphore(0), threading.Event()
        self._writer = store.writer
        monkeypatch.setattr(store, "writer", self._wait)

    def _wait(self, prefix: str, suffix: str) -> Any:
        self.begun.release()
        assert self.let_go.wait(300)
        return self._writer(prefix, suffix)


@pytest.mark.parametrize("is_here", [True, False], ids=["in process", "on a shard"])
def test_exports_of_a_store_that_hangs_are_bounded_and_seen(
    store: Store, monkeypatch: pytest.MonkeyPatch, lines: list[str], is_here: bool
) -> None:
    settings = msgspec.structs.replace(
        SETTINGS, exports_left_max=2, export_end_wait_s_max=0.05, drain_ms_max=100, export_wait_s_max=0.3
    )
    with ExitStack() as stack:
        stuck = _Stuck(store, monkeypatch)
        stack.callback(stuck.let_go.set)
        if is_here:
            client = stack.enter_context(PsClient.local(OPTIONS, Shelf(store, MODEL), settings))
        else:
            server = stack.enter_context(ShardServer(Place(), OPTIONS, Shelf(store, MODEL), settings))
            there = msgspec.structs.replace(settings, addresses=server.addresses)
            client = stack.enter_context(PsClient.connect(MODEL, OPTIONS, there))
        for run in (1, 2):
            client.restore(Epoch(run), None)
            Twin().step(client, run)
            client.seal(1)
            with pytest.raises(CutFailed, match=r"took longer than 0\.3 s|not answered within 300 ms"):
                client.export(head(1, None))
            assert stuck.begun.acquire(timeout=60)
            with pytest.raises(TableBusy, match="still being written after"):
                client.abandon(1)
            assert [one.exports_left for one in client.stats()] == [run]
        client.restore(Epoch(3), None)
        twin = Twin()
        twin.step(client, 3)
        client.seal(1)
        client._settings = SETTINGS  # with time enough for a shard and a store that answer
        with pytest.raises(CutFailed, match="2 exports were given up and still run"):
            client.export(head(1, None))
        client.abandon(1)
        twin.check(client)
        stuck.let_go.set()
        wait_until(lambda: [one.exports_left for one in client.stats()] == [0], "the exports to end")
        newest = committed(client, store, 2, None).ref
        client.restore(Epoch(4), None)
        client.restore(Epoch(5), newest)
        twin.check(client)
    for said in ("gave up the export of version 1, which still runs", "which was given up, has ended"):
        assert sum(said in line for line in lines) == 2, (said, lines)
