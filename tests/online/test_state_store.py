"""Stores of states: a suite that each of them passes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from streamlearn.errors import FoldOver, StatesLost, StatesUnreachable, UsageError
from streamlearn.features import Entity
from streamlearn.online import Standing, StateGroup, StateStore, open_state_store
from streamlearn.online.state_store import StatePlace
from streamlearn.settings.features import FeatureSettings
from streamlearn.testing import wait_until
from tests.online.shop import SPEC, folder_of
from tools.services import Redis

ENTITY: Entity = SPEC.entities[0]
KEEP_MS = 60_000
BIG = (1 << 64) - 1
Open = Callable[[], StateStore]


@pytest.fixture(params=["sqlite", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """What opens the same store again and again."""
    url = f"sqlite://{tmp_path}/a/features.db"
    if request.param == "redis":
        url = request.getfixturevalue("redis")
    stores: list[StateStore] = []

    def open_() -> StateStore:
        stores.append(open_state_store(folder_of(tmp_path, url)))
        return stores[-1]

    yield open_
    stores[0].drop(group_of(tmp_path))
    for store in stores:
        store.close()


def group_of(path: Path, epoch: int = 0) -> StateGroup:
    # Tests share a Redis.
    return StateGroup.of(path.name, ENTITY, 1, epoch)


def places(group: StateGroup, *keys: int) -> list[StatePlace]:
    return [StatePlace(group, key) for key in keys]


def moved_to(before: Standing, position: int) -> Standing:
    return replace(before, position=position, seen_from=position - 1, newest_ms=5, topic_id="topic")


def test_states_and_standing_are_written_together_and_read_by_others(opened: Open, tmp_path: Path) -> None:
    store, group = opened(), group_of(tmp_path)
    assert store.standing(group, 0) is None
    assert store.read(places(group, 4, BIG)) == [None, None]
    begun = store.claim(group, 0)
    assert (begun.position, begun.topic_id) == (0, "")
    after = moved_to(begun, 9)
    store.write(group, 0, (begun, after), {4: b"four", BIG: b"\0\xff"}, KEEP_MS)
    other = opened()
    assert other.standing(group, 0) == after
    assert other.read(places(group, BIG, 7, 4)) == [b"\0\xff", None, b"four"]
    assert other.standing(group, 2) is None
    # Of another epoch or definition nothing is known.
    assert other.read(places(group_of(tmp_path, 1), 4)) == [None]
    assert other.read(places(replace(group, definition=1), 4)) == [None]


def test_a_write_that_is_repeated_changes_nothing(opened: Open, tmp_path: Path) -> None:
    store, group = opened(), group_of(tmp_path)
    begun = store.claim(group, 0)
    after = moved_to(begun, 9)
    for _ in range(2):
        store.write(group, 0, (begun, after), {4: b"four"}, KEEP_MS)
    assert store.standing(group, 0) == after


def test_a_check_before_the_first_write_does_not_hinder_it(opened: Open, tmp_path: Path) -> None:
    store, group = opened(), group_of(tmp_path)
    begun = store.claim(group, 0)
    for moved in (
        (begun, begun),
        (begun, begun),
        (begun, moved_to(begun, 9)),
        (moved_to(begun, 9), moved_to(begun, 9)),
    ):
        store.write(group, 0, moved, {}, KEEP_MS)
    assert store.standing(group, 0) == moved_to(begun, 9)


def test_only_who_claimed_a_partition_last_writes_it(opened: Open, tmp_path: Path) -> None:
    store, group = opened(), group_of(tmp_path)
    begun = store.claim(group, 0)
    store.write(group, 0, (begun, moved_to(begun, 9)), {4: b"old"}, KEEP_MS)
    newer = opened().claim(group, 0)
    assert newer.position == 9
    assert newer.run != begun.run
    with pytest.raises(FoldOver, match="taken over by another process") as over:
        store.write(group, 0, (moved_to(begun, 9), moved_to(begun, 12)), {4: b"new", 5: b"x"}, KEEP_MS)
    assert "the newest continues" in over.value.help
    assert store.read(places(group, 4, 5)) == [b"old", None]
    assert store.standing(group, 0) == newer
    # Another partition is another process's.
    assert store.claim(group, 1).position == 0


def test_a_store_that_lost_its_last_writes_is_not_written_on(opened: Open, tmp_path: Path) -> None:
    store, group = opened(), group_of(tmp_path)
    begun = store.claim(group, 0)
    first, second = moved_to(begun, 9), moved_to(begun, 12)
    store.write(group, 0, (begun, first), {4: b"four"}, KEEP_MS)
    with pytest.raises(StatesLost, match="before 12"):
        store.write(group, 0, (second, moved_to(begun, 15)), {4: b"new"}, KEEP_MS)
    store.drop(group)
    with pytest.raises(StatesLost):
        store.write(group, 0, (first, second), {4: b"new"}, KEEP_MS)
    assert store.read(places(group, 4)) == [None]


def test_states_are_removed_dropped_and_expire(opened: Open, tmp_path: Path) -> None:
    store, group = opened(), group_of(tmp_path)
    begun = store.claim(group, 0)
    after = moved_to(begun, 9)
    store.write(group, 0, (begun, after), dict.fromkeys(range(1, 4), b"x"), KEEP_MS)
    assert store.remove(group, 0, [1, 7]) == 1
    assert store.remove(group, 0, []) == 0
    assert store.read(places(group, 1, 2)) == [None, b"x"]
    store.write(group, 0, (after, moved_to(begun, 10)), {9: b"short"}, 1)
    wait_until(lambda: store.read(places(group, 9, 3)) == [None, b"x"], "a state to expire")
    again = moved_to(begun, 10)
    store.write(group, 0, (again, moved_to(begun, 11)), {}, KEEP_MS)
    store.drop(group)
    assert store.read(places(group, 2, 3)) == [None, None]
    assert store.standing(group, 0) is None


def test_the_epoch_that_is_read_is_switched(opened: Open, tmp_path: Path) -> None:
    store, group = opened(), group_of(tmp_path)
    assert store.current(tmp_path.name, ENTITY) is None
    for epoch in (0, 3):
        store.switch(replace(group, epoch=epoch))
        assert opened().current(tmp_path.name, ENTITY) == replace(group, epoch=epoch)


def test_many_states_are_read_and_written_at_once(opened: Open, tmp_path: Path) -> None:
    store, group = opened(), group_of(tmp_path)
    begun, states = store.claim(group, 0), {key: str(key).encode() for key in range(5_000)}
    store.write(group, 0, (begun, moved_to(begun, 1)), states, KEEP_MS)
    assert store.read(places(group, *states)) == list(states.values())


def test_a_redis_that_is_away_is_told_in_time_without_its_password(
    own_redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sesame-open-wide"
    with open_state_store(folder_of(tmp_path, own_redis.url)) as store:
        store.claim(group_of(tmp_path), 0)
    monkeypatch.setenv("STREAMLEARN_FEATURES_PASSWORD", secret)
    own_redis.kill()
    with open_state_store(
        folder_of(tmp_path, own_redis.url), FeatureSettings(store=own_redis.url, reach_s=0.3)
    ) as store:
        began_s = time.monotonic()
        with pytest.raises(StatesUnreachable, match="do not answer") as caught:
            store.read(places(group_of(tmp_path), 1))
        assert time.monotonic() - began_s < 30
        assert secret not in str(caught.value) + store.url + repr(store)
    own_redis.restart()


def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "features.db"
    path.write_bytes(b"not a database at all" * 200)
    with (
        open_state_store(folder_of(tmp_path, f"sqlite://{path}")) as store,
        pytest.raises(StatesUnreachable, match="away"),
    ):
        store.claim(group_of(tmp_path), 0)
    assert path.read_bytes() == b"not a database at all" * 200


def test_a_file_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    with open_state_store(folder_of(tmp_path)) as store:
        store.claim(group_of(tmp_path), 0)
        files = list((tmp_path / ".streamlearn").iterdir())
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    shutil.rmtree(tmp_path / ".streamlearn")


@pytest.mark.parametrize("url", ["mysql://x", "sqlite://relative", "sqlite:///tmp/", "redis://"])
def test_an_invalid_url_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError):
        open_state_store(folder_of(tmp_path, url))
