"""Whether a node answers a caller's first bytes, with TLS and without; and of one that stands still."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trustme

from streamlearn.native import native
from streamlearn.open_files import allow_connections
from streamlearn.serving.hello import answers_hello, is_at_door
from streamlearn.serving.lanes.lane_kind import Work
from streamlearn.serving.lanes.lanes import Lanes
from streamlearn.serving.node import NodeLimits
from streamlearn.testing import wait_until
from tests.serving.test_front import Rig

_WAIT_S = 120.0


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


@contextmanager
def node(rig: Rig, tls: tuple[Path, Path] | None = None, connections: int = 100) -> Iterator[Any]:
    made = native.FrontNode(
        "shop", rig.front, ("127.0.0.1:0", "127.0.0.1:0"), NodeLimits(1, connections, 100, 1 << 16, 5_000), metrics=str,
        token="word", tls=tls,
    )  # fmt: skip
    try:
        yield made
    finally:
        made.stop()


def test_a_node_answers_whoever_asks_until_it_is_stopped(rig: Rig) -> None:
    with node(rig) as made:
        for _ in range(3):
            assert answers_hello(made.grpc, _WAIT_S, tls=False)
    assert not answers_hello(made.grpc, _WAIT_S, tls=False)


@pytest.fixture
def tls_files(tmp_path: Path) -> tuple[Path, Path]:
    issued = trustme.CA().issue_cert("127.0.0.1")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    return certificate, key


def test_a_node_with_tls_answers_by_tls(rig: Rig, tls_files: tuple[Path, Path]) -> None:
    with node(rig, tls_files) as made:
        assert answers_hello(made.grpc, _WAIT_S, tls=True)
        assert not answers_hello(made.grpc, _WAIT_S, tls=False)


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_node_answers_though_two_thousand_connections_say_nothing(
    rig: Rig, tls_files: tuple[Path, Path], has_tls: bool
) -> None:
    allow_connections(5_000)  # both ends of each
    with node(rig, tls_files if has_tls else None, connections=1_024) as made, ExitStack() as silent:
        for number in range(2_000):
            silent.enter_context(_connected(made.grpc if number % 2 else made.http))
            if number % 100 == 99:
                assert answers_hello(made.grpc, _WAIT_S, tls=has_tls), number


def test_whoever_watches_its_health_needs_no_token_as_clients_of_grpc_send_none(rig: Rig) -> None:
    with node(rig) as made, grpc.insecure_channel(made.grpc) as channel:
        changes = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=_WAIT_S)
        assert next(changes) == b"\x08\x02"  # NOT_SERVING
        with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
            channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"", timeout=_WAIT_S)
        changes.cancel()


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), _WAIT_S)


def test_a_node_whose_places_are_all_taken_by_callers_is_at_work(rig: Rig) -> None:
    with node(rig, connections=2) as made, ExitStack() as callers:
        for _ in range(2):
            caller = callers.enter_context(closing(http.client.HTTPConnection(made.http, timeout=_WAIT_S)))
            caller.request("GET", "/v2", headers={"Authorization": "Bearer word"})
            assert caller.getresponse().read()
        for _ in range(3):
            assert not answers_hello(made.grpc, _WAIT_S, tls=False)
            assert is_at_door(made, _WAIT_S, tls=False)
    assert not is_at_door(made, _WAIT_S, tls=False)


@pytest.mark.parametrize("tls", [False, True])
def test_one_whose_threads_stand_still_does_not_though_it_is_reached(tls: bool) -> None:
    # The kernel takes connections for it.
    with socket.create_server(("127.0.0.1", 0)) as still:
        assert not answers_hello(f"127.0.0.1:{still.getsockname()[1]}", 0.1, tls=tls)


def test_for_how_long_a_lane_has_had_work_in_hand_is_seen() -> None:
    taken, go_on = threading.Event(), threading.Event()
    works: list[Any] = [object()]

    class Source:
        def take(self, lane: int) -> Work | None:
            return works.pop() if works else None

        def leave(self, lane: int) -> None: ...

        def give(self, work: Work, scores: Any) -> None: ...

        def fail(self, work: Work, error: Exception) -> None: ...

    class Scores:
        def score(self, place: Any, work: Work) -> Any:
            taken.set()
            assert go_on.wait(_WAIT_S)
            return np.zeros((1, 1), np.float32)

    class Place:
        name = "here"

        @contextmanager
        def entered(self) -> Iterator[None]:
            yield

    lanes = Lanes(Source(), Scores().score, [Place()], 1)
    assert taken.wait(_WAIT_S)
    wait_until(lambda: lanes.held_s > 0.05, "work that is in hand for a while", _WAIT_S)
    go_on.set()
    assert lanes.join(_WAIT_S)
    assert lanes.held_s == 0
