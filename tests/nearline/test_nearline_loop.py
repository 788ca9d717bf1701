"""Lists of users who acted: once for all their actions, never lost, and behind all other requests."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from streamlearn.apps import AppFolder
from streamlearn.errors import FoldOver, StatesUnreachable, UsageError
from streamlearn.events.decoder import EventDecoder
from streamlearn.nearline.nearline_loop import NearlineLoop
from streamlearn.nearline.node_search import NodeSearch, Unfound
from streamlearn.nearline.user_features import UserFeatures
from streamlearn.online.candidate_lists import list_group
from streamlearn.settings import Settings
from streamlearn.testing import ManualClock, wait_until
from tests.nearline.shop import PARTITIONS, WAIT_S, NodeDouble, Shop, key_of, nearline_app, open_shop, settle
from tests.serving.item_history import finding_app


@pytest.fixture(params=["sqlite", "redis"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """An application whose lists are in a file, and in a Redis."""
    url = request.getfixturevalue("own_redis").url if request.param == "redis" else ""
    with open_shop(tmp_path, url) as shop:
        yield shop


@pytest.fixture
def filed(tmp_path: Path) -> Iterator[Shop]:
    """The same with a file."""
    with open_shop(tmp_path) as shop:
        yield shop


def opened(shop: Shop, node: NodeDouble, **more: Any) -> NearlineLoop:
    """A loop that asks a double."""
    return NearlineLoop(shop.folder, node, **more)  # type: ignore[arg-type]


def version_of(data: bytes | None) -> int:
    """The version that found a list."""
    return int(struct.unpack_from("<Q", data or b"", 16)[0])


def test_who_acted_gets_a_list_found_with_all_features(shop: Shop) -> None:
    shop.show(1, 2, 3)
    shop.act(1, 2)
    shop.act(3, kind="impression")  # was shown something, and did nothing
    shop.fold()
    node = NodeDouble()
    with opened(shop, node) as loop:
        settle(loop)
        assert (loop.counts.refreshed, loop.counts.unknown) == (2, 0)
    assert [version_of(data) for data in shop.lists(1, 2)] == [4, 4]
    assert shop.lists(3) == [None]
    inputs = node.asked[0][1]
    assert inputs["country"].values == ["NO"]
    # Computed as of now, and not as the impression had it.
    assert float(inputs["idle"].numbers[0]) > 1e6


def test_many_actions_of_a_user_make_one_list(tmp_path: Path) -> None:
    clock, node = ManualClock(), NodeDouble()
    with open_shop(tmp_path, settle_ms=1_000) as shop:
        shop.show(1)
        shop.act(1)
        shop.fold()
        with opened(shop, node, clock=clock) as loop:
            wait_until(lambda: not loop.step(), "reading", WAIT_S)
            for _ in range(5):
                clock.sleep(0.15)
                shop.act(1, 1)
                wait_until(lambda: not loop.step(), "reading", WAIT_S)
            assert node.asked == []
            clock.sleep(1.0)
            settle(loop)
            assert (node.users, loop.counts.refreshed) == ([1], 1)


def test_the_newest_impression_says_what_a_user_is(filed: Shop) -> None:
    filed.show(1, country="NO")
    filed.show(1, country="SE")
    filed.act(1)
    filed.fold()
    node = NodeDouble()
    with opened(filed, node) as loop:
        settle(loop)
        filed.show(1, country="DK")
        filed.act(1)
        settle(loop)
    assert [asked[1]["country"].values for asked in node.asked] == [["SE"], ["DK"]]


def test_users_of_whom_nothing_is_known_are_counted(filed: Shop) -> None:
    filed.show(1)
    filed.act(1, 2)
    filed.fold()
    node = NodeDouble()
    with opened(filed, node) as loop:
        settle(loop)
        assert (node.users, loop.counts.unknown, loop.counts.refreshed) == ([1], 1, 1)


def test_a_busy_node_is_asked_later_and_for_fewer_users(filed: Shop) -> None:
    users = [*range(1, 33)]
    filed.show(*users)
    filed.act(*users)
    filed.fold()
    clock, answers = ManualClock(), iter([False] * 3 + [True] * 99)
    node = NodeDouble()
    is_free = [True]
    node.search = lambda user: None if is_free[0] else Unfound.LATER
    with opened(filed, node, clock=clock) as loop:

        def asks(before: int) -> bool:
            loop.step()
            return len(node.asked) > before

        for _ in range(3):
            is_free[0] = next(answers)
            before = len(node.asked)
            wait_until(partial(asks, before), "an ask", WAIT_S)
            loop.step()
            wait_s = 0.1 * 2 ** (len(node.asked) - 1)
            for _ in range(3):
                loop.step()
            assert len(node.asked) == before + 1, "it waits before it asks again"
            clock.sleep(wait_s)
        is_free[0] = True
        settle(loop)
        assert [len(asked) for asked in node.asked[:4]] == [32, 16, 8, 4]
        assert (loop.counts.refreshed, loop.counts.postponed) == (32, 56)
    assert None not in filed.lists(*users)


def test_a_request_that_is_wrong_is_not_sent_again(filed: Shop) -> None:
    filed.show(1, 2)
    filed.act(1, 2)
    filed.fold()
    node = NodeDouble(search=lambda user: Unfound.WRONG if user == 1 else None)
    with opened(filed, node) as loop:
        settle(loop)
        assert (loop.counts.wrong, loop.counts.refreshed, len(node.asked)) == (1, 1, 1)


def test_a_user_at_whose_request_nodes_fail_again_and_again_holds_up_nobody(filed: Shop) -> None:
    users = [*range(1, 9)]
    filed.show(*users)
    filed.act(*users)
    filed.fold()
    clock, node = ManualClock(), NodeDouble(search=lambda user: Unfound.FAILED if user in (1, 5) else None)
    with opened(filed, node, clock=clock) as loop:

        def are_done(refreshed: int) -> bool:
            clock.sleep(1.0)
            loop.step()
            return (loop.counts.refreshed, loop.counts.wrong) == (refreshed, 2)

        wait_until(partial(are_done, 6), "the others", WAIT_S)
        assert loop.counts.postponed == 2
        assert [node.users.count(user) for user in users] == [2, 1, 1, 1, 2, 1, 1, 1]
        # One who acts again is asked for again.
        node.search = lambda user: None
        filed.act(1)
        wait_until(partial(are_done, 7), "the list", WAIT_S)
    assert [data is None for data in filed.lists(1, 5)] == [False, True]


def test_the_failure_of_a_node_is_told_from_a_request_that_is_wrong() -> None:
    refusals = [("INTERNAL", "broken", None), ("INVALID_ARGUMENT", "wrong", None), ("UNAVAILABLE", "", None)]
    lists = NodeSearch(nearline_app(), 5, list).lists([1, 2, 3, 4], [*refusals, (None, "", None)])
    assert lists == [Unfound.FAILED, Unfound.WRONG, Unfound.LATER, Unfound.LATER]


def test_a_process_that_ends_anywhere_leaves_no_user_without_a_list(filed: Shop) -> None:
    filed.show(1, 2, 3)
    filed.fold()
    filed.act(1, 2)
    filed.fold()
    for steps in range(5):
        # Not closed, and written nothing after its last step, as if it had been killed.
        killed = opened(filed, NodeDouble(version=steps + 10))
        for _ in range(steps):
            killed.step()
    filed.act(3)
    filed.fold()
    node = NodeDouble(version=99)
    with opened(filed, node) as loop:
        settle(loop)
        assert 3 in node.users
    assert None not in filed.lists(1, 2, 3)
    # Another one finds nothing left to do.
    last = NodeDouble()
    with opened(filed, last) as loop:
        settle(loop)
    assert last.asked == []


def test_lists_of_one_kind_are_not_read_as_those_of_the_other(filed: Shop) -> None:
    filed.show(1)
    filed.act(1)
    filed.fold()
    settings = filed.folder.settings
    ranked = structs.replace(settings, retrieval=structs.replace(settings.retrieval, nearline="ranked"))
    for version, now in ((4, settings), (5, ranked)):
        filed.folder = replace(filed.folder, settings=now)
        assert filed.lists(1) == [None]
        with opened(filed, NodeDouble(version=version)) as loop:
            settle(loop)
        assert version_of(*filed.lists(1)) == version
    filed.folder = replace(filed.folder, settings=settings)
    assert version_of(*filed.lists(1)) == 4


def test_a_store_that_lost_all_gets_all_lists_again(shop: Shop) -> None:
    shop.show(1, 2)
    shop.act(1, 2)
    shop.fold()
    node = NodeDouble()
    with opened(shop, node) as loop:
        settle(loop)
        shop.store.drop(list_group(shop.folder, 2))
        assert shop.lists(1, 2) == [None, None]
        wait_until(lambda: (loop.step(), loop.counts.refreshed)[1] == 4, "the lists", WAIT_S)
    assert None not in shop.lists(1, 2)


def test_a_newer_process_ends_an_older_one(filed: Shop) -> None:
    filed.show(1)
    filed.act(1)
    filed.fold()
    with opened(filed, NodeDouble()) as old, opened(filed, NodeDouble()) as new:
        settle(old)
        settle(new)
        with pytest.raises(FoldOver, match="taken over"):
            wait_until(lambda: old.step() and False, "the end", WAIT_S)


def test_while_the_store_is_away_nothing_is_lost(tmp_path: Path, own_redis: Any) -> None:
    with open_shop(tmp_path, own_redis.url) as shop:
        shop.show(1, 2)
        shop.act(1)
        shop.fold()
        features = structs.replace(shop.folder.settings.features, reach_s=2.0)
        hasty = replace(shop.folder, settings=structs.replace(shop.folder.settings, features=features))
        with opened(replace(shop, folder=hasty), NodeDouble()) as loop:

            def is_settled() -> bool:
                try:
                    return not loop.step() and loop.behind_s == 0
                except StatesUnreachable:  # it is slow
                    return False

            wait_until(is_settled, "the first lists", WAIT_S)
            own_redis.kill()
            shop.act(2)
            with pytest.raises(StatesUnreachable):
                wait_until(lambda: loop.step() and False, "the store is missed", WAIT_S)
            own_redis.launch()  # with nothing in it
            shop.fold()

            def is_refreshed() -> bool:
                try:
                    loop.step()
                    return None not in shop.lists(1, 2)
                except StatesUnreachable:
                    return False

            wait_until(is_refreshed, "the lists", WAIT_S)


def test_messages_that_cannot_be_read_are_counted_and_passed(filed: Shop) -> None:
    filed.show(1)
    with filed.actions.writer() as writer:
        writer.append(0, [b"", b"\xff" * 40])
    filed.act(1)
    filed.fold()
    with opened(filed, NodeDouble()) as loop:
        settle(loop)
        assert (loop.counts.messages_bad, loop.counts.refreshed) == (2, 1)


@pytest.mark.parametrize(
    ("app", "lists", "text"),
    [
        (replace(nearline_app(), retrieval=None), "found", "no retrieval"),
        (finding_app(), "ranked", "no interactions"),
        (nearline_app(), "off", "retrieval.nearline is off"),
    ],
)
def test_an_application_without_what_lists_need_is_refused(app: Any, lists: Any, text: str, tmp_path: Path) -> None:
    settings = Settings()
    retrieval = type(settings.retrieval)(nearline=lists)
    folder = AppFolder(app, tmp_path, type(settings)(retrieval=retrieval))
    with pytest.raises(UsageError, match=text) as error:
        list_group(folder)
    assert error.value.help


def test_users_of_the_oldest_impressions_are_forgotten_first(filed: Shop) -> None:
    for first in range(0, 40, 10):
        filed.show(*range(first, first + 10))
    decoder = EventDecoder.of(filed.folder)
    with filed.impressions.reader() as reader:
        values = [value for partition in range(PARTITIONS) for value in reader.read(partition, 0).values]
    parts = [decoder.decode([value]).impressions.columns for value in values]

    towers = filed.folder.app.towers
    assert towers is not None

    def known(bytes_max: int, parts: Sequence[Any]) -> tuple[set[int], int]:
        features = UserFeatures(filed.folder.app.features, towers, bytes_max)
        for part in parts:
            features.add(part)
            assert features.bytes <= max(bytes_max, 10_000)
        return {user for user in range(40) if features.of(key_of(user)) is not None}, features.bytes

    everybody, size = known(1 << 30, parts)
    assert everybody == {*range(40)}
    # Those who are shown something once more are the newest, and are known once.
    of_first, _ = known(1 << 30, parts[:1])
    some, _ = known(size, [*parts, parts[0]])
    assert of_first <= some
    last, _ = known(1, parts)
    assert last == known(1 << 30, parts[-1:])[0]
