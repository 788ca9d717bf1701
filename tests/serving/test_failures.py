"""What fails in a front: work, and who waits for it; callers that are slow, and ones that linger."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from streamlearn.native import native
from streamlearn.serving.front import FrontLimits
from streamlearn.serving.model_schema import described
from streamlearn.serving.node import NodeLimits
from streamlearn.serving.node_metrics import DoorCollector, FrontMeters
from streamlearn.settings.front import FrontSettings
from streamlearn.testing import wait_until
from tests.serving.test_front import APP, FEATURES, LIMITS, Rig, array, expected, infer, outputs, request, tables_of

_POISON = 3


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    made.front.activate(made.handles[1])
    yield made
    made.close()


def _taken(front: Any) -> Any:
    """What the first lane takes, which is there."""
    work = front.take(0, 5.0)
    assert work is not None
    return work


def _give(rig: Rig, work: Any) -> None:
    """Score work as the rig's lanes do."""
    user_flat, user_sequence = map(array, work.user())
    index, (item,) = array(work.user_index()), map(array, work.item())
    click = item.sum(1) + (user_flat.sum(1) + user_sequence.sum((1, 2)))[index]
    rig.front.give(work, np.stack([click, np.full(len(index), work.version, np.float32)], 1))


def _metrics(rig: Rig) -> dict[tuple[str, ...], float]:
    """All metrics of the door and the front, by name and the values of labels in the order of their names."""
    registry = CollectorRegistry()
    registry.register(DoorCollector(rig.node, rig.front))
    text = generate_latest(registry).decode()
    return {
        (one.name.removeprefix("streamlearn_serving_"), *(value for _, value in sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_what_one_request_does_to_a_merged_execution_it_does_to_no_other(rig: Rig) -> None:
    rig.hold()
    with ThreadPoolExecutor(6) as pool:
        asked = {items: pool.submit(rig.ask, "/v2/models/shop/infer", infer(items)) for items in (1, 2, _POISON, 4)}
        wait_until(lambda: rig.front.waiting() == 4, "all requests to wait")
        sizes = []
        # One of three candidates breaks whatever it is executed with.
        while rig.front.waiting():
            work = rig.front.take(0, 5.0)
            assert work is not None
            sizes.append(work.candidates)
            if work.candidates in (10, _POISON):
                rig.front.fail(work, "a graph broke")
            else:
                _give(rig, work)
        assert sizes[0] == 10
        assert sorted(sizes[1:]) == [1, 2, _POISON, 4]
        for items, one in asked.items():
            status, answer = one.result()
            if items == _POISON:
                assert (status, answer["error"]) == (500, "a graph broke")
            else:
                assert status == 200
                assert outputs(answer)["click.logit"] == expected(items, 1)
    metrics = _metrics(rig)
    assert metrics["tried_again_requests_total",] == 4
    assert metrics["refused_requests_total", "failed"] == 1
    rig.let_go()
    assert rig.ask("/score", request(1))[0] == 200


def test_who_is_tried_again_is_told_when_there_is_no_more_time(rig: Rig) -> None:
    rig.hold()
    asked = list[Future[Any]]()

    def have_come() -> bool:
        return rig.front.waiting() == 2 or any(one.done() for one in asked)

    with ThreadPoolExecutor(2) as pool:
        for deadline_ms in (400, 4_000, 20_000):  # the first in which both come and are taken
            asked[:] = [pool.submit(rig.ask, "/score", request(2, deadline_ms=deadline_ms)) for _ in range(2)]
            wait_until(have_come, "both to wait")
            work = rig.front.take(0, 0.0)
            has_both = work is not None and work.candidates == 4
            if work is not None:
                rig.front.fail(work, "a graph broke")
            statuses = [one.result()[0] for one in asked]
            if has_both:
                break
        assert has_both
        assert statuses == [504, 504]
    rig.let_go()
    assert rig.ask("/score", request(1))[0] == 200


def test_a_lane_that_begins_anew_loses_only_who_was_alone_with_it(rig: Rig) -> None:
    rig.hold()
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(rig.ask, "/score", request(items)) for items in (1, 2)]
        wait_until(lambda: rig.front.waiting() == 2, "both to wait")
        lost = _taken(rig.front)
        assert lost.candidates == 3
        first = rig.front.take(0, 5.0)
        # What comes too late is let go of.
        rig.front.give(lost, np.zeros((4, 2), np.float32))
        _give(rig, first)
        rig.let_go()
        assert [one.result()[0] for one in asked] == [200, 200]


def test_the_door_is_measured(rig: Rig) -> None:
    assert rig.ask("/score", request(5))[0] == 200
    assert rig.ask("/v2/models/shop/versions/9/infer", infer(1))[0] == 409
    assert rig.ask("/score", {"user": 3})[0] == 400
    with grpc.insecure_channel(rig.node.grpc) as channel:
        ready = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
        assert ready(b"") == b"\x08\x01"
        with pytest.raises(grpc.RpcError):
            channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"")
    wait_until(lambda: ("answers_total", "score", "grpc", "NOT_FOUND") in _metrics(rig), "it to be counted")
    metrics = _metrics(rig)
    for key, count in {
        ("answers_total", "score", "http", "200"): 1,
        ("answers_total", "score", "http", "409"): 1,
        ("answers_total", "score", "http", "400"): 1,
        ("answers_total", "ask", "grpc", "OK"): 1,
        ("connections_total", "http"): 3,
        ("connections_total", "grpc"): 1,
        ("refused_requests_total", "version"): 1,
        ("refused_requests_total", "token"): 0,
        ("tensor_batch_rows_sum",): 5,
        ("tensor_batch_rows_bucket", "4"): 0,
        ("tensor_batch_rows_bucket", "8"): 1,
        ("tensor_batch_requests_count",): 1,
        ("wait_seconds_count",): 1,
        ("decode_seconds_count",): 3,  # a request for an unknown model is not decoded
    }.items():
        assert metrics[key] == count, key
    assert metrics["in_bytes_total", "http"] > 500
    assert metrics["out_bytes_total", "grpc"] > 20
    assert 0 <= metrics["connections_ratio",] < 0.2
    assert 0 < metrics["decode_seconds_sum",] < 60


def test_a_request_that_comes_a_byte_at_a_time_is_ended(rig: Rig) -> None:
    node = native.FrontNode(
        "shop", rig.front, ("127.0.0.1:0", "127.0.0.1:0"), NodeLimits(1, 100, 100, 1 << 16, 5_000, 300, 60_000, 8_192),
        metrics=str,
    )  # fmt: skip
    node.set_state(True)
    try:
        for start in (b"GET /v2 HTTP/1.1\r\nx-slow: ", b"POST /score HTTP/1.1\r\ncontent-length: 9999\r\n\r\n"):
            assert node.http is not None
            assert _trickled(node.http, start) < 50
        # The beginning of a connection of HTTP/2, which is no request yet.
        assert _trickled(node.grpc, b"PRI * ") < 50

        def health() -> Any:
            # On a machine that stalls, this one may take too long as well.
            with suppress(OSError), urllib.request.urlopen(f"http://{node.http}/health", timeout=60) as answer:
                return json.load(answer)
            return None

        wait_until(lambda: health() == {"live": True, "ready": True}, "an answer to who is fast")
    finally:
        node.stop()


def _trickled(address: str, start: bytes) -> float:
    """For how long a node listens to one byte after another."""
    host, _, port = address.rpartition(":")
    begin_s = time.monotonic()
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(start)
        slow.settimeout(0.05)
        while time.monotonic() < begin_s + 60:
            try:
                slow.sendall(b"x" if not start.startswith(b"PRI") else b"")
                if not slow.recv(4096):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
    return time.monotonic() - begin_s


def test_who_lingers_without_a_request_does_not_keep_a_node(rig: Rig) -> None:
    node = native.FrontNode(
        "shop", rig.front, ("127.0.0.1:0", "127.0.0.1:0"), NodeLimits(1, 100, 100, 1 << 16, 60_000), metrics=str
    )
    node.set_state(True)
    with grpc.insecure_channel(node.grpc) as channel:
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        assert live(b"") == b"\x08\x01"
        lingering = [
            socket.create_connection(("127.0.0.1", int(at.rpartition(":")[2]))) for at in (node.grpc, str(node.http))
        ]
        lingering[1].sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert lingering[1].recv(4096)
        rig.hold()
        with ThreadPoolExecutor(1) as pool:
            address = f"http://{node.http}/score"
            body = json.dumps(request(1)).encode()
            asked = pool.submit(lambda: urllib.request.urlopen(address, body, timeout=120).status)
            wait_until(lambda: rig.front.waiting() == 1, "it to wait")
            stopping = threading.Thread(target=node.stop)
            stopping.start()
            # It is waited for while something is under way.
            stopping.join(1.0)
            assert stopping.is_alive()
            rig.let_go()
            assert asked.result() == 200
            answered_s = time.monotonic()
            stopping.join(120)
            assert time.monotonic() - answered_s < 30
        for one in lingering:
            one.close()


def test_callers_who_hang_up_near_their_deadline_move_the_margin_and_others_do_not(rig: Rig) -> None:
    rig.hold()

    def hang_up(deadline_ms: int, after_ms: int) -> None:
        body = json.dumps(request(1, deadline_ms=deadline_ms)).encode()
        # On a machine that stalls the node may answer first that the request is late.
        with suppress(TimeoutError, urllib.error.HTTPError):
            urllib.request.urlopen(f"http://{rig.node.http}/score", body, timeout=after_ms / 1e3)

    def margin_s() -> float:
        return float(rig.front.figures().margin_s)

    # One after the other: the margin is learned from what comes within milliseconds.
    with ThreadPoolExecutor(16) as pool:
        [*pool.map(lambda at: hang_up(60_000, 100 + 15 * at), range(16))]
        wait_until(lambda: rig.front.waiting() == 0, "all to be forgotten")
        assert margin_s() == 0

        def is_moved() -> bool:
            [*pool.map(lambda at: hang_up(400 + 15 * at, 360 + 15 * at), range(16))]
            return margin_s() > 0

        wait_until(is_moved, "a margin")


def test_who_is_cut_is_told_how_much_was_scored() -> None:
    tables = tables_of(1)
    text = described(FEATURES, APP.labels, list(tables.dims), LIMITS)
    limits = FrontLimits(1, 100, 1_000, 0, 0, 2, 1, 10.0, 0, False, 30_000_000, 30_000_000)
    front = native.Front(text, ([1, 4], [4, 16], [3]), limits, 4)
    front.activate(front.add(1, tables.native))
    # By what warm-up said the first takes long, so that who comes after it is under pressure.
    front.set_costs([[1.0, 1.0]], [[5e6, 20e6]])
    node = native.FrontNode(
        "shop", front, ("127.0.0.1:0", "127.0.0.1:0"), NodeLimits(1, 100, 100, 1 << 16, 5_000), metrics=str
    )
    node.set_state(True)

    def ask(items: int, deadline_ms: int = 30_000) -> Any:
        body = json.dumps(request(items, deadline_ms=deadline_ms)).encode()
        with urllib.request.urlopen(f"http://{node.http}/score", body, timeout=60) as answer:
            return json.load(answer)

    def is_pressed() -> bool:
        with suppress(urllib.error.HTTPError):
            ask(5, deadline_ms=1_000)
        value = front.figures().value
        return value is not None and value[2] > 3

    assert front.take(0, 0.0) is None
    try:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(ask, 16)
            wait_until(lambda: front.waiting() == 1, "the first to wait")
            work = _taken(front)
            wait_until(is_pressed, "time to have a price")
            second = pool.submit(ask, 5)
            wait_until(lambda: front.waiting() == 2, "the second to wait")
            for one in (work, None):
                some = one or _taken(front)
                front.give(some, np.zeros((len(array(some.user_index())), 2), np.float32))
            whole, cut = first.result(), second.result()
        assert "scored" not in whole
        scored = cut["scored"]
        assert 2 <= scored < 5
        assert cut["scores"]["click"] == [0.5] * scored + [None] * (5 - scored)
        value = front.figures().value
        assert value is not None
        assert 0 < value[1] < value[0]
        meters = FrontMeters(front, FrontSettings())
        assert not meters.overload
        meters.measure(1)
        assert "overloaded: its answers keep" in meters.overload
    finally:
        front.drain()
        node.stop()
