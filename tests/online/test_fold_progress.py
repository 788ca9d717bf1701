"""How far interactions are folded, as those see it who do not fold."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import structs

from streamlearn.apps import AppFolder
from streamlearn.errors import ServiceError, StatesUnreachable, TopicMissing
from streamlearn.online import FoldLoop, StateGroup, StateStore, open_state_store
from streamlearn.online.fold_progress import FoldProgress, fold_facts, read_progress
from streamlearn.topics import delete_topic
from tests.online.shop import PARTITIONS, folder_of, some, topic_of, write

AWAY = "redis://127.0.0.1:1"


@pytest.fixture
def shop(tmp_path: Path) -> AppFolder:
    return folder_of(tmp_path, f"sqlite://{tmp_path}/features.db")


def read(shop: AppFolder) -> list[FoldProgress]:
    with open_state_store(shop) as store:
        return read_progress(shop, store)


def fold(shop: AppFolder) -> None:
    with FoldLoop(shop) as loop:
        while loop.step():
            pass


def within(shop: AppFolder, reach_s: float) -> AppFolder:
    settings = shop.settings
    return replace(shop, settings=structs.replace(settings, topics=structs.replace(settings.topics, reach_s=reach_s)))


def test_messages_are_left_until_they_are_folded_for_users_and_for_items(shop: AppFolder) -> None:
    batch = some(200)
    with topic_of(shop) as topic:
        write(topic, batch)
        before = read(shop)
        assert [(one.entity.side, one.group, one.claimed, one.newest_ms) for one in before] == [
            ("user", None, 0, 0),
            ("item", None, 0, 0),
        ]
        assert all(one.behind == one.messages > PARTITIONS for one in before)
        fold(shop)
        after = read(shop)
        assert [(one.behind, one.claimed, one.partitions) for one in after] == [(0, PARTITIONS, PARTITIONS)] * 2
        assert [one.messages for one in after] == [one.messages for one in before]
        assert after[0].newest_ms == batch.event_time_ms.max()
        write(topic, some(1, seed=1))
        assert [one.behind for one in read(shop)] == [2, 2], "one for users and one for items, each read by both"
        facts = fold_facts(shop)
        assert facts is not None
        assert (facts["behind"], facts["newest_ms"], facts["error"]) == (4, after[0].newest_ms, "")
        assert facts["store"].endswith("/features.db")
    delete_topic(shop.topic_url("interactions"))


def test_of_a_topic_that_was_replaced_nothing_is_folded(shop: AppFolder) -> None:
    for _ in range(2):
        with topic_of(shop) as topic:
            write(topic, some(100))
            found = read(shop)
            assert [(one.claimed, one.behind, one.newest_ms) for one in found] == [(0, found[0].messages, 0)] * 2
            if found[0].group is None:
                fold(shop)
                assert [one.behind for one in read(shop)] == [0, 0]
        delete_topic(shop.topic_url("interactions"))


def test_a_store_that_is_away_is_named_before_a_topic_that_is_missing(tmp_path: Path) -> None:
    away = folder_of(tmp_path, AWAY)
    with pytest.raises(StatesUnreachable):
        read(away)
    facts = fold_facts(away)
    assert facts is not None
    assert (facts["store"], facts["behind"]) == (f"{AWAY}/0", 0)
    assert "do not answer" in facts["error"]
    with pytest.raises(TopicMissing):
        read(folder_of(tmp_path, f"sqlite://{tmp_path}/features.db"))
    wrong = fold_facts(folder_of(tmp_path, "nonsense://"))
    assert wrong is not None
    assert (wrong["store"], "unknown URL" in wrong["error"]) == ("", True)


def test_a_store_that_hangs_is_given_up_in_time_and_its_password_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMLEARN_FEATURES_PASSWORD", "a-secret")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        shop = within(folder_of(tmp_path, f"redis://{address}"), 0.1)
        patient = structs.replace(shop.settings.features, reach_s=600.0)
        begin_s = time.monotonic()
        facts = fold_facts(replace(shop, settings=structs.replace(shop.settings, features=patient)))
        assert time.monotonic() - begin_s < 60.0, "of the 600 that a call to the store may take"
    assert facts is not None
    assert (address in facts["store"], address in facts["error"], "a-secret" in str(facts)) == (True, True, False)


def test_a_store_that_answers_slowly_for_many_partitions_is_given_up_too(
    shop: AppFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, asked = [0.0], list[int]()

    def standing(_: StateStore, group: StateGroup, partition: int) -> None:
        now_s[0] += 0.4
        asked.append(partition)

    monkeypatch.setattr("streamlearn.online.fold_progress.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    with open_state_store(shop) as store:
        store.switch(StateGroup.of(shop.app.name, shop.app.features.entities[0], 100_000))
        monkeypatch.setattr(type(store), "standing", standing)
        with pytest.raises(ServiceError, match=r"not all partitions were read within topics.reach_s"):
            read_progress(within(shop, 1.0), store)
    assert asked == [0, 1, 2]
