"""What a parameter server promises, wherever its tables are: in the trainer's process, on one shard, on several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streamlearn.errors import CutFailed, EpochOver, StreamlearnError, UsageError, VersionRefused
from streamlearn.features import FeatureSpec, Slot
from streamlearn.ps import Epoch, PsClient
from streamlearn.samples import FeatureColumns, SlotColumns
from streamlearn.table import Packing, Scatter
from streamlearn.versions import Cut, Store, VersionWriter
from tests.ps.model import EXPIRIES, KEYS, Twin, committed, head


def test_rows_learn_as_those_of_a_table_do(client: PsClient) -> None:
    twin = Twin()
    for seed in range(3):
        twin.step(client, seed)
    twin.check(client)


def test_keys_may_come_several_times_and_in_any_order(client: PsClient) -> None:
    twin = Twin()
    twin.step(client, 1)
    keys = np.concatenate([KEYS[:100], KEYS[:50], KEYS[:100][::-1]])
    out = np.empty((len(keys), 8), np.float32)
    assert client.pull("main", keys, out=out) is out
    assert np.array_equal(out, twin.tables["main"].lookup(keys))
    distinct = client.pull("main", KEYS, distinct=True)
    assert np.array_equal(distinct, twin.tables["main"].lookup(KEYS))
    assert client.pull("main", KEYS[:0]).shape == (0, 8)


def test_a_version_reads_as_it_was_while_rows_learn_on(client: PsClient, store: Store) -> None:
    twin = Twin()
    twin.step(client, 1)
    committed(client, store, 1, None)
    twin.keep(1)
    twin.step(client, 2)
    twin.check(client, at=1)
    twin.check(client)
    with pytest.raises(VersionRefused):
        client.pull("main", KEYS[:1], at=7)


def test_restored_shards_go_on_as_if_what_was_not_committed_had_not_been(client: PsClient, store: Store) -> None:
    twin = Twin()
    twin.step(client, 1)
    done = committed(client, store, 1, None)
    twin.keep(1)
    for recovery in (1, 2):
        twin.step(client, 2)
        client.restore(Epoch(1, recovery), done.ref)
        twin.go_back()
        twin.check(client)
    twin.step(client, 3)
    done = committed(client, store, 2, done.ref)
    twin.keep(2)
    # And with nothing in memory: from the files.
    client.restore(Epoch(2), None)
    client.restore(Epoch(3), done.ref)
    twin.check(client)
    twin.step(client, 4)
    twin.check(client)


def test_the_version_after_a_cut_that_failed_says_what_both_wrote(client: PsClient, store: Store) -> None:
    twin = Twin()
    twin.step(client, 1)
    done = committed(client, store, 1, None)
    twin.step(client, 2)
    client.seal(2)
    client.export(head(2, done.ref))
    client.abandon(2)
    twin.step(client, 3)
    client.seal(3)  # and nobody says what became of it
    twin.step(client, 4)
    done = committed(client, store, 4, done.ref)
    twin.check(client)
    client.restore(Epoch(1, 1), None)
    client.restore(Epoch(1, 2), done.ref)
    twin.check(client)


def test_a_shard_that_did_not_hear_of_a_commit_hears_it_with_the_next_version(client: PsClient, store: Store) -> None:
    twin = Twin()
    twin.step(client, 1)
    client.seal(1)
    done = VersionWriter(store, head(1, None)).finish(Cut(), client.export(head(1, None)))
    client._committed, client._sealed = 1, None  # the order itself is lost
    twin.step(client, 2)
    done = committed(client, store, 2, done.ref)
    client.restore(Epoch(1, 1), None)
    client.restore(Epoch(1, 2), done.ref)
    twin.check(client)


def test_an_older_version_can_be_gone_back_to_also_by_a_shard_that_knows_a_newer_one(
    client: PsClient, store: Store
) -> None:
    twin = Twin()
    twin.step(client, 1)
    first = committed(client, store, 1, None)
    before, ones = client.pull("main", KEYS), np.ones((len(KEYS), 8), np.float32)
    client.push("main", KEYS, ones, now_ms=0)
    later = client.pull("main", KEYS)
    client.seal(2)
    done = VersionWriter(store, head(2, first.ref)).finish(Cut(), client.export(head(2, first.ref)))
    client._committed, client._sealed = 2, None  # the order itself is lost
    client.push("main", KEYS, ones, now_ms=0)
    client.seal(3)
    client.restore(Epoch(2), first.ref)
    assert np.array_equal(client.pull("main", KEYS), before)
    client.restore(Epoch(3), done.ref)
    assert np.array_equal(client.pull("main", KEYS), later)


def test_an_export_that_is_asked_for_again_gives_the_same_files(client: PsClient, store: Store) -> None:
    Twin().step(client, 1)
    client.seal(1)
    first = client.export(head(1, None))
    assert client.export(head(1, None)) == first
    rows = {file.table: 0 for file in first}
    for file in first:
        rows[file.table] += file.rows if file.kind == "rows" else 0
    assert rows == {name: sum(one.tables[name].keys for one in client.stats()) for name in client.dims}


def test_of_two_epochs_the_older_one_is_over(client: PsClient) -> None:
    twin = Twin()
    twin.step(client, 1)
    for over in (Epoch(0, 9), Epoch(1)):
        with pytest.raises(EpochOver):
            client.restore(over, None)
    client.restore(Epoch(2), None)
    assert np.array_equal(client.pull("main", KEYS), Twin().tables["main"].lookup(KEYS))
    assert all(one.epoch == Epoch(2) for one in client.stats())


def test_expiry_goes_over_every_shard(client: PsClient) -> None:
    twin = Twin()
    for seed in range(3):
        twin.step(client, seed)
    later_ms = twin.now_ms + 40_000
    found = client.expire(EXPIRIES, now_ms=later_ms, budget_keys=1 << 30)
    for name, table in twin.tables.tables.items():
        assert found[name].idle == table.expire(EXPIRIES[name], now_ms=later_ms, budget_keys=1 << 30).idle > 0
    twin.check(client)
    assert sum(one.tables["main"].keys for one in client.stats()) == 0


def test_packing_reads_shards_as_it_reads_tables(client: PsClient) -> None:
    twin = Twin()
    twin.step(client, 1)
    slots = (
        Slot("one", "item", dim=8, table="main"),
        Slot("many", "item", dim=3, table="side", multi=True, pooling="mean"),
        Slot("past", "user", dim=8, table="main", multi=True, pooling="sequence", length=5),
    )
    spec = FeatureSpec(slots=slots, dense=(), item_id="one")
    offsets = np.arange(0, 301, 3, dtype=np.int32)
    item = FeatureColumns({"one": SlotColumns(KEYS[:100]), "many": SlotColumns(KEYS[:300], offsets)}, {})
    user = FeatureColumns({"past": SlotColumns(KEYS[50:350], offsets)}, {})
    mine, theirs = (Packing(spec.pack.item, source) for source in (client, twin.tables))
    assert np.array_equal(mine.flat(item, 100), theirs.flat(item, 100))
    scatter = Scatter(client, keys_max=1_000)
    scatter.flat(mine, item, 100, np.ones((100, spec.pack.item.flat_width), np.float32))
    assert len(scatter.gradients("main")[0]) == 100
    mine, theirs = (Packing(spec.pack.user, source) for source in (client, twin.tables))
    assert np.array_equal(mine.sequences(user, 100), theirs.sequences(user, 100))


REFUSED: list[tuple[type[Exception], Callable[[PsClient], Any]]] = [
    (UsageError, lambda client: client.pull("other", KEYS)),
    (UsageError, lambda client: client.pull("main", KEYS, at="active")),
    (TypeError, lambda client: client.pull("main", KEYS.astype(np.int64))),
    (TypeError, lambda client: client.pull("main", KEYS[::2])),
    (ValueError, lambda client: client.push("main", KEYS, np.ones((3, 8), np.float32), now_ms=0)),
    (ValueError, lambda client: client.push("main", KEYS, np.ones((len(KEYS), 8), np.float32), now_ms=1 << 70)),
    (CutFailed, lambda client: client.export(head(9, None))),
    (UsageError, lambda client: client.commit(committed_elsewhere())),
]


def committed_elsewhere() -> Any:
    from streamlearn.versions import VersionRef

    return VersionRef(version=5, run=1, sha256="0" * 64)


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_cannot_be_is_refused_and_harms_nothing(client: PsClient, number: int) -> None:
    kind, call = REFUSED[number]
    with pytest.raises(kind):
        call(client)
    twin = Twin()
    twin.step(client, 1)
    twin.check(client)


def test_before_it_is_restored_a_client_says_what_to_do(store: Store) -> None:
    from streamlearn.ps import Shelf
    from tests.ps.model import MODEL, OPTIONS

    client = PsClient.local(OPTIONS, Shelf(store, MODEL))
    with pytest.raises(UsageError, match="restore"):
        client.seal(1)
    with pytest.raises(StreamlearnError):
        client.pull("main", KEYS)
