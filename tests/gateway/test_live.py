"""A real Envoy in front of small nodes: who is reached, what callers may say, and nodes that stop, hang and refuse."""

from __future__ import annotations

import signal
import socket
import ssl
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import sqrt
from pathlib import Path

import pytest
import tritonclient.grpc as triton
import trustme
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from benchmarks.nodes.small_node import Order, SmallNode, small_nodes
from streamlearn.testing import wait_until
from tests.gateway import ENVOY_SERIES
from tests.gateway.place import INPUTS, ROWS, USER, Access, access, call, find, folder_of, infer, once_led
from tests.test_renewal import Mounted, issued
from tools.services import free_ports

_USERS = 1_000


@pytest.fixture
def registry(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/registry.db"


@pytest.fixture
def client(running: Access) -> Iterator[triton.InferenceServerClient]:
    made = triton.InferenceServerClient(f"127.0.0.1:{running.port}")
    yield made
    made.close()


@pytest.fixture
def two(registry: str) -> Iterator[list[SmallNode]]:
    """Two nodes of one application."""
    with small_nodes([Order(registry, "ctr", "ctr", f"n{at}", at) for at in (1, 2)]) as nodes:
        yield nodes


@pytest.fixture
def running(two: list[SmallNode], registry: str, tmp_path: Path, envoy: Path) -> Iterator[Access]:
    """What leads to them."""
    with access([folder_of(tmp_path, "ctr")], envoy, f"registry.url={registry}", nodes=2) as made:
        yield made


def test_callers_reach_all_nodes_and_what_they_say_of_themselves_is_dropped(
    running: Access, client: triton.InferenceServerClient
) -> None:
    head = {"x-priority": "no number", "x-deadline-ms": "NaN", "x-arm": "not / a name", "x-route-key": "\x7e" * 300}
    by_http, by_grpc = running.while_healthy(
        2,
        lambda: [
            {running.call(head=head).body["version"] for _ in range(40)},
            {infer(client, "ctr", head) for _ in range(40)},
        ],
    )
    assert by_http == {1, 2}
    assert by_grpc == {"1", "2"}
    body = {"inputs": [{"name": n, "datatype": "INT64", "shape": [1], "data": [1]} for n in ("user_id", "item_id")]}
    assert running.call("/v2/models/ctr/infer", body).status == 200
    assert running.call("/metrics").status == 404


def test_a_certificate_that_is_renewed_is_taken_without_a_restart(
    two: list[SmallNode], registry: str, tmp_path: Path, envoy: Path
) -> None:
    authorities = [trustme.CA(), trustme.CA()]
    files = Mounted(tmp_path / "tls", **issued(authorities[0]))
    words = ["--tls-cert", str(files("cert")), "--tls-key", str(files("key"))]
    with access([folder_of(tmp_path, "ctr")], envoy, f"registry.url={registry}", nodes=2, more=words) as running:

        def trusts(authority: trustme.CA) -> bool:
            context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
            try:
                with (
                    socket.create_connection(("127.0.0.1", running.port), timeout=30) as plain,
                    context.wrap_socket(plain, server_hostname="localhost"),
                ):
                    return True
            except ssl.SSLCertVerificationError:
                return False

        assert [trusts(authority) for authority in authorities] == [True, False]
        files.swap(**issued(authorities[1]))
        wait_until(lambda: trusts(authorities[1]), "the new certificate")
        assert not trusts(authorities[0])


def test_requests_for_items_go_the_same_way(running: Access, client: triton.InferenceServerClient) -> None:
    head = {"x-priority": "no number", "x-deadline-ms": "NaN", "x-arm": "not / a name", "x-route-key": "\x7e" * 300}
    found = running.while_healthy(2, lambda: [running.call("/retrieve", USER, head).body for _ in range(40)])
    assert {answer["version"] for answer in found} == {1, 2}
    assert all(answer["items"] == [{"id": answer["version"], "score": 0.0}] for answer in found)
    assert running.while_healthy(2, lambda: {find(client, "ctr") for _ in range(40)}) == {"1", "2"}
    answer = running.call("/v2/models/ctr.retrieve/infer", INPUTS)
    assert (answer.status, answer.body["model_name"]) == (200, "ctr.retrieve")
    assert running.call("/retrieve", USER).body["model"] == "ctr.retrieve"
    # What Envoy passes on, a node answers, if only to say that it has no such path.
    assert "name the model in the header" in str(running.call("/metrics").body)
    assert "name the model in the header" not in str(running.call("/recommend").body)


def test_its_metrics_say_how_many_nodes_get_requests(
    two: list[SmallNode], registry: str, tmp_path: Path, envoy: Path
) -> None:
    [port] = free_ports(1)
    changes = (f"registry.url={registry}", f"telemetry.listen=127.0.0.1:{port}")
    with access([folder_of(tmp_path, "ctr")], envoy, *changes, nodes=len(two)):

        def figures() -> dict[str, float]:
            text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
            samples = (one for family in text_string_to_metric_families(text) for one in family.samples)
            return {one.name: one.value for one in samples if one.labels.get("envoy_cluster_name") == "ctr_grpc"}

        wait_until(lambda: figures().get("envoy_cluster_membership_healthy") == 2, "both nodes in the metrics")
        assert figures()["envoy_cluster_membership_total"] == 2
        assert figures().keys() >= ENVOY_SERIES
        two[0].signal(signal.SIGSTOP)
        try:
            wait_until(
                lambda: figures().get("envoy_cluster_membership_healthy") == 1, "the node that hangs to be left out"
            )
        finally:
            two[0].signal(signal.SIGCONT)


def test_a_node_that_stops_costs_no_request(running: Access, two: list[SmallNode]) -> None:
    seen, stopped = Counter[int](), threading.Event()

    def ask() -> None:
        while not stopped.is_set():
            seen[running.call().status] += 1

    with ThreadPoolExecutor(4) as callers:
        asked = [callers.submit(ask) for _ in range(4)]
        try:
            wait_until(lambda: seen[200] > 50, "requests")
            two[0].signal(signal.SIGTERM)
            wait_until(lambda: two[0].process.poll() is not None, "its end")
            after = seen[200]
            wait_until(lambda: seen[200] > after + 50, "requests")
        finally:
            stopped.set()
        for one in asked:
            one.result()
    assert {*seen} == {200}


def test_a_node_that_is_killed_costs_at_most_what_it_had_and_one_that_hangs_is_left_out(
    running: Access, two: list[SmallNode]
) -> None:
    two[0].signal(signal.SIGSTOP)
    try:
        running.wait_healthy(1)
        before, other = (running.given(node.where[1]) for node in two)
        assert {once_led(running.call).body["version"] for _ in range(20)} == {2}
        assert running.given(two[0].where[1]) == before, "it is asked though it hangs"
        assert running.given(two[1].where[1]) >= other + 20
    finally:
        two[0].signal(signal.SIGCONT)
    running.wait_healthy(2)
    two[1].signal(signal.SIGKILL)
    # What comes before Envoy knows is tried elsewhere.
    assert [running.call().status for _ in range(20)] == [200] * 20
    running.wait_healthy(1)


def test_refusals_for_lack_of_time_are_neither_tried_again_nor_held_against_a_node(
    registry: str, tmp_path: Path, envoy: Path
) -> None:
    with small_nodes([Order(registry, "ctr", "ctr", f"n{at}", at, took_ms=50) for at in (1, 2)]):
        folder = folder_of(tmp_path, "ctr")
        changes = f"registry.url={registry}", "access.trust_headers=true"
        with access([folder], envoy, *changes, nodes=2) as running, ThreadPoolExecutor(16) as callers:
            head = {"x-deadline-ms": "30"}
            by_http = Counter(callers.map(lambda _: running.call(head=head).status, range(200)))
            assert by_http[429] > 50, by_http
            client = triton.InferenceServerClient(f"127.0.0.1:{running.port}")

            def status(_: int) -> str:
                try:
                    return infer(client, "ctr", head)
                except InferenceServerException as error:
                    return str(error.status())

            by_grpc = Counter(callers.map(status, range(200)))
            client.close()
            items = Counter(callers.map(lambda _: running.call("/retrieve", USER, head).status, range(200)))
            assert items[429] > 50, items
            assert by_grpc["StatusCode.RESOURCE_EXHAUSTED"] > 50, by_grpc
            assert running.figure("upstream_rq_retry") == 0
            assert running.figure("outlier_detection.ejections_enforced_total") == 0
            running.wait_healthy(2)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_slow_node_gets_few_requests_because_its_answers_say_so(
    registry: str, tmp_path: Path, envoy: Path, protocol: str
) -> None:
    orders = [Order(registry, "ctr", "ctr", f"n{at}", at, took_ms=20 if at == 1 else 0.2) for at in (1, 2)]
    with (
        small_nodes(orders),
        access([folder_of(tmp_path, "ctr")], envoy, f"registry.url={registry}", nodes=2) as running,
    ):
        client = triton.InferenceServerClient(f"127.0.0.1:{running.port}")

        def share() -> float:
            if protocol == "grpc":
                return [infer(client, "ctr") for _ in range(100)].count("1") / 100
            return [running.call().body["version"] for _ in range(100)].count(1) / 100

        wait_until(lambda: share() < 0.2, "the slow node to get few requests")
        client.close()


@pytest.fixture
def experiment(registry: str, tmp_path: Path) -> Iterator[list[Path]]:
    """Two applications that answer to one name, of which the second gets a fifth of the users; and a third one."""
    toml = """
[access]
trust_headers = true
[[access.experiments]]
name = "tower"
arms = [{name = "old", app = "ctr", share = 0.8}, {name = "new", app = "ctr2", share = 0.2}]
"""
    folders = [folder_of(tmp_path, "ctr", toml=toml), folder_of(tmp_path, "ctr2", "ctr"), folder_of(tmp_path, "cvr")]
    orders = [
        Order(registry, app, model, f"of-{app}", at)
        for at, (app, model) in enumerate([("ctr", "ctr"), ("ctr2", "ctr"), ("cvr", "cvr")], 1)
    ]
    with small_nodes(orders):
        yield folders


def test_users_keep_their_arm_and_models_are_told_apart(experiment: list[Path], registry: str, envoy: Path) -> None:
    def arms(running: Access) -> dict[int, object]:
        def arm(user: int) -> object:
            # What the caller says of the arm does not count, or this would be refused.
            head = {"x-model": "ctr", "x-route-key": f"user-{user}", "x-arm": "no / name"}
            return once_led(running.call, head=head).body["version"]

        with ThreadPoolExecutor(8) as callers:
            return dict(enumerate(callers.map(arm, range(_USERS))))

    with access(experiment, envoy, f"registry.url={registry}", nodes=3) as running:
        first = arms(running)
        count = Counter(first.values())
        assert {*count} == {1, 2}
        assert abs(count[2] - 0.2 * _USERS) <= 3 * sqrt(0.2 * 0.8 * _USERS)
        assert arms(running) == first
        client = triton.InferenceServerClient(f"127.0.0.1:{running.port}")
        # By gRPC a user has the same arm.
        of_users = [{"x-model": "ctr", "x-route-key": f"user-{user}"} for user in range(50)]
        by_grpc = [once_led(infer, client, "ctr", head) for head in of_users]
        assert by_grpc == [str(first[user]) for user in range(50)]
        assert once_led(infer, client, "cvr", {"x-model": "cvr"}) == "3"
        # So has one who asks for items, and a client may name the model that it asks.
        head = [{"x-model": "ctr.retrieve", "x-route-key": f"user-{user}"} for user in range(50)]
        assert [once_led(find, client, "ctr", of_user) for of_user in head] == by_grpc
        found = [once_led(running.call, "/retrieve", USER, of_user).body["version"] for of_user in head]
        assert [*map(str, found)] == by_grpc
        by_path = [once_led(running.call, "/v2/models/ctr.retrieve/infer", INPUTS, of_user) for of_user in head]
        assert [str(answer.body["model_version"]) for answer in by_path] == by_grpc
        assert once_led(find, client, "cvr", {"x-model": "cvr"}) == "3"
        assert once_led(running.call, "/v2/models/cvr.retrieve/infer", INPUTS).body["model_version"] == "3"
        client.close()
        assert running.call("/retrieve", USER).status == 404
        assert once_led(running.call, head={"x-model": "cvr"}).body["version"] == 3
        unknown = running.call()
        assert unknown.status == 404
        assert "x-model: ctr, cvr" in str(unknown.body["error"])
        assert once_led(running.call, head={"x-model": "ctr", "x-priority": "no number"}).status == 400
    with access(experiment, envoy, f"registry.url={registry}", nodes=3) as again:
        assert arms(again) == first


def test_arms_are_versions_of_one_application_and_a_version_that_is_gone_costs_no_request(
    registry: str, tmp_path: Path, envoy: Path
) -> None:
    toml = """
[access]
trust_headers = true
[[access.experiments]]
name = "trial"
arms = [
    {name = "old", app = "ctr", version = 4, share = 0.3},
    {name = "now", app = "ctr", version = "active", share = 0.4},
    {name = "new", app = "ctr", version = "canary", share = 0.3},
]
"""
    folder, both = folder_of(tmp_path, "ctr", toml=toml), Order(registry, "ctr", "ctr", "n1", 5, older=(4,), canary=6)

    def versions(running: Access) -> Counter[object]:
        heads = [{"x-route-key": f"u{user}"} for user in range(100)]
        return Counter(once_led(running.call, head=head).body["version"] for head in heads)

    with small_nodes([both]), access([folder], envoy, f"registry.url={registry}", nodes=3) as running:
        assert versions(running).keys() == {4, 5, 6}
        # The body wins, and what callers say of the version does not count beside an arm.
        body = {**ROWS, "version": "4"}
        assert once_led(running.call, body=body, head={"x-route-key": "u1"}).body["version"] == 4
        assert {once_led(running.call, head={"x-version": "no version"}).status for _ in range(20)} == {200}
        heads = [{"x-route-key": f"u{user}"} for user in range(100)]
        assert {once_led(running.call, "/retrieve", USER, head).body["version"] for head in heads} == {4, 5, 6}
        client = triton.InferenceServerClient(f"127.0.0.1:{running.port}")
        assert {once_led(infer, client, "ctr", head) for head in heads[:50]} == {"4", "5", "6"}
        client.close()
        # A node that has neither the version nor a canary, as after a rollback to 5, answers with the active one.
        with small_nodes([Order(registry, "ctr", "ctr", "n2", 5)]) as later:
            running.wait_healthy(6)
            assert call(later[0].where[1], head={"x-version": "canary"}).body["version"] == 5
            assert running.while_healthy(6, lambda: versions(running)).keys() == {4, 5, 6}
    other = f"sqlite://{tmp_path}/other.db"
    with small_nodes([Order(other, "ctr", "ctr", "n3", 5)]):
        refused = Access([folder], envoy, (f"registry.url={other}",))
        try:
            refused.process.wait(300)
            assert "no node keeps version 4 of arm trial:old; they have 5" in refused.log.read_text()
        finally:
            refused.close()


def test_experiments_of_other_names_divide_users_independently(registry: str, tmp_path: Path, envoy: Path) -> None:
    def half(name: str, app: str) -> str:
        arms = ", ".join(f'{{name = "{arm}", app = "{app}{arm}", share = 0.5}}' for arm in ("", "2"))
        arms = arms.replace('name = ""', 'name = "1"')
        return f'[access]\ntrust_headers = true\n[[access.experiments]]\nname = "{name}"\narms = [{arms}]\n'

    folders = [folder_of(tmp_path, app, toml=half(f"of-{app}", app)) for app in ("ctr", "cvr")]
    folders += [folder_of(tmp_path, f"{app}2", app) for app in ("ctr", "cvr")]
    orders = [
        Order(registry, f"{app}{arm}", app, f"{app}{arm}", int(arm or 1)) for app in ("ctr", "cvr") for arm in ("", "2")
    ]
    with (
        small_nodes(orders),
        access(folders, envoy, f"registry.url={registry}", nodes=4) as running,
        ThreadPoolExecutor(8) as callers,
    ):

        def arms(user: int) -> tuple[object, ...]:
            heads = ({"x-model": model, "x-route-key": f"user-{user}"} for model in ("ctr", "cvr"))
            return tuple(once_led(running.call, head=head).body["version"] for head in heads)

        count = Counter(callers.map(arms, range(_USERS)))
        assert {*count} == {(1, 1), (1, 2), (2, 1), (2, 2)}
        assert all(abs(one - _USERS / 4) <= 4 * sqrt(_USERS * 3 / 16) for one in count.values()), count


def test_all_requests_of_a_user_go_to_one_node(
    two: list[SmallNode], registry: str, tmp_path: Path, envoy: Path
) -> None:
    changes = f"registry.url={registry}", "access.trust_headers=true", 'access.balance="user"'
    with access([folder_of(tmp_path, "ctr")], envoy, *changes, nodes=2) as running:
        users = [*map(str, range(20))]

        def nodes() -> dict[str, set[object]]:
            return {
                user: {running.call(head={"x-route-key": user}).body["version"] for _ in range(5)} for user in users
            }

        seen = running.while_healthy(2, nodes)
        assert all(len(versions) == 1 for versions in seen.values())
        assert set().union(*seen.values()) == {1, 2}
        for node in two[:1]:
            node.signal(signal.SIGKILL)
        assert {once_led(running.call, head={"x-route-key": user}).body["version"] for user in seen} == {2}
