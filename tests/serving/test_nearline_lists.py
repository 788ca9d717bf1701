"""A node that answers with lists found ahead of requests: those of its version and its ancestors, none tainted."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trustme

from benchmarks.nodes.nearline_figures import action_to_list, nearline_run, nearline_users
from streamlearn.access.renewal import open_token
from streamlearn.apps import AppFolder
from streamlearn.cli.options import authority_file
from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.errors import ConfigError, UsageError
from streamlearn.features.keys import keys_of
from streamlearn.load.load_run import Load
from streamlearn.models import export_graphs
from streamlearn.models.logistic import Logistic
from streamlearn.models.tf_calls import Place
from streamlearn.nearline import node_search
from streamlearn.nearline.candidate_list import CandidateList
from streamlearn.nearline.nearline_loop import NearlineLoop
from streamlearn.nearline.node_search import NodeSearch, Unfound
from streamlearn.online.candidate_lists import list_group
from streamlearn.serving.infer import Tensor, numbers_tensor
from streamlearn.serving.node import Node
from streamlearn.settings import Settings
from streamlearn.table import Changes
from streamlearn.testing import ManualClock, wait_until
from streamlearn.versions import History, PointerLog, open_store
from streamlearn.versions.format.graphs import put_graph
from streamlearn.versions.pointer.moves import rollback
from streamlearn.versions.pointer.registry import Node as KnownNode
from tests.nearline.shop import PARTITIONS, Shop, key_of, nearline_app, open_shop, settle
from tests.serving.item_history import DIM, ItemHistory, nearest
from tests.serving.test_retrieve import UserTower, asked, some, vector

WAIT_S, K = 300.0, 20
USERS = range(1, 9)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The graph that scores, and that of the towers."""
    folder, app = tmp_path_factory.mktemp("graphs"), nearline_app()
    assert app.towers is not None
    export_graphs(Logistic(), app.features, app.label_names, folder / "scores")
    export_graphs(UserTower(), app.towers, [str(at) for at in range(DIM)], folder / "towers")
    return folder / "scores", folder / "towers"


@dataclass
class Service:
    """A node, its versions, and what refreshes lists."""

    shop: Shop
    made: ItemHistory
    node: Node
    loop: NearlineLoop

    def ask(self, user: int, **more: Any) -> Any:
        """The answer to a user's request."""
        body = {"user": {"user_id": user, "country": "NO", "idle": 0.0}, "k": K} | more
        status, answer = asked(self.node, body)
        assert status == 200, answer
        return answer

    def refresh(self, *users: int) -> None:
        """Let users act, and wait for their lists."""
        self.shop.act(*users)
        settle(self.loop)

    def answers_from(self, user: int, version: int | None) -> bool:
        """Whether a user's answer comes from a list of a version; None: of none."""
        return bool(self.ask(user).get("source_version") == version)

    def taken_back(self, to: int) -> None:
        """Roll back."""
        known = History(self.made.store, self.made.app.name).read()
        PointerLog(self.made.store, self.made.app.name).move(partial(rollback, known=known, to=to), by="test")

    def outcomes(self) -> dict[str, int]:
        """What became of lists so far."""
        text = asked(self.node, None, "/metrics", "GET")[1]
        lines = [line for line in text.splitlines() if line.startswith("streamlearn_retrieval_lists_total{")]
        return {line.split('"')[1]: int(float(line.split()[-1])) for line in lines}


@pytest.fixture
def serve(tmp_path: Path, graphs: tuple[Path, Path]) -> Iterator[Callable[..., Service]]:
    """What starts a node of an application with lists, whose two first versions have other items."""
    opened: list[Any] = []

    def start(url: str = "", root: str = "", tls: tuple[Path, Path] | None = None, **retrieval: Any) -> Service:
        held = open_shop(tmp_path, url, root)
        shop = held.__enter__()
        opened.append(lambda: held.__exit__(None, None, None))
        said = msgspec.to_builtins(shop.folder.settings)
        said |= {
            "serving": {"users_buckets": [1, 4], "candidates_buckets": [4], "cost_runs": 2},
            "front": {"listen": "127.0.0.1:0", "http": "127.0.0.1:0", "deadline_ms": 30_000},
            "replica": {"beat_s": 0.25},
            "features": {"store": url, "wait_s": 20.0, "reach_s": 60.0},
        }
        said["retrieval"] |= {"k_max": 50, **retrieval}
        said["impressions"] = {"write_back": said["retrieval"]["nearline"] == "ranked"}
        folder = AppFolder(shop.folder.app, tmp_path, msgspec.convert(said, Settings))
        shop.folder = folder
        made = history(folder, graphs)
        shop.show(*USERS)
        shop.act(*USERS)
        shop.fold()
        node = Node(folder, tls=tls, places=[Place("/CPU:0")])
        opened.append(node.close)
        node.wait_ready()
        known = KnownNode(boot_id="n", name="n", state="ready", grpc=node.grpc)
        is_ranked = folder.settings.retrieval.nearline == "ranked"
        loop = NearlineLoop(folder, NodeSearch(folder.app, 50, lambda: [known], is_ranked=is_ranked))
        opened.append(loop.close)
        return Service(shop, made, node, loop)

    yield start
    for close in reversed(opened):
        close()


def history(folder: AppFolder, graphs: tuple[Path, Path]) -> ItemHistory:
    """Two versions; the second lacks some items of the first."""
    store, rng = open_store(folder.store_url), np.random.default_rng(1)
    scores, towers = [put_graph(store, folder.app.name, graph) for graph in graphs]
    kernel = rng.standard_normal((DIM, DIM)).astype(np.float32)
    keys = keys_of(folder.app.features.slot("user_id"), [*USERS]).tolist()
    keys += keys_of(folder.app.features.slot("country"), ["", "NO"]).tolist()
    users = {key: rng.standard_normal(DIM).astype(np.float32) for key in keys}
    dense = {"bias": np.zeros(1, np.float32), "dense_user": np.zeros((1, 1), np.float32), "retrieval/kernel": kernel}
    items, (table,) = np.array(keys_of(folder.app.features.slot("video_id"), [*range(400)])), folder.app.features.tables
    likes = Changes(table.name, items, rng.standard_normal((len(items), table.dim)).astype(np.float32))
    made = ItemHistory(store, folder.app, (scores, towers), dense, users, (likes,))
    made.cut(1, some(rng, range(300)))
    made.cut(2, some(rng, range(150, 400)), gone=range(120))
    return made


def test_a_list_is_what_a_search_would_have_found(serve: Callable[..., Service]) -> None:
    service = serve()
    searched = {user: service.ask(user) for user in USERS}
    assert all("source" not in answer for answer in searched.values())
    settle(service.loop)
    assert service.loop.counts.refreshed == len(USERS)
    wait_until(lambda: service.answers_from(1, 2), "the list", WAIT_S)
    for user, before in searched.items():
        answer = service.ask(user)
        assert (answer["source"], answer["version"], answer["as_of_ms"]) == ("nearline", 2, 1_002)
        assert [item["id"] for item in answer["items"]] == [item["id"] for item in before["items"]]
        scores, exact = ([item["score"] for item in one["items"]] for one in (answer, before))
        assert np.allclose(scores, exact, rtol=1e-3)
        excluded = [item["id"] for item in answer["items"][:5]]
        fewer = service.ask(user, exclude=excluded)
        assert fewer["source"] == "nearline"
        assert [item["id"] for item in fewer["items"][: K - 5]] == [item["id"] for item in answer["items"][5:]]
    # A pinned version, allowed items and more items than a list has left are searched for.
    assert "source" not in service.ask(1, version=2)
    assert "source" not in service.ask(1, allow=[150, 151])
    excluded = [item["id"] for item in service.ask(1)["items"][:5]]
    assert "source" not in service.ask(1, k=50, exclude=excluded)
    # Recommendations rank what the list has, by the version that answers.
    body = {"user": {"user_id": 1, "country": "NO", "idle": 0.0}, "k": 5, "candidates": K}
    status, ranked = asked(service.node, body, "/recommend")
    assert (status, ranked["version"], ranked["candidates"]) == (200, 2, K), ranked
    assert (ranked["source"], ranked["source_version"]) == ("nearline", 2)
    assert {item["id"] for item in ranked["items"]} <= {item["id"] for item in service.ask(1)["items"]}
    path = "/v2/models/shop.retrieve/infer"
    inputs = [{"name": name, "datatype": kind, "shape": [1], "data": [value]} for name, kind, value in TENSORS]
    parameters = asked(service.node, {"inputs": inputs}, path)[1]["parameters"]
    assert (parameters["source"], parameters["source_version"]) == ("nearline", 2)
    # What refreshes lists does not get one.
    parameters = asked(service.node, {"inputs": inputs, "parameters": {"priority": 255}}, path)[1]["parameters"]
    assert "source" not in parameters


def test_a_ranked_list_is_what_the_node_recommends_and_writes_no_impression(serve: Callable[..., Service]) -> None:
    service = serve(nearline="ranked")
    features: dict[str, Any] = {"country": "NO", "idle": 0.0}
    wishes = {"k": 50, "candidates": 50, "shown": ""}
    bodies = {user: {"user": features | {"user_id": user}} | wishes for user in USERS}
    best = {user: asked(service.node, body, "/recommend")[1] for user, body in bodies.items()}
    assert all("source" not in answer for answer in best.values())
    searched = {user: service.ask(user) for user in USERS}
    shown = service.shop.shown
    settle(service.loop)
    assert service.loop.counts.refreshed == len(USERS)
    wait_until(lambda: service.answers_from(1, 2), "the list", WAIT_S)
    for user in USERS:
        answer = service.ask(user)
        assert (answer["source"], answer["version"]) == ("nearline", 2)
        expected = best[user]["items"][:K]
        assert [item["id"] for item in answer["items"]] == [item["id"] for item in expected]
        scores, exact = [item["score"] for item in answer["items"]], [item["scores"]["click"] for item in expected]
        assert np.allclose(scores, exact, rtol=1e-3)
    orders = [[[item["id"] for item in one[user]["items"][:K]] for user in USERS] for one in (best, searched)]
    assert orders[0] != orders[1]
    # Impressions are written in order: one that is shown comes next.
    assert asked(service.node, bodies[1] | {"shown": "0"}, "/recommend")[0] == 200
    wait_until(lambda: service.shop.shown > shown, "an impression", WAIT_S)
    assert service.shop.shown == shown + 1
    # After a rollback, these lists are not answered either.
    service.taken_back(1)
    wait_until(lambda: service.ask(1)["version"] == 1 and service.answers_from(1, None), "the rollback", WAIT_S)


TENSORS = [("user_id", "INT64", 1), ("country", "BYTES", "NO"), ("idle", "FP32", 0.0), ("k", "INT64", K)]


def test_lists_of_versions_before_are_answered_and_after_a_rollback_none_that_was_taken_back(
    serve: Callable[..., Service],
) -> None:
    service = serve(cache_versions=1)
    settle(service.loop)
    wait_until(lambda: service.answers_from(1, 2), "the list", WAIT_S)
    rng = np.random.default_rng(5)
    service.made.cut(3, some(rng, [*range(200, 300), *range(350, 450)]), gone=range(300, 350))
    wait_until(lambda: service.ask(2)["version"] == 3 and service.answers_from(1, 2), "the next version", WAIT_S)
    # Items that the answering version lacks are not in the answer.
    assert not {item["id"] for item in service.ask(1, k=5)["items"]} & {*range(300, 350)}
    service.refresh(1)
    wait_until(lambda: service.answers_from(1, 3), "a list of version 3", WAIT_S)
    wrong, ended, seen = list[Any](), threading.Event(), set[Any]()

    def ask_on() -> None:
        while not ended.is_set():
            answer = service.ask(1)
            seen.add((answer["version"], answer.get("source_version")))
            if answer["version"] == 2 and answer.get("source_version") == 3:
                wrong.append(answer)

    asking = threading.Thread(target=ask_on)
    asking.start()
    try:
        service.taken_back(2)
        wait_until(lambda: (2, None) in seen, "the rollback", WAIT_S)
        # The user who did not act since has a list of version 2, which may be answered again.
        wait_until(lambda: service.answers_from(2, 2), "lists of version 2", WAIT_S)
        # The list of version 3 is still there, and never answered.
        assert [item["id"] for item in service.ask(1)["items"]] == nearest(
            service.made.truth[2], vector(service.made, 1, "NO"), K
        )
        assert service.answers_from(1, None)
        service.refresh(1)
        wait_until(lambda: service.answers_from(1, 2), "the new list", WAIT_S)
    finally:
        ended.set()
        asking.join()
    assert wrong == []
    assert service.outcomes()["stale"] > 0


def test_a_node_of_one_fixed_version_searches(serve: Callable[..., Service]) -> None:
    service = serve()
    service.refresh(1)
    wait_until(lambda: service.answers_from(1, 2), "the list", WAIT_S)
    with closing(Node(service.shop.folder, places=[Place("/CPU:0")], version=2)) as held:
        held.wait_ready()
        for _ in range(3):
            status, answer = asked(held, {"user": {"user_id": 1, "country": "NO", "idle": 0.0}, "k": K})
            assert (status, answer["version"], answer.get("source")) == (200, 2, None)


def test_a_list_of_too_old_a_version_is_not_answered(serve: Callable[..., Service]) -> None:
    service = serve(cache_versions=0)
    settle(service.loop)
    wait_until(lambda: service.answers_from(1, 2), "the list", WAIT_S)
    service.made.cut(3, some(np.random.default_rng(5), range(200, 450)))
    wait_until(lambda: service.ask(1)["version"] == 3, "the next version", WAIT_S)
    assert service.answers_from(1, None)


def test_damaged_and_hostile_lists_are_refused_and_searched_for(serve: Callable[..., Service]) -> None:
    service = serve()
    settle(service.loop)
    wait_until(lambda: service.answers_from(1, 2), "the list", WAIT_S)
    group, store = list_group(service.shop.folder, PARTITIONS), service.shop.store
    (good, other) = service.shop.lists(1, 2)
    assert good is not None
    assert other is not None
    key, expected = key_of(1), nearest(service.made.truth[2], vector(service.made, 1, "NO"), K)
    twice = CandidateList(key, 2, 1, 1, 1, np.array([7, 7], np.uint64), np.array([1.0, 1.0])).encode()
    rng = np.random.default_rng(3)
    wrong = [b"", other, good[:-1], good + b"\0", twice, b"\xff" * 500, bytes(rng.bytes(len(good)))]
    for _ in range(20):
        at = int(rng.integers(0, len(good)))
        wrong.append(good[:at] + bytes([good[at] ^ (1 << int(rng.integers(8)))]) + good[at + 1 :])
    partition, before = key % PARTITIONS, service.outcomes()["damaged"]
    service.loop.close()
    for data in wrong:
        claimed = store.claim(group, partition)
        store.write(group, partition, (claimed, claimed), {key: data}, 60_000)
        answer = service.ask(1)
        assert "source" not in answer, data
        assert [item["id"] for item in answer["items"]] == expected
    assert service.outcomes()["damaged"] == before + len(wrong)


def test_without_the_store_nodes_search_and_no_request_fails(serve: Callable[..., Service], own_redis: Any) -> None:
    service = serve(own_redis.url)
    settle(service.loop)
    wait_until(lambda: service.answers_from(1, 2), "the list", WAIT_S)
    own_redis.kill()
    for user in USERS:
        assert "source" not in service.ask(user)
    assert service.outcomes()["away"] > 0
    own_redis.launch()
    service.shop.fold()
    service.refresh(*USERS)
    wait_until(lambda: service.answers_from(1, 2), "the list", WAIT_S)


def test_who_acts_gets_a_list_however_often_the_process_is_killed(
    serve: Callable[..., Service], tmp_path: Path
) -> None:
    root = f"{tmp_path.as_uri()}/topics"
    service = serve(root=root)
    (tmp_path / "app.py").write_text("from tests.nearline.shop import nearline_app\n\napp = nearline_app()\n")
    words = [sys.executable, "-m", "streamlearn", "nearline", str(tmp_path), "--at", service.node.grpc]
    for setting in ("nearline=found", "k_max=50"):
        words += ["--set", f"retrieval.{setting}"]
    words += ["--set", f"topics.root={root}"]

    def are_made(since_ms: int) -> bool:
        lists = service.shop.lists(*USERS)
        return all(data is not None and struct.unpack_from("<q", data, 40)[0] >= since_ms for data in lists)

    for wave in range(3):
        acted_ms = SYSTEM_CLOCK.wall_ms()
        service.shop.act(*USERS)
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert b"keeping lists" in process.stdout.readline()
                if wave == 1:  # at once: the next one has to do its work
                    continue
                wait_until(partial(are_made, acted_ms), "lists", WAIT_S)
            finally:
                process.kill()


def lists_of(search: NodeSearch, *users: tuple[Tensor, ...]) -> list[CandidateList | Unfound]:
    outcomes = search.ask([search.message(inputs) for inputs in users])
    return search.lists([key_of(1)] * len(users), outcomes)


def test_a_node_says_what_it_could_not_find(serve: Callable[..., Service]) -> None:
    service = serve()
    nodes: list[KnownNode] = []
    search = NodeSearch(service.shop.folder.app, 50, lambda: nodes)
    user = (numbers_tensor("user_id", np.array([1], np.int64)), numbers_tensor("idle", np.array([0], np.float32)))
    assert lists_of(search, user) == [Unfound.LATER]
    nodes.append(KnownNode(boot_id="n", name="n", state="ready", grpc=service.node.grpc))
    search = NodeSearch(service.shop.folder.app, 50, lambda: nodes)
    found, wrong = lists_of(search, user, user[1:])
    assert isinstance(found, CandidateList)
    assert (found.version, len(found.keys), wrong) == (2, 50, Unfound.WRONG)
    nodes[0] = msgspec.structs.replace(nodes[0], has_tls=True)
    search = NodeSearch(service.shop.folder.app, 50, lambda: nodes)
    assert lists_of(search, user) == [Unfound.LATER]


def test_lists_are_found_over_tls_if_the_authority_signed_the_certificate(
    serve: Callable[..., Service], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, files = trustme.CA(), [tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem", "other.pem")]
    cert, key, ca, other = files
    issued = authority.issue_cert("a-node")
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(ca)
    trustme.CA().cert_pem.write_to_path(other)
    service = serve(tls=(cert, key))
    nodes = [KnownNode(boot_id="n", name="n", state="ready", grpc=service.node.grpc, has_tls=True)]
    user = (numbers_tensor("user_id", np.array([1], np.int64)), numbers_tensor("idle", np.array([0], np.float32)))

    def found(authority: Path | None) -> CandidateList | Unfound:
        return lists_of(NodeSearch(service.shop.folder.app, 50, lambda: nodes, authority=authority), user)[0]

    assert isinstance(found(ca), CandidateList)
    assert found(other) == Unfound.LATER
    assert "invalid peer certificate: UnknownIssuer" in caplog.text
    assert found(None) == Unfound.LATER
    assert "the nodes take TLS: give --ca FILE" in caplog.text
    assert found(tmp_path / "no.pem") == Unfound.LATER
    assert "no.pem" in caplog.text
    nodes[0] = msgspec.structs.replace(nodes[0], has_tls=False)
    assert found(ca) == Unfound.LATER
    assert "no node takes TLS, and --ca asks for it" in caplog.text
    with pytest.raises(UsageError, match=r"--ca .*no\.pem cannot be used"):
        authority_file(tmp_path / "no.pem")
    with pytest.raises(ConfigError, match=r"no\.pem"):
        Load(service.node.grpc, authority=tmp_path / "no.pem")
    with pytest.raises(UsageError, match="cannot be asked over TLS"):
        Load(f"http://{service.node.http}/score", authority=ca)


def test_the_benchmark_measures_lists_of_a_node(serve: Callable[..., Service]) -> None:
    service = serve()
    users = [{"user_id": user, "country": "NO"} for user in range(100, 200)]
    with nearline_run(service.shop.folder, service.node.grpc, users, {"video_id": 1}) as run:
        figures = nearline_users(run, 1) | action_to_list(run, 50.0, 1.0)
    assert figures["actions"] == 50
    assert figures["nearline_users_per_s"] > 0
    assert 0 < figures["action_to_list_p99_s"] < WAIT_S


def test_a_token_that_changes_is_sent_from_the_next_connection_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str | None] = []

    class Connection:
        def __init__(self, address: str, *, token: str | None, authority: Path | None, connections: int) -> None:
            sent.append(token)

        def outcomes(self, messages: list[bytes], wait_s: float) -> list[tuple[str, str, None]]:
            return [("UNAVAILABLE", "", None)] * len(messages)

    monkeypatch.setattr(node_search, "Load", Connection)
    file, clock = tmp_path / "token", ManualClock()
    file.write_text("first")
    known = [KnownNode(boot_id="1", name="1", state="ready", grpc="127.0.0.1:1")]
    search = NodeSearch(nearline_app(), 5, lambda: known, open_token(file), clock=clock)

    def tokens() -> list[str | None]:
        clock.sleep(2.0)
        assert lists_of(search, ()) == [Unfound.LATER]
        return sent

    assert tokens() == tokens() == ["first"]
    file.write_text("second")
    wait_until(lambda: tokens()[-1] == "second", "the new token")
    assert sent == ["first", "second"]
