"""A node computes the columns that requests lack: as readers in Python do, and as impressions say it."""

from __future__ import annotations

import json
import struct
import time
import urllib.error
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest
import redis

from streamlearn.apps import AppFolder
from streamlearn.events import EventColumns, EventDecoder
from streamlearn.features import keys_of
from streamlearn.online import FeatureReader, FoldLoop, StateGroup, check_served, open_state_store
from streamlearn.online.served_check import ServedCheck
from streamlearn.serving.node_features import NodeFeatures
from streamlearn.testing import wait_until
from streamlearn.topics import TopicSettings, create_topic, delete_topic
from tests.online.shop import PARTITIONS, SPEC, batch_of, folder_of, topic_of, write
from tests.serving.inference import answer_class, request_class
from tests.serving.test_written_back import Rig
from tools.services import Redis

COMPUTED = {"user": ("seen", "pause", "counts", "spent", "idle"), "item": ("buyers", "rate")}
MINUTE_MS = 60_000


class Shop:
    """A node of the application with computed columns, whose interactions were folded lately."""

    def __init__(self, path: Path, store: str, *, kept: bool = False, folded: bool = True) -> None:
        self.now_ms = round(1_000 * time.time())
        folder = folder_of(path, store)
        settings = msgspec.structs.replace(
            folder.settings,
            # A slow machine must not make a store that answers unavailable.
            features=msgspec.structs.replace(folder.settings.features, wait_s=20.0),
            events=msgspec.structs.replace(folder.settings.events, linger_ms=1),
            impressions=msgspec.structs.replace(folder.settings.impressions, write_back=True, flush_s=120.0),
        )
        self.folder: AppFolder = replace(folder, settings=settings)
        self.impressions = create_topic(folder.topic_url("impressions"), TopicSettings(partitions=1))
        self.topic = topic_of(folder)
        write(self.topic, batch_of(self.rows()))
        if folded:
            with closing(FoldLoop(folder)) as loop:
                while loop.behind:
                    loop.step()
        if not kept:
            delete_topic(self.topic.url)
        self.rig = Rig(self.folder)
        self.features = NodeFeatures(self.folder, self.rig.front)
        self.features.start(self.rig.node)

    def rows(self) -> list[tuple[str, int, int, int, float]]:
        nan, ms = float("nan"), self.now_ms - MINUTE_MS
        clicks = [("click", 1, item, ms + 100 * item, nan) for item in (10, 11, 12)]
        shown = [("impression", user, 10 + user, ms + user, nan) for user in (1, 2)]
        return [*clicks, *shown, ("order", 1, 10, ms + 5_500, 12.5), ("order", 2, 10, ms + 9_000, 2.0)]

    def score(self, **given: Any) -> dict[str, Any]:
        return self.rig.post("/score", {"features": True} | given)

    def figures(self) -> dict[str, int]:
        names = ("known", "unknown", "unavailable", "sent")
        return dict(zip(names, self.features.native.figures().requests, strict=True))

    def written(self) -> EventColumns:
        with self.impressions.reader() as reader:
            found = EventDecoder.of(self.folder).decode(reader.read(0, 0).values)
        assert found.failures == ()
        return found.impressions

    def wait_written(self) -> None:
        answered = sum(self.figures().values())
        wait_until(lambda: len(self.written()) >= answered, "impressions")

    def close(self) -> None:
        self.rig.close()
        self.features.close()
        self.topic.close()
        self.impressions.close()
        delete_topic(self.impressions.url)


@pytest.fixture(params=["file", "redis"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    store = f"sqlite:///{tmp_path}/states.db" if request.param == "file" else request.getfixturevalue("own_redis").url
    made = Shop(tmp_path, store)
    wait_known(made)
    yield made
    made.close()


def wait_known(shop: Shop) -> None:
    wait_until(lambda: by_rows(shop, 1, 10)["served_features"] == "known", "states to be read")


def of_impression(columns: EventColumns, row: int) -> dict[str, Any]:
    """What an impression with one item says of computed columns, in the form of an answer."""
    arrays = columns.columns

    def value(path: str, at: int) -> Any:
        ends = arrays.get(f"{path}[]")
        found = arrays[path][at].tolist() if ends is None else arrays[path][ends[at] : ends[at + 1]].tolist()
        return found

    def optional(path: str, at: int) -> Any:
        return value(path, at) if arrays[f"{path}?"][at] else None

    item = int(arrays["items[]"][row])
    return {
        "served_features": columns.texts("served_features")[row],
        "served_at_ms": optional("served_at_ms", row),
        "served_states": optional("served_states", row),
        "served_position": optional("served_position", row),
        "user": {name: value(f"user.{name}", row) for name in COMPUTED["user"]},
        "items": [
            {name: value(f"items.{name}", item) for name in COMPUTED["item"]}
            | {"served_position": optional("items.served_position", item)}
        ],
    }


def by_tensors(shop: Shop, user: int, item: int) -> Any:
    inputs = [{"name": name, "datatype": "INT64", "shape": [1], "data": [value]}
              for name, value in (("user_id", user), ("item_id", item))]  # fmt: skip
    answer = shop.rig.post("/v2/models/shop/infer", {"inputs": inputs, "parameters": {"features": True}})
    return json.loads(answer["parameters"]["features"])


def by_grpc(shop: Shop, user: int, item: int) -> Any:
    request = request_class(model_name="shop")
    request.parameters.add(key="features").value.bool_param = True
    for name, value in (("user_id", user), ("item_id", item)):
        request.inputs.add(name=name, datatype="INT64", shape=[1])
        request.raw_input_contents.append(struct.pack("<q", value))
    with grpc.insecure_channel(shop.rig.node.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer = answer_class.FromString(infer(request.SerializeToString(), timeout=120))
    (said,) = answer.parameters
    assert said.key == "features"
    return json.loads(said.value.string_param)


def by_rows(shop: Shop, user: int, item: int) -> Any:
    return shop.score(user={"user_id": user}, items=[{"item_id": item}])["features"]


def test_all_ways_compute_what_a_reader_does_and_impressions_say_the_same(shop: Shop) -> None:
    answers = []
    with FeatureReader(shop.folder, wait_s=60.0) as reader:
        for user, item in ((1, 10), (2, 11), (77, 10), (1, 99)):
            for ask in (by_rows, by_tensors, by_grpc):
                found = ask(shop, user, item)
                asked, items = {"user_id": user}, [{"item_id": item}]
                filled = reader.fill(asked, items, found["served_at_ms"])
                computed = filled.of_impression(items)
                assert found["served_features"] == filled.outcome == ("unknown" if user == 77 else "known")
                del asked["user_id"], items[0]["item_id"]
                rounded = json.loads(json.dumps(computed | {"user": asked, "items": items}))
                assert as_float32(found) == as_float32(rounded)
                answers.append(found)
    seen = [answer["user"]["seen"] for answer in answers[::3]]
    assert seen == [[10, 11, 12], [], [], [10, 11, 12]]
    shop.rig.close()
    written = shop.written()
    found = [of_impression(written, row) for row in range(len(written))][-len(answers) :]
    assert list(map(as_float32, found)) == list(map(as_float32, answers))


def as_float32(value: Any) -> Any:
    """The same with numbers as columns have them."""
    if isinstance(value, dict):
        return {name: as_float32(one) for name, one in value.items()}
    if isinstance(value, list):
        return [as_float32(one) for one in value]
    return float(np.float32(value)) if isinstance(value, float) else value


def test_a_value_that_a_caller_sends_wins(shop: Shop) -> None:
    answer = shop.score(user={"user_id": 1, "spent": 3.5}, items=[{"item_id": 10, "rate": 0.75, "buyers": [5]}])
    found = answer["features"]
    assert "spent" not in found["user"]
    assert found["user"]["seen"] == [10, 11, 12]
    assert (found["items"], found["served_position"]) == ([{}], None)
    before = shop.figures()["sent"]
    whole = dict(zip(COMPUTED["user"], ([10], 3, [1.0] * 4, 2.5, 1.0), strict=True))
    answer = shop.score(user={"user_id": 1, **whole}, items=[{"item_id": 10, "rate": 0.75, "buyers": []}])
    assert "features" not in answer
    assert shop.figures()["sent"] == before + 1
    shop.rig.close()
    written = shop.written()
    last, whole_said = of_impression(written, len(written) - 2), of_impression(written, len(written) - 1)
    assert last["items"] == [{"buyers": [5], "rate": 0.75, "served_position": None}]
    assert (whole_said["user"], whole_said["served_features"]) == (whole, "")


def test_a_column_of_some_items_alone_is_refused(shop: Shop) -> None:
    for items in ([{"item_id": 10, "rate": 0.5}, {"item_id": 11}], [{"item_id": 10}, {"item_id": 11, "rate": 0.5}]):
        with pytest.raises(urllib.error.HTTPError) as refused:
            shop.score(user={"user_id": 1}, items=items)
        text = refused.value.read().decode()
        assert "items[1].rate" in text
        assert "only some items have it" in text


def test_before_anything_is_folded_columns_are_unavailable_and_the_node_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Shop(tmp_path, f"sqlite:///{tmp_path}/states.db", folded=False)) as shop:
        assert by_rows(shop, 1, 10)["served_features"] == "unavailable"
        wait_until(lambda: "no interactions of shop were ever folded" in caplog.text, "a line of the log")


def test_a_node_says_why_it_cannot_read_a_redis(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(Shop(tmp_path, f"sqlite:///{tmp_path}/states.db")) as shop:
        settings = msgspec.structs.replace(shop.folder.settings.features, store="redis://127.0.0.1:1")
        changed = msgspec.structs.replace(shop.folder.settings, features=settings)
        features = NodeFeatures(replace(shop.folder, settings=changed), shop.rig.front)
        assert features.native.figures().error == "it was not connected yet"
        features.start(shop.rig.node)
        wait_until(lambda: "Connection refused" in caplog.text, "a line of the log")
        features.close()


def test_requests_of_short_deadlines_keep_nobody_else_from_reading(shop: Shop) -> None:
    for _ in range(20):
        with suppress(urllib.error.HTTPError):
            shop.score(user={"user_id": 1}, items=[{"item_id": 10}], timeout=1)
    assert by_rows(shop, 1, 10)["served_features"] == "known"


def test_items_are_read_once_and_then_come_from_the_cache(shop: Shop) -> None:
    firsts = count(200, 60)

    def are_cached() -> bool:
        first = next(firsts)
        items = [{"item_id": item} for item in range(first, first + 60)]
        before = shop.features.native.figures().items
        for _ in range(2):
            shop.score(user={"user_id": 1}, items=items)
        cached, read = np.subtract(shop.features.native.figures().items, before)
        assert cached + read == 120
        assert read >= 60
        return bool(cached > 0)

    # On a machine that stalls, they may be too old when they are asked for again.
    wait_until(are_cached, "items to come from the cache")


def test_states_that_cannot_be_read_count_as_none(own_redis: Redis, tmp_path: Path) -> None:
    with closing(Shop(tmp_path, own_redis.url)) as shop, closing(redis.Redis.from_url(own_redis.url)) as client:
        wait_known(shop)
        key = int(keys_of(SPEC.slot("user_id"), [1])[0])
        group = StateGroup.of("shop", SPEC.entities[0], PARTITIONS)
        name = f"streamlearn:{{{group.name}:{key % PARTITIONS}}}:s:{key:016x}"
        whole = client.get(name)
        assert isinstance(whole, bytes)
        wrongs = [b"", b"SLF2", whole[:-1], whole + b"x", b"SLF1" + whole[4:], whole[:4] + bytes(8) + whole[12:],
                  bytes(len(whole)), b"\xff" * (8 << 20), whole[:40] + b"\xff" * 200 + whole[240:]]  # fmt: skip
        for wrong in wrongs:
            client.set(name, wrong)
            found = by_rows(shop, 1, 10)
            assert (found["served_features"], found["user"]["seen"], found["served_position"]) == ("unknown", [], -1)
        assert shop.features.native.figures().states_bad == len(wrongs)
        client.set(name, whole)
        assert by_rows(shop, 1, 10)["user"]["seen"] == [10, 11, 12]


def test_states_that_are_folded_again_from_the_beginning_are_not_read(shop: Shop) -> None:
    with open_state_store(shop.folder) as store:
        groups = [group for entity in SPEC.entities if (group := store.current("shop", entity))]
        for group in groups:
            store.switch(replace(group, fills=True))
        wait_until(lambda: by_rows(shop, 1, 10)["served_features"] == "unavailable", "states to be left alone")
        for group in groups:
            store.filled(replace(group, epoch=7))  # of a rebuild that is not the current one
            current = store.current("shop", SPEC.entities[0])
            assert current is not None
            assert current.fills
        for group in groups:
            store.filled(group)
        wait_known(shop)


def test_while_the_store_is_away_requests_get_defaults_and_impressions_say_so(own_redis: Redis, tmp_path: Path) -> None:
    with closing(Shop(tmp_path, own_redis.url)) as shop:
        wait_known(shop)
        began_s = time.monotonic()
        for _ in range(50):
            by_rows(shop, 1, 10)
        with_store_s = time.monotonic() - began_s
        own_redis.kill()
        found = by_rows(shop, 1, 10)
        assert (found["served_features"], found["user"], found["items"]) == ("unavailable", {}, [{}])
        began_s = time.monotonic()
        for _ in range(50):
            assert by_rows(shop, 1, 10)["served_features"] == "unavailable"
        assert time.monotonic() - began_s < 30.0 + 4 * with_store_s, "it is not waited for"
        own_redis.restart()
        wait_until(lambda: by_rows(shop, 1, 10)["served_features"] != "unavailable", "the store to be asked")
        shop.rig.close()
        written = shop.written()
        said = [of_impression(written, row) for row in range(len(written))]
        away = [one for one in said if one["served_features"] == "unavailable"]
        assert len(away) >= 51
        assert away[0]["user"] == {"seen": [], "pause": -1, "counts": [0.0] * 4, "spent": 0.0, "idle": -1.0}
        assert (away[0]["served_at_ms"], away[0]["served_position"]) == (None, None)


def test_a_check_finds_what_was_served_in_the_interactions_and_whatever_differs(
    own_redis: Redis, tmp_path: Path
) -> None:
    with closing(Shop(tmp_path, own_redis.url, kept=True)) as shop:
        wait_known(shop)
        rng = np.random.default_rng(3)
        # More interactions while it answers, so that positions differ.
        with closing(FoldLoop(shop.folder)) as loop:
            for turn in range(30):
                kinds = rng.choice(["click", "order", "impression"], 20)
                users, items = rng.integers(0, 6, 20).tolist(), rng.integers(8, 14, 20).tolist()
                rows = [
                    (str(kind), user, item, shop.now_ms - 1_000 * (30 - turn), float(user))
                    for kind, user, item in zip(kinds, users, items, strict=True)
                ]
                write(shop.topic, batch_of(rows, first=100 + 20 * turn), rows_max=3)
                while loop.behind:
                    loop.step()
                for user in range(7):
                    shop.score(user={"user_id": user}, items=[{"item_id": item} for item in range(8, 15)])
        shop.score(user={"user_id": 1, "spent": 1.0}, items=[{"item_id": 8, "rate": 0.5, "buyers": []}])
        shop.rig.close()
        shop.wait_written()
        found = check_served(shop.folder, 0)
        assert (found.differences, found.examples, found.sent) == (0, [], 0)
        # A value for each column of 5 of the user and 2 of each item; the last impression has a value of its own.
        assert found.impressions >= 212
        assert found.values == (found.impressions - found.unavailable - 1) * 5 + 2 * found_items(shop)
        assert check_served(shop.folder, shop.now_ms + 10**8) == ServedCheck()
        # With one interaction more in the log, at a place that states have.
        log = shop.folder.topic_url("interactions")
        delete_topic(log)
        with topic_of(shop.folder) as topic:
            write(topic, batch_of([("click", user, user, 5, 1.0) for user in range(7)]))
        differing = check_served(shop.folder, 0)
        assert differing.differences > 0
        assert len(differing.examples) == 5


def found_items(shop: Shop) -> int:
    """The number of items whose columns were all computed."""
    return int(np.count_nonzero(shop.written().columns["items.served_position?"]))
