"""The front: requests by HTTP, merged, packed and answered; lanes here add numbers up instead of running graphs."""

from __future__ import annotations

import json
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from streamlearn.apps import App
from streamlearn.features import Dense, FeatureSpec, Label, LabelGroup, Slot
from streamlearn.features.keys import keys_of
from streamlearn.native import native
from streamlearn.serving.front import FrontLimits
from streamlearn.serving.model_schema import described
from streamlearn.serving.node import NodeLimits
from streamlearn.table import Changes, TableOptions, TableSet
from streamlearn.testing import wait_until

Floats = npt.NDArray[np.float32]
FEATURES = FeatureSpec(
    slots=(
        Slot("user_id", "user", table="main", dim=4),
        Slot("country", "user", table="main", dim=4, value="str", default="NO"),
        Slot("seen", "user", table="main", dim=4, multi=True, pooling="sequence", length=3, keys_of="item_id"),
        Slot("item_id", "item", table="main", dim=4),
        Slot("topics", "item", table="side", dim=2, multi=True, pooling="mean"),
    ),
    dense=(Dense("age", "user"), Dense("price", "item", width=2)),
    item_id="item_id",
)
APP = App(
    name="shop",
    features=FEATURES,
    groups=(LabelGroup("fast", wait_s=60, window_s=600),),
    labels=(Label("click", "click", "fast"), Label("buy", "buy", "fast")),
    model="logistic",
)
LIMITS = {"candidates_max": 64, "values_max": 512, "message_bytes_max": 1 << 16}
# Every row of a version holds its number in all places.
KEYS = {"main": 400, "side": 50}


def tables_of(versions: int) -> TableSet:
    """Tables with versions 1 to so many; every row of a version is its number."""
    tables = TableSet([TableOptions(spec, 10_000) for spec in FEATURES.tables])
    keys = {
        "main": np.concatenate(
            [keys_of(FEATURES.slot(name), list(range(200))) for name in ("user_id", "item_id")]
            + [keys_of(FEATURES.slot("country"), ["NO", "SE"])]
        ),
        "side": keys_of(FEATURES.slot("topics"), list(range(50))),
    }
    for version in range(1, versions + 1):
        changes = [
            Changes(name, of, np.full((len(of), tables.dims[name]), version, np.float32)) for name, of in keys.items()
        ]
        tables.stage(version, version - 1 or None, changes)
    return tables


class _Capsule:
    """What NumPy takes a tensor from."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def array(capsule: Any) -> npt.NDArray[Any]:
    return np.from_dlpack(_Capsule(capsule))


class Rig:
    """A front with callers and lanes.

    Attributes:
        merged: How many candidates each TensorBatch had.
    """

    def __init__(
        self,
        lanes: int = 1,
        *,
        requests_max: int = 100,
        shadows_max: int = 100,
        tables: TableSet | None = None,
        token: str | None = None,
        is_started: bool = True,
    ) -> None:
        self.tables = tables or tables_of(2)
        text = described(FEATURES, APP.labels, list(self.tables.dims), LIMITS)
        limits = FrontLimits(lanes, requests_max, 1_000, 0, 0, 0, 8, 1.0, 0, False, 60_000_000, 120_000_000)
        self.front = native.Front(text, ([1, 4], [4, 16], [3]), limits, 4, shadows_max)
        self.node = native.FrontNode(
            "shop", self.front, ("127.0.0.1:0", "127.0.0.1:0"), NodeLimits(1, 100, 100, 1 << 16, 5_000),
            metrics=lambda: "shop_metrics 1\n", token=token,
        )  # fmt: skip
        self.node.set_state(is_started)
        self.handles = {version: self.front.add(version, self.tables.native) for version in self.tables.retained}
        self.merged: list[int] = []
        self._parked = [False] * lanes
        self._ended, self._open = threading.Event(), threading.Event()
        self._open.set()
        # A lane is there once it has looked for work: who asks before that is refused.
        for lane in range(lanes):
            assert self.front.take(lane, 0.0) is None
        self._threads = [threading.Thread(target=self._lane, args=(lane,)) for lane in range(lanes)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._open.set()
        self.front.drain()
        self.node.stop()
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def hold(self) -> None:
        """Let lanes take nothing; when this returns they do nothing."""
        self._open.clear()
        wait_until(lambda: all(self._parked), "lanes that are held")

    def let_go(self) -> None:
        """Let lanes go on."""
        self._open.set()

    def ask(self, path: str, body: Any = None, **headers: str) -> Any:
        """What comes back from a path, with its status."""
        data = None if body is None else json.dumps(body).encode()
        heads = {"content-type": "application/json", **headers}
        asked = urllib.request.Request(f"http://{self.node.http}{path}", data, heads)
        try:
            with urllib.request.urlopen(asked, timeout=120) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def _lane(self, lane: int) -> None:
        while not self._ended.is_set():
            self._parked[lane] = True
            self._open.wait()
            self._parked[lane] = False
            work = self.front.take(lane, 0.05)
            if work is None:
                continue
            user_flat, user_sequence = map(array, work.user())
            index, (item,) = array(work.user_index()), map(array, work.item())
            self.merged.append(work.candidates)
            assert user_flat.ctypes.data % 64 == item.ctypes.data % 64 == index.ctypes.data % 64 == 0
            # Padding is zero, whatever the slab held before.
            assert not item[work.candidates :].any()
            assert not index[work.candidates :].any()
            of_user = user_flat.sum(1) + user_sequence.sum((1, 2))
            click = item.sum(1) + of_user[index]
            self.front.give(work, np.stack([click, np.full(len(index), work.version, np.float32)], 1))


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    made.front.activate(made.handles[1])
    yield made
    made.close()


def request(items: int, *, user: int = 1, **said: Any) -> dict[str, Any]:
    """Items that are known, with one topic more than the one before."""
    listed = [{"item_id": at, "topics": list(range(at % 3)), "price": [at, 0.5]} for at in range(items)]
    return {"user": {"user_id": user, "seen": [1, 2], "age": 30.0}, "items": listed, **said}


def expected(items: int, version: int) -> list[float]:
    """The logits that lanes here make: every row is the version's number."""
    user = 4 * version + 4 * version + 30.0 + 2 * (4 * version + 1)
    # A mean of rows is a row, of no rows zero.
    return [user + 4 * version + (2 * version if at % 3 else 0) + at + 0.5 for at in range(items)]


def logits(scores: list[float]) -> list[float]:
    return [float(np.log(one) - np.log1p(-one)) for one in scores]


def infer(items: int, **said: Any) -> dict[str, Any]:
    """The same request in the protocol's own form."""
    at = range(items)
    topics = [list(range(one % 3)) for one in at]

    def named(name: str, kind: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
        return {"name": name, "datatype": kind, "shape": shape, "data": data}

    flat = [one for each in topics for one in each]
    inputs = [
        named("user_id", "INT64", [1], [1]),
        named("seen", "INT64", [2], [1, 2]),
        named("age", "FP32", [1], [30.0]),
        named("item_id", "INT64", [items], list(at)),
        named("topics", "INT64", [len(flat)], flat),
        named("topics.lengths", "INT32", [items], [len(one) for one in topics]),
        named("price", "FP32", [items, 2], [number for one in at for number in (one, 0.5)]),
    ]
    return {"inputs": inputs, "outputs": [{"name": "click.logit"}, {"name": "buy.logit"}], **said}


def outputs(answer: dict[str, Any]) -> dict[str, list[float]]:
    return {one["name"]: one["data"] for one in answer["outputs"]}


def test_a_request_is_packed_from_the_rows_of_its_version_and_answered_with_it(rig: Rig) -> None:
    status, answer = rig.ask("/v2/models/shop/infer", infer(7))
    assert (status, answer["model_version"]) == (200, "1")
    assert outputs(answer) == {"click.logit": expected(7, 1), "buy.logit": [1.0] * 7}
    status, answer = rig.ask("/v2/models/shop/versions/2/infer", infer(7))
    assert (status, answer["model_version"]) == (200, "2")
    assert outputs(answer)["click.logit"] == expected(7, 2)


def test_plain_rows_are_answered_with_probabilities(rig: Rig) -> None:
    status, answer = rig.ask("/score", request(3))
    assert (status, answer["version"]) == (200, 1)
    np.testing.assert_allclose(logits(answer["scores"]["buy"]), [1.0] * 3, rtol=1e-5)


def test_more_candidates_than_the_largest_bucket_are_split_and_come_back_whole(rig: Rig) -> None:
    status, answer = rig.ask("/v2/models/shop/infer", infer(50))
    assert status == 200
    assert outputs(answer)["click.logit"] == expected(50, 1)
    assert sum(rig.merged) == 50
    assert max(rig.merged) <= 16


def test_what_waits_is_merged_and_each_caller_gets_its_own(rig: Rig) -> None:
    rig.hold()
    with ThreadPoolExecutor(6) as pool:
        asked = {items: pool.submit(rig.ask, "/v2/models/shop/infer", infer(items)) for items in (1, 2, 3, 4, 5)}
        wait_until(lambda: rig.front.waiting() == 5, "all requests to wait")
        rig.let_go()
        for items, one in asked.items():
            status, answer = one.result()
            assert status == 200
            assert outputs(answer)["click.logit"] == expected(items, 1)
    assert len(rig.merged) < 5
    assert sum(rig.merged) == 15


def test_no_reply_mixes_versions_while_they_take_turns() -> None:
    rig = Rig(lanes=2, tables=tables_of(3))
    rig.front.activate(rig.handles[1])
    ended = threading.Event()

    def switch() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            rig.front.activate(rig.handles[number % 3 + 1])

    switching = threading.Thread(target=switch)
    switching.start()
    seen = set()
    try:
        with ThreadPoolExecutor(6) as pool:
            for status, answer in pool.map(lambda one: rig.ask("/v2/models/shop/infer", infer(9)), range(300)):
                version = int(answer["model_version"])
                assert status == 200
                assert outputs(answer) == {"click.logit": expected(9, version), "buy.logit": [float(version)] * 9}
                seen.add(version)
    finally:
        ended.set()
        switching.join()
        rig.close()
    assert len(seen) > 1


def test_a_canary_answers_its_share_and_always_the_same_callers(rig: Rig) -> None:
    rig.front.set_canary((rig.handles[2], 0.5))

    def asked() -> list[int]:
        return [rig.ask("/score", request(1, route_key=f"user-{one}"))[1]["version"] for one in range(60)]

    first = asked()
    assert 10 < sum(one == 2 for one in first) < 50
    assert asked() == first
    rig.front.set_canary(None)
    assert set(asked()) == {1}


def test_an_arm_gets_its_version_or_the_active_one_and_that_is_counted(rig: Rig) -> None:
    def version(wanted: str, **said: Any) -> Any:
        status, answer = rig.ask("/score", request(1, **said), **{"x-version": wanted, "x-arm": "trial:new"})
        return answer["version"] if status == 200 else status

    rig.front.set_canary((rig.handles[2], 0.5))
    for wanted, number in (("canary", 2), ("2", 2), ("active", 1), ("1", 1)):
        assert {version(wanted, route_key=f"user-{user}") for user in range(10)} == {number}
    assert version("1", version=2) == 2
    assert rig.front.measured().without_arm == 0
    # As after a rollback: version 2 is kept, but it is newer than the active one.
    rig.front.set_canary(None)
    assert [version(wanted) for wanted in ("canary", "2", "9", "1", "active")] == [1] * 5
    assert rig.front.measured().without_arm == 3
    assert version("newest") == 400


def test_what_is_wrong_is_refused_with_its_name_and_the_next_is_answered(rig: Rig) -> None:
    status, answer = rig.ask("/score", {"user": {"user_id": "seven", "age": 1.0}, "items": request(1)["items"]})
    assert status == 400
    assert "user_id" in answer["error"]
    assert rig.ask("/score", request(65))[0] in (400, 413)
    status, answer = rig.ask("/v2/models/shop/versions/9/infer", infer(1))
    assert status in (409, 412)
    assert "this node does not keep version 9; it has 1, 2" in answer["error"]
    assert rig.ask("/score", request(1))[0] == 200


def test_a_version_in_tables_that_are_gone_answers_nobody(rig: Rig) -> None:
    handle = rig.front.add(7, tables_of(1).native)
    status, answer = rig.ask("/v2/models/shop/versions/7/infer", infer(1))
    assert status == 503
    assert "removed" in answer["error"]
    rig.front.remove(handle)
    assert rig.ask("/v2/models/shop/versions/7/infer", infer(1))[0] in (409, 412)
    assert rig.ask("/score", request(1))[0] == 200


def test_too_many_that_wait_are_refused_at_once() -> None:
    rig = Rig(requests_max=2)
    rig.front.activate(rig.handles[1])
    assert rig.ask("/score", request(1))[0] == 200
    rig.hold()
    try:
        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(rig.ask, "/score", request(1)) for _ in range(2)]
            wait_until(lambda: rig.front.waiting() == 2, "two to wait")
            assert rig.ask("/score", request(1, deadline_ms=60_000))[0] == 429
            rig.let_go()
            assert [one.result()[0] for one in waiting] == [200, 200]
    finally:
        rig.close()


def test_a_deadline_that_passes_while_lanes_are_held_is_told(rig: Rig) -> None:
    rig.hold()
    status, _ = rig.ask("/score", request(1, deadline_ms=50))
    assert status == 504
    rig.let_go()
    assert rig.ask("/score", request(1))[0] == 200


def test_work_that_fails_fails_its_callers_alone(rig: Rig) -> None:
    rig.hold()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(rig.ask, "/score", request(1))
        wait_until(lambda: rig.front.waiting() == 1, "it to wait")
        work = rig.front.take(0, 5.0)
        assert work is not None
        rig.front.fail(work, "no memory")
        status, answer = asked.result()
        assert (status, answer["error"]) == (500, "no memory")
    with pytest.raises(RuntimeError, match="returned already"):
        rig.front.fail(work, "again")
    rig.let_go()
    assert rig.ask("/score", request(1))[0] == 200


def test_a_lane_that_begins_anew_lost_its_work_and_its_callers_are_told(rig: Rig) -> None:
    rig.hold()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(rig.ask, "/score", request(1))
        wait_until(lambda: rig.front.waiting() == 1, "it to wait")
        lost = rig.front.take(0, 5.0)
        assert lost is not None
        assert rig.front.take(0, 0.0) is None
        status, answer = asked.result()
        assert (status, answer["error"]) == (500, "the lane was restarted")
    # What comes too late is let go of.
    rig.front.give(lost, np.zeros((4, 2), np.float32))
    rig.let_go()
    assert rig.ask("/score", request(1))[0] == 200


def test_it_says_how_it_is(rig: Rig) -> None:
    assert rig.ask("/v2/health/ready")[0] == 200
    assert rig.ask("/versions")[1]["active"] == 1
    with urllib.request.urlopen(f"http://{rig.node.http}/metrics", timeout=120) as answer:
        assert answer.read() == b"shop_metrics 1\n"
    rig.node.set_state(False, "it is starting or rebuilding its tables")
    assert rig.ask("/v2/health/ready")[0] == 503


def test_a_node_that_is_starting_answers_no_request_with_a_version_that_may_be_left_already() -> None:
    rig = Rig(is_started=False)
    rig.front.activate(rig.handles[1])
    try:
        for path, body in (("/score", request(1)), ("/v2/models/shop/infer", infer(1))):
            rig.node.set_state(False, "it is staging")
            status, answer = rig.ask(path, body)
            assert (status, answer["error"].partition(";")[0]) == (503, "the node is starting")
        rig.node.set_state(True)
        assert rig.ask("/score", request(1))[0] == 200
        # Callers that still know it are answered when it is not ready later.
        rig.node.set_state(False, "it is rebuilding its tables")
        assert rig.ask("/score", request(1))[0] == 200
    finally:
        rig.close()


def test_who_does_not_say_the_token_is_told_so_but_anybody_hears_that_it_lives() -> None:
    rig = Rig(token="open-sesame")
    rig.front.activate(rig.handles[1])
    try:
        assert rig.ask("/v2/health/live")[0] == 200
        status, answer = rig.ask("/score", request(1))
        assert status == 401
        assert "sesame" not in answer["error"]
        assert rig.ask("/score", request(1), authorization="Bearer open-sesam")[0] == 401
        assert rig.ask("/score", request(1), authorization="Bearer open-sesame")[0] == 200
    finally:
        rig.close()


def test_callers_may_use_the_former_name_of_an_input(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    before, tables = rig.ask("/score", request(3))[1]["scores"], tables_of(2)
    names = {"user_id": "member_id", "price": "cost"}
    slots = [
        replace(slot, name=names[slot.name], was=slot.name) if slot.name in names else slot for slot in FEATURES.slots
    ]
    dense = [replace(one, name=names[one.name], was=one.name) if one.name in names else one for one in FEATURES.dense]
    monkeypatch.setattr(sys.modules[__name__], "FEATURES", replace(FEATURES, slots=tuple(slots), dense=tuple(dense)))
    renamed = Rig(tables=tables)
    try:
        renamed.front.activate(renamed.handles[1])
        assert renamed.ask("/score", request(3))[1]["scores"] == before
        today = json.loads(json.dumps(request(3)).replace('"user_id"', '"member_id"').replace('"price"', '"cost"'))
        assert renamed.ask("/score", today)[1]["scores"] == before
        both = today | {"user": today["user"] | {"user_id": 7}}
        assert renamed.ask("/score", both)[0] == 400
    finally:
        renamed.close()
