"""A version in shadow scores what another answered: no caller hears of it, and how far it is off is known."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from streamlearn.serving.node_metrics import ShadowMeters
from streamlearn.testing import wait_until
from tests.serving.test_front import Rig, expected, infer, outputs, request

# Of what lanes of these tests make of the label buy, by versions 1 and 2.
APART = float(1 / (1 + np.exp(-2)) - 1 / (1 + np.exp(-1)))


def known(rig: Rig) -> Any:
    return rig.ask("/shadow")[1]


def settled(rig: Rig) -> Any:
    """What is known when nothing is left to be scored."""

    def is_settled() -> bool:
        found = known(rig)
        return bool(found["asked"] == found["scored"] + found["dropped"] + found["failed"])

    wait_until(is_settled, "the shadow to be done")
    return known(rig)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    made.front.activate(made.handles[1])
    yield made
    made.close()


def test_a_shadow_scores_its_share_always_the_same_and_no_reply_is_of_it(rig: Rig) -> None:
    rig.front.set_shadow((rig.handles[2], 0.5))

    def ask_all() -> None:
        for one in range(60):
            status, answer = rig.ask("/score", request(3, route_key=f"user-{one}"))
            assert (status, answer["version"]) == (200, 1)
            np.testing.assert_allclose(answer["scores"]["buy"], [1 / (1 + np.exp(-1))] * 3, rtol=1e-5)

    ask_all()
    first = settled(rig)
    assert (first["version"], first["share"]) == (2, 0.5)
    assert 10 < first["scored"] < 50
    ask_all()
    found = settled(rig)
    assert (found["scored"], found["dropped"], found["failed"]) == (2 * first["scored"], 0, 0)
    buy = found["outputs"]["buy"]
    assert buy["candidates"] == 3 * found["scored"]
    assert buy["mean_difference"] == pytest.approx(APART, rel=1e-5)
    assert buy["max_difference"] == pytest.approx(APART, rel=1e-5)
    assert buy["reordered"] == 0
    rig.front.set_shadow(None)
    ask_all()
    assert known(rig)["asked"] == found["asked"]


def test_who_names_a_version_is_not_scored_again_and_the_largest_are_whole(rig: Rig) -> None:
    rig.front.set_shadow((rig.handles[2], 1.0))
    assert rig.ask("/v2/models/shop/versions/1/infer", infer(3))[0] == 200
    status, answer = rig.ask("/v2/models/shop/infer", infer(50))
    assert status == 200
    assert outputs(answer) == {"click.logit": expected(50, 1), "buy.logit": [1.0] * 50}
    found = settled(rig)
    assert (found["asked"], found["scored"]) == (1, 1)
    assert found["outputs"]["click"]["candidates"] == 50
    assert sum(rig.merged) == 3 + 50 + 50
    assert max(rig.merged) <= 16


def test_shadow_work_beyond_its_bound_is_dropped_and_counted_and_joins_no_other_work() -> None:
    rig = Rig(shadows_max=1)
    rig.front.activate(rig.handles[1])
    rig.front.set_shadow((rig.handles[2], 1.0))
    try:
        rig.hold()
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(rig.ask, "/v2/models/shop/infer", infer(2)) for _ in range(4)]
            wait_until(lambda: rig.front.waiting() == 4, "four to wait")
            rig.let_go()
            for one in asked:
                assert outputs(one.result()[1])["click.logit"] == expected(2, 1)
        found = settled(rig)
        # They were answered by one TensorBatch at once, and there is room for one of them.
        assert (found["asked"], found["scored"], found["dropped"]) == (4, 1, 3)
        assert rig.merged == [8, 2]
        meters = ShadowMeters(rig.front)

        def dropped() -> float:
            return REGISTRY.get_sample_value("streamlearn_serving_shadow_requests_total", {"outcome": "dropped"}) or 0.0

        before = dropped()
        meters.measure()
        assert dropped() - before == 3
        difference = REGISTRY.get_sample_value("streamlearn_serving_shadow_difference_ratio", {"output": "buy"})
        assert difference == pytest.approx(APART, rel=1e-5)
    finally:
        rig.close()


def test_sizes_are_of_requests_and_not_of_shadow_work(rig: Rig) -> None:
    rig.front.set_shadow((rig.handles[2], 1.0))
    assert rig.ask("/score", request(3))[0] == 200
    settled(rig)
    found = rig.ask("/sizes")[1]
    assert found["formed"] == [{"length": 3, "users": [[1, 1]], "candidates": [[3, 1]]}]
    assert found["requests"] == {"candidates": [[3, 1]], "histories": [[2, 1]]}
    assert (found["score_rows"], found["user_rows"]) == ({"run": 4, "padding": 1}, {"run": 1, "padding": 0})
    assert (found["users_buckets"], found["candidates_buckets"], found["lengths"]) == ([1, 4], [4, 16], [3])
    assert [len(costs) for costs in (*found["user_us"], *found["score_us"])] == [2, 2]
    assert rig.front.rows() == ((1, 0), (4, 1))


def test_a_shadow_whose_tables_are_gone_fails_alone(rig: Rig) -> None:
    from tests.serving.test_front import tables_of

    handle = rig.front.add(7, tables_of(1).native)
    rig.front.set_shadow((handle, 1.0))
    assert rig.ask("/score", request(1))[1]["version"] == 1
    assert settled(rig)["failed"] == 1
    rig.front.remove(handle)
    assert known(rig)["version"] is None
    assert rig.ask("/score", request(1))[0] == 200
