"""A real Redis that is away, stale or empty: nothing that is served or held depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs
from redis import Redis as Client

from streamlearn.settings.versions import RegistrySettings
from streamlearn.table import TableSet
from streamlearn.testing import wait_until
from streamlearn.versions import History, Pointer, PointerLog, Registry, Replica, Store, VersionRef, open_registry
from streamlearn.versions import open_store as opened
from streamlearn.versions.pointer.moves import rollback
from tests.publisher.training import INTERVAL_S, MODEL, OPTIONS, Training, check_learned
from tools.services import Redis

# What is waited for in earnest: a call to a registry that is away. An outage is as many intervals of the publisher's
# own clock as it lasts; what it costs is a call a publication at first, and less and less (the pauses double).
_REACH_S = 15.0
_OUTAGE_S = 60


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return opened(str(tmp_path / "store"))


@pytest.fixture
def registry(own_redis: Redis) -> Iterator[Registry]:
    with open_registry(own_redis.url, MODEL, RegistrySettings(reach_s=_REACH_S)) as registry:
        yield registry


def node_of(store: Store, registry: Registry, training: Training) -> Replica:
    options = [structs.replace(one, optimizer=None) for one in OPTIONS]
    return Replica(store, MODEL, lambda: TableSet(options), name="node-1", registry=registry, clock=training.clock)


def held_back(store: Store) -> Pointer:
    """Roll back by one version, in the store alone."""
    known = History(store, MODEL).read()
    return PointerLog(store, MODEL).move(lambda now: rollback(now, known, known[-2].version), by="ada")


def served(node: Replica) -> VersionRef | None:
    node.step()
    return node.status().active


def catch_up(training: Training, store: Store, registry: Registry) -> None:
    """Go on at step boundaries, learning nothing, until the registry has what the store has."""

    def is_told() -> bool:
        training.clock.sleep(INTERVAL_S)
        training.publisher.boundary(training.note)
        training.publisher.settle(60)
        return registry.pointer() == PointerLog(store, MODEL).newest()

    wait_until(is_told, "the registry to be told")
    assert registry.versions() == list(History(store, MODEL).read())


def test_redis_down_for_a_minute_stops_no_serving_and_no_publishing_and_a_hold_made_meanwhile_holds(
    own_redis: Redis, registry: Registry, store: Store
) -> None:
    with Training(store, registry=registry).begin() as training:
        training.publish()
        node = node_of(store, registry, training)
        assert served(node) == registry.pointer().active  # type: ignore[union-attr]
        own_redis.kill()
        for _ in range(int(_OUTAGE_S / INTERVAL_S)):
            training.publish()
            assert served(node) == training.publisher.committed  # moves are in the store, and so are the files
        pointer = held_back(store)
        training.publish()
        assert served(node) == pointer.active
        assert "registry" in node.status().error or "redis" in node.status().error.lower()
        own_redis.restart()
        catch_up(training, store, registry)
        newest = PointerLog(store, MODEL).newest()
        assert (newest.active, newest.held, registry.pointer()) == (pointer.active, True, newest)
        training.publish()
        assert served(node) == pointer.active
        assert [one.active for one in registry.nodes()] == [pointer.active.version]  # type: ignore[union-attr]
        node.close()
    check_learned(store, 1 + int(_OUTAGE_S / INTERVAL_S) + 2)


def check_hold_stays(own_redis: Redis, registry: Registry, store: Store, *, is_stale: bool) -> None:
    with Training(store, registry=registry).begin() as training, Client.from_url(own_redis.url) as client:
        training.publish(2)
        training.publish()
        node = node_of(store, registry, training)
        assert served(node) == training.publisher.committed
        before = {key: client.dump(key) for key in client.scan_iter()}
        assert before
        left, pointer = training.publisher.committed, held_back(store)
        registry.announce(pointer)
        assert served(node) == pointer.active
        client.flushall()
        if is_stale:
            for key, said in before.items():
                client.restore(key, 0, said)
            assert registry.pointer().active == left  # type: ignore[union-attr]
        else:
            assert registry.pointer() is None
        assert served(node) == pointer.active
        # One that starts now looks at the store too.
        other = node_of(store, registry, training)
        assert served(other) == pointer.active
        training.publish()
        assert (served(node), served(other)) == (pointer.active, pointer.active)
        catch_up(training, store, registry)
        assert registry.pointer().held  # type: ignore[union-attr]
        node.close()
        other.close()


def test_a_stale_redis_restored_from_an_older_dump_undoes_no_hold(
    own_redis: Redis, registry: Registry, store: Store
) -> None:
    check_hold_stays(own_redis, registry, store, is_stale=True)


def test_a_redis_that_lost_everything_undoes_no_hold(own_redis: Redis, registry: Registry, store: Store) -> None:
    check_hold_stays(own_redis, registry, store, is_stale=False)
