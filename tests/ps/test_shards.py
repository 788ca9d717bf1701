"""Shards that die, come back and change in number: what is committed is all that counts."""

from __future__ import annotations

from contextlib import ExitStack

import msgspec
import pytest

from streamlearn.errors import EpochOver, ShardNotReady, StreamlearnError, VersionRefused
from streamlearn.ps import Epoch, Place, PsClient, ShardServer, Shelf
from streamlearn.versions import Store, VersionRef, open_store
from tests.ps.conftest import SETTINGS, listening
from tests.ps.model import KEYS, MODEL, OPTIONS, Twin, committed


def test_after_a_restore_there_may_be_more_or_fewer_shards(store: Store) -> None:
    twin, version, epoch = Twin(), 0, Epoch(1)
    newest: VersionRef | None = None
    for count in (1, 2, 3, 1):
        with ExitStack() as stack:
            client = stack.enter_context(PsClient.connect(MODEL, OPTIONS, listening(stack, store, count)))
            client.restore(epoch, newest)
            twin.check(client)
            twin.step(client, count)
            version += 1
            newest = committed(client, store, version, newest).ref
            twin.step(client, 10 + count)
            version += 1
            newest = committed(client, store, version, newest).ref
        epoch = epoch.next()


def test_a_shard_that_was_started_again_says_so_until_all_are_restored(store: Store) -> None:
    with ExitStack() as stack:
        settings = listening(stack, store, 2)
        client = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings))
        client.restore(Epoch(1), None)
        twin = Twin()
        twin.step(client, 1)
        newest = committed(client, store, 1, None).ref
        twin.keep(1)
        twin.step(client, 2)
        with ExitStack() as second:
            again = listening(second, store, 2)
            mixed = msgspec.structs.replace(settings, addresses=[settings.addresses[0], again.addresses[1]])
            with PsClient.connect(MODEL, OPTIONS, mixed) as other:
                # As a client finds it that was not told of the death: one shard stands, one has nothing.
                other._link.begin(Epoch(1))
                other.epoch = Epoch(1)
                with pytest.raises(ShardNotReady, match="shard 1"):
                    other.pull("main", KEYS)
                other.restore(Epoch(1, 1), newest)
                twin.go_back()
                twin.check(other)
        with pytest.raises(EpochOver):
            client.pull("main", KEYS)


def test_a_push_of_a_trainer_that_was_replaced_is_refused(store: Store) -> None:
    with ExitStack() as stack:
        settings = listening(stack, store, 2)
        older = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings))
        older.restore(Epoch(1), None)
        Twin().step(older, 1)
        newer = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings))
        newer.restore(Epoch(2), None)
        with pytest.raises(EpochOver):
            Twin().step(older, 2)
        Twin().check(newer)
        with pytest.raises(EpochOver):
            older.restore(Epoch(1, 5), None)


def test_a_version_of_another_store_is_refused_and_leaves_no_tables(store: Store) -> None:
    other = open_store("memory://another-store-of-shards")
    with ExitStack() as stack:
        mine = stack.enter_context(ShardServer(Place(), OPTIONS, Shelf(store, MODEL), SETTINGS))
        settings = msgspec.structs.replace(SETTINGS, addresses=mine.addresses)
        client = stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings))
        client.restore(Epoch(1), None)
        Twin().step(client, 1)
        committed(client, store, 1, None)
        with PsClient.local(OPTIONS, Shelf(other, MODEL)) as elsewhere:
            elsewhere.restore(Epoch(1), None)
            Twin().step(elsewhere, 2)
            foreign = committed(elsewhere, other, 1, None).ref
        with pytest.raises(VersionRefused):
            client.restore(Epoch(2), foreign)
        with pytest.raises(StreamlearnError):
            client.pull("main", KEYS)
        client.restore(Epoch(3), None)
        Twin().check(client)
