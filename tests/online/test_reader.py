"""Computed columns for callers in Python: what they are, and that a store which is away fails no call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as Client

from streamlearn.apps import AppFolder
from streamlearn.features import FeatureSpec, Slot
from streamlearn.online import FeatureReader, FoldLoop, StateGroup, open_state_store
from streamlearn.testing import ManualClock, wait_until
from streamlearn.topics import delete_topic
from tests.online.shop import PARTITIONS, SPEC, T_MS, batch_of, folder_of, topic_of, write
from tools.services import Redis

MINUTE_MS = 60_000
ROWS = [
    ("impression", 1, 10, T_MS, float("nan")),
    ("impression", 1, 11, T_MS, float("nan")),
    ("click", 1, 10, T_MS + 2_000, float("nan")),
    ("order", 1, 10, T_MS + 5_500, 12.5),
    ("click", 1, 11, T_MS + 4_000, float("nan")),
    ("impression", 2, 10, T_MS + 1_000, float("nan")),
    ("order", 2, 10, T_MS + 9_000, 2.0),
]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[AppFolder]:
    made = folder_of(tmp_path)
    with topic_of(made) as topic:
        write(topic, batch_of(ROWS))
        with closing(FoldLoop(made)) as loop:
            while loop.behind:
                loop.step()
        yield made
        delete_topic(topic.url)


def test_columns_are_those_of_what_was_done_before_that_time(folder: AppFolder) -> None:
    with FeatureReader(folder) as reader:
        users = reader.users([1, 2, 3], at_ms=T_MS + 8_000)
        assert users.outcomes == ("known", "known", "unknown")
        assert users.values == {
            "seen": [[10, 11], [], []],
            "pause": [4, 3, -1],  # 8 s and 7 s
            "counts": [[2.0, 2.0, 2.0, 2.0], [1.0, 1.0, 0.0, 0.0], [0.0] * 4],
            "spent": [12.5, 2.0, 0.0],  # the tile of a window of seven days is hours long
            "idle": [2.5, 0.0, -1],
        }
        items = reader.items([10, 11, 12], at_ms=T_MS + 10_000)
        assert items.outcomes == ("known", "known", "unknown")
        assert items.values == {"buyers": [[1, 2], [], []], "rate": pytest.approx([2 / 6, 2 / 5, 0.25])}
        assert items.row(0) == {"buyers": [1, 2], "rate": pytest.approx(2 / 6)}


def test_a_request_gets_what_it_lacks_and_keeps_what_it_has(folder: AppFolder) -> None:
    with FeatureReader(folder) as reader:
        user: dict[str, Any] = {"user_id": 1, "pause": 7}
        items: list[dict[str, Any]] = [{"item_id": 10}, {"item_id": 12, "rate": 0.5}]
        assert reader.fill(user, items, at_ms=T_MS + 8_000).outcome == "known"
        assert (user["pause"], user["seen"]) == (7, [10, 11])
        assert [item["rate"] for item in items] == [pytest.approx(2 / 6), 0.5]
        assert [item["buyers"] for item in items] == [[1], []]
        assert reader.fill({"user_id": 77}, [{"item_id": 10}]).outcome == "unknown"
        assert reader.fill({"user_id": 1}, []).outcome == "known"


def test_an_application_without_such_columns_gets_none(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    plain = FeatureSpec(slots=(Slot("user_id", "user"), Slot("item_id", "item")), item_id="item_id")
    with FeatureReader(replace(folder, app=replace(folder.app, features=plain))) as reader:
        assert reader.users([1, 2]).values == {}


def test_before_anything_is_folded_columns_are_unavailable(tmp_path: Path) -> None:
    with FeatureReader(folder_of(tmp_path)) as reader:
        found = reader.users([1])
        assert found.outcomes == ("unavailable",)
        assert found.row(0) == {"seen": [], "pause": -1, "counts": [0] * 4, "spent": 0, "idle": -1}


def test_a_request_that_lacks_nothing_asks_nothing(tmp_path: Path) -> None:
    user = {"user_id": 1, "seen": [], "pause": -1, "counts": [0.0] * 4, "spent": 0.0, "idle": 1.0}
    with FeatureReader(folder_of(tmp_path, "redis://127.0.0.1:1")) as reader:
        filled = reader.fill(dict(user), [{"item_id": 5, "buyers": [], "rate": 0.5}])
        assert (filled.outcome, filled.of_impression()) == ("", {"served_features": ""})
        assert reader.fill(dict(user), [{"item_id": 5}]).outcome == "unavailable"


def test_a_store_that_is_away_gives_defaults_at_once_and_is_asked_again(own_redis: Redis, tmp_path: Path) -> None:
    folder, clock = folder_of(tmp_path, own_redis.url), ManualClock()
    with topic_of(folder) as topic:
        write(topic, batch_of(ROWS))
        with closing(FoldLoop(folder)) as loop:
            while loop.behind:
                loop.step()
        delete_topic(topic.url)
    with FeatureReader(folder, wait_s=5.0, clock=clock) as reader:

        def is_known() -> bool:
            clock.sleep(1.5)
            return reader.users([1], T_MS + 8_000).outcomes == ("known",)

        wait_until(is_known, "the store to answer")
        own_redis.kill()
        defaults = {"seen": [], "pause": -1, "counts": [0] * 4, "spent": 0, "idle": -1}
        found = reader.users([1], T_MS + 8_000)
        assert (found.outcomes, found.row(0)) == (("unavailable",), defaults)
        assert reader.fill({"user_id": 1}, [{"item_id": 10}]).outcome == "unavailable"
        began_s = time.monotonic()
        for _ in range(1_000):
            reader.users([1])
        assert time.monotonic() - began_s < 60.0  # it is not asked
        own_redis.restart()
        assert reader.users([1]).outcomes == ("unavailable",)

        def answers() -> bool:
            clock.sleep(1.5)
            # It came back with nothing, or with all that it had.
            return reader.users([1], T_MS + 8_000).outcomes in (("known",), ("unknown",))

        wait_until(answers, "the store to be asked again")


def test_a_state_that_cannot_be_read_counts_as_none(folder: AppFolder) -> None:
    with open_state_store(folder) as store:
        entity = SPEC.entities[0]
        group = StateGroup.of("shop", entity, PARTITIONS)
        with FeatureReader(folder) as reader:
            key = int(batch_of(ROWS).user[0])
            partition = key % PARTITIONS
            before = store.claim(group, partition)
            store.write(group, partition, (before, before), {key: b"SLF2 and nothing else"}, MINUTE_MS)
            found = reader.users([1], T_MS + 8_000)
            assert (found.outcomes, reader.states_bad) == (("unknown",), 1)
            assert found.values["seen"] == [[]]


def test_a_connection_that_ended_between_two_calls_is_made_again(own_redis: Redis, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, own_redis.url)
    with topic_of(folder) as topic, closing(FoldLoop(folder)) as loop:
        write(topic, batch_of([("click", 1, 11, T_MS, 0.0)]))
        while loop.behind:
            loop.step()
    with FeatureReader(folder, wait_s=60.0) as reader, closing(Client.from_url(own_redis.url)) as client:
        for _ in range(3):
            assert reader.users([1], T_MS + 1).outcomes == ("known",)
            client.client_kill_filter(_type="normal", skipme=True)
    delete_topic(topic.url)
