"""A node that retrieves: its answers are what a scan of the version's vectors finds, of one version whole."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from typer.testing import CliRunner

from streamlearn.apps import load_app
from streamlearn.cli.main import cli
from streamlearn.errors import BadRecord
from streamlearn.features import FeatureSpec
from streamlearn.features.keys import keys_of
from streamlearn.models import PackedSide, export_graphs
from streamlearn.models.logistic import Logistic
from streamlearn.models.tf_calls import Place
from streamlearn.serving.node import Node
from streamlearn.settings import ServingSettings, Settings
from streamlearn.settings.front import FrontSettings
from streamlearn.settings.retrieval import RetrievalSettings
from streamlearn.settings.versions import ReplicaSettings
from streamlearn.testing import wait_until
from streamlearn.versions import (
    History,
    PointerLog,
    Verdict,
    export_version,
    import_version,
    open_store,
    verify,
    write_verdict,
)  # fmt: skip
from streamlearn.versions.format.graphs import put_graph
from streamlearn.versions.pointer.moves import publish, rollback
from tests.serving.inference import answer_class, request_class
from tests.serving.item_history import DIM, ItemHistory, Vectors, finding_app, folder_of, nearest
from tests.serving.test_serve_verb import serving

_WAIT_S = 300.0
_USERS, _K = 40, 7
_APP = "from tests.serving.item_history import finding_app\n\napp = finding_app()\n"


class UserTower:
    """A user's vector is the sum of the rows, by a matrix."""

    weight_names = ("kernel",)

    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> list[Any]:
        """See `Model`."""
        del features, labels, seed
        return [tf.zeros((DIM, DIM))]

    def user(self, weights: Sequence[Any], inputs: PackedSide) -> PackedSide:
        """See `Model`."""
        return PackedSide(tf.matmul(inputs.flat[:, :DIM] + inputs.flat[:, DIM : 2 * DIM], weights[0]), None)

    def score(self, weights: Sequence[Any], user: PackedSide, user_index: Any, inputs: PackedSide) -> Any:
        """See `Model`."""
        del weights, inputs
        return tf.gather(user.flat, user_index)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The graph that scores, and that of the towers."""
    folder, app = tmp_path_factory.mktemp("graphs"), finding_app()
    assert app.towers is not None
    export_graphs(Logistic(), app.features, app.label_names, folder / "scores")
    export_graphs(UserTower(), app.towers, [str(at) for at in range(DIM)], folder / "towers")
    return folder / "scores", folder / "towers"


@pytest.fixture
def made(tmp_path: Path, graphs: tuple[Path, Path]) -> ItemHistory:
    """Two versions of an application, of which the second has other items."""
    folder, rng = folder_of(tmp_path, finding_app()), np.random.default_rng(1)
    store = open_store(folder.store_url)
    scores, towers = [put_graph(store, folder.app.name, graph) for graph in graphs]
    kernel = rng.standard_normal((DIM, DIM)).astype(np.float32)
    keys = keys_of(folder.app.features.slot("user_id"), [*range(_USERS)]).tolist()
    keys += keys_of(folder.app.features.slot("country"), ["", "NO"]).tolist()
    users = {key: rng.standard_normal(DIM).astype(np.float32) for key in keys}
    dense = {"bias": np.zeros(1, np.float32), "retrieval/kernel": kernel}
    made = ItemHistory(store, folder.app, (scores, towers), dense, users)
    made.cut(1, some(rng, range(300)))
    made.cut(2, some(rng, range(150, 400)), gone=range(120))
    return made


def some(rng: np.random.Generator, items: Any) -> Vectors:
    """Vectors of items by chance."""
    return {item: rng.standard_normal(DIM).astype(np.float32) for item in items}


def settings() -> Settings:
    """Those of a node."""
    shapes = ServingSettings(users_buckets=[1, 4], candidates_buckets=[4], cost_runs=2)
    front = FrontSettings(listen="127.0.0.1:0", http="127.0.0.1:0", deadline_ms=30_000)
    retrieval, replica = RetrievalSettings(k_max=50), ReplicaSettings(beat_s=0.25)
    return Settings(serving=shapes, front=front, retrieval=retrieval, replica=replica)


@pytest.fixture
def node(made: ItemHistory, tmp_path: Path) -> Iterator[Node]:
    """A node that is ready."""
    with Node(folder_of(tmp_path, made.app, settings()), places=[Place("/CPU:0")]) as node:
        node.wait_ready()
        yield node


def asked(node: Node | str, body: Any, path: str = "/retrieve", method: str = "POST") -> tuple[int, Any]:
    """What a node, or the one at an address, answers over HTTP."""
    host, _, port = (node if isinstance(node, str) else node.http or "").rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=_WAIT_S)
    connection.request(method, path, json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    status, text = response.status, response.read()
    connection.close()
    return status, json.loads(text) if text.startswith((b"{", b"[")) else text.decode()


def vector(made: ItemHistory, user: int, country: str = "") -> Any:
    """The vector of a user."""
    spec = made.app.features
    keys = [keys_of(spec.slot("user_id"), [user])[0], keys_of(spec.slot("country"), [country])[0]]
    return (made.users[int(keys[0])] + made.users[int(keys[1])]) @ made.dense["retrieval/kernel"]


def check(made: ItemHistory, answer: Any, user: Any, k: int, exclude: Any = ()) -> None:
    """An answer is what a scan of its version's vectors finds, whichever version that is."""
    truth = made.truth[answer["version"]]
    ids, scores = [item["id"] for item in answer["items"]], [item["score"] for item in answer["items"]]
    assert ids == nearest(truth, user, k, exclude)
    assert np.allclose(scores, [truth[item] @ user for item in ids], rtol=1e-4, atol=1e-4)


def test_the_nearest_items_are_found_and_a_rollback_takes_back_vectors_and_items(made: ItemHistory, node: Node) -> None:
    rng = np.random.default_rng(2)
    for user in range(12):
        k, country = int(rng.integers(1, 50)), ("", "NO")[user % 2]
        exclude = [int(item) for item in rng.integers(0, 420, int(rng.integers(0, 200)))]
        body = {"user": {"user_id": user, "country": country}, "k": k, "exclude": exclude, "id": f"q{user}"}
        status, answer = asked(node, body)
        assert status == 200, answer
        assert (answer["version"], answer["model"], answer["id"]) == (2, "shop.retrieve", f"q{user}")
        assert answer["as_of_ms"] == 1_002
        check(made, answer, vector(made, user, country), k, exclude)
    body = {"user": {"user_id": 3}, "k": _K}
    status, answer = asked(node, body | {"version": 1})
    assert (status, answer["version"]) == (200, 1)
    check(made, answer, vector(made, 3), _K)
    assert asked(node, body | {"version": 9})[0] == 409
    known = History(made.store, made.app.name).read()
    PointerLog(made.store, made.app.name).move(partial(rollback, known=known, to=1), by="test")
    wait_until(lambda: asked(node, body)[1]["version"] == 1, "the rollback", _WAIT_S)
    check(made, asked(node, body)[1], vector(made, 3), _K)
    # Scores go back with it.
    assert asked(node, {"user": {"user_id": 3}, "items": [{"video_id": 5}]}, "/score")[1]["version"] == 1


def test_an_exported_version_finds_the_same_items_where_it_is_imported(made: ItemHistory, tmp_path: Path) -> None:
    name, out, there = made.app.name, tmp_path / "out", folder_of(tmp_path / "there", made.app, settings())
    exported = export_version(made.store, name, 2, out)
    assert made.last is not None
    assert exported.retrieval == made.last.manifest.retrieval
    assert "user_tower/" in (out / "README.txt").read_text()
    store = open_store(there.store_url)
    done = import_version(store, name, out)
    assert done.manifest.retrieval == exported.retrieval
    assert verify(store, name, everything=True).defects == ()
    write_verdict(store, done.folder, Verdict(version=done.ref, outcome="passed"))
    known = History(store, name).read()
    PointerLog(store, name).move(partial(publish, known=known, version=1, run=1), by="test")
    with Node(there, places=[Place("/CPU:0")]) as node:
        node.wait_ready()
        for user in range(5):
            status, answer = asked(node, {"user": {"user_id": user}, "k": _K})
            assert (status, answer["version"]) == (200, 1), answer
            check(made, answer | {"version": 2}, vector(made, user), _K)
    (graph,) = (out / "user_tower").glob("**/saved_model.pb")
    graph.write_bytes(b"something else")
    with pytest.raises(BadRecord, match="user_tower: it is graph"):
        import_version(open_store(str(tmp_path / "other")), name, out)


def test_requests_that_cannot_be_are_refused_with_help(node: Node) -> None:
    user = {"user_id": 1}
    bodies: tuple[tuple[Any, str], ...] = (
        ([1], 'expected an object with "user" and "k"'),
        ({"user": user, "k": 1, "deadline_ms": 0}, '"deadline_ms" is 0, expected'),
        ({"user": user, "k": 1, "priority": "x"}, '"priority" is "x", expected'),
        ({"user": user}, '"k" is missing; help: it is the number of items, from 1 to 50'),
        ({"user": user, "k": 0}, '"k" is 0, expected 1 to 50; help: retrieval.k_max'),
        ({"user": user, "k": 10**9}, '"k" is 1000000000, expected 1 to 50'),
        ({"user": {}, "k": 1}, "user.user_id: it is missing"),
        ({"user": user, "k": 1, "exclude": ["a"]}, "expected a whole number"),
    )
    for body, text in bodies:
        status, answer = asked(node, body)
        assert (status, text in answer["error"]) == (400, True), answer


def test_the_model_is_served_by_the_open_inference_protocol_beside_the_other(made: ItemHistory, node: Node) -> None:
    inputs = [
        {"name": "user_id", "datatype": "INT64", "shape": [1], "data": [7]},
        {"name": "k", "datatype": "INT64", "shape": [1], "data": [_K]},
    ]
    path = "/v2/models/shop.retrieve/infer"
    status, answer = asked(node, {"inputs": inputs, "outputs": [{"name": "id"}, {"name": "score"}]}, path)
    assert made.last is not None
    parameters = {"as_of_ms": 1_002, "digest": made.last.ref.sha256[:16]}
    assert (status, answer["model_version"], answer["parameters"]) == (200, "2", parameters)
    ids, scores = answer["outputs"]
    items = [{"id": item, "score": score} for item, score in zip(ids["data"], scores["data"], strict=True)]
    check(made, {"version": 2, "items": items}, vector(made, 7), _K)
    request = request_class(model_name="shop.retrieve")
    for tensor in inputs:
        request.inputs.add(name=tensor["name"], datatype="INT64", shape=[1])
        request.raw_input_contents.append(np.array(tensor["data"], np.int64).tobytes())
    with grpc.insecure_channel(node.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        reply = answer_class.FromString(infer(request.SerializeToString(), timeout=_WAIT_S))
    assert [output.datatype for output in reply.outputs] == ["INT64", "FP32"]
    assert np.frombuffer(reply.raw_output_contents[0], np.int64).tolist() == ids["data"]
    assert asked(node, None, "/v2/models/shop.retrieve/ready", "GET")[0] == 200
    described = asked(node, None, "/v2/models/shop.retrieve", "GET")[1]
    assert [each["name"] for each in described["inputs"]] == ["user_id", "country", "k", "exclude", "allow"]
    (statistics,) = asked(node, None, "/v2/models/shop.retrieve/stats", "GET")[1]["model_stats"]
    assert (statistics["name"], statistics["inference_stats"]["success"]["count"]) == ("shop.retrieve", 2)
    metrics = asked(node, None, "/metrics", "GET")[1]
    assert "streamlearn_retrieval_requests_total 2.0" in metrics
    assert f"streamlearn_retrieval_library_items {len(made.truth[2])}.0" in metrics
    assert f"streamlearn_retrieval_scanned_items_total {2 * len(made.truth[2])}.0" in metrics


def test_answers_are_of_one_version_while_versions_are_staged_and_taken_back(made: ItemHistory, node: Node) -> None:
    rng, ended, seen, different = np.random.default_rng(3), threading.Event(), [2], dict[str, tuple[int, Any]]()

    def is_seen(version: int) -> bool:
        return seen[-1] == version

    def ask(asker: int) -> None:
        at = asker
        while not ended.is_set():
            at = (at + 2) % _USERS
            status, answer = asked(node, {"id": "q", "user": {"user_id": at}, "k": 30, "exclude": [5 * at]})
            assert status == 200, answer
            different[f"{at} {answer}"] = at, answer
            seen.append(answer["version"])

    with ThreadPoolExecutor(2) as askers:
        asking = [askers.submit(ask, asker) for asker in range(2)]
        try:
            for version in range(3, 7):
                # All vectors differ, some items are new, and some have gone.
                known = [*made.truth[version - 1]]
                made.cut(version, some(rng, range(100 * version, 100 * version + 150)), gone=known[:60])
                wait_until(partial(is_seen, version), "it answers", _WAIT_S)
            log, history = PointerLog(made.store, made.app.name), History(made.store, made.app.name).read()
            log.move(partial(rollback, known=history, to=5), by="test")
            wait_until(partial(is_seen, 5), "the rollback", _WAIT_S)
        finally:
            ended.set()
        for each in asking:
            each.result()
    assert {*seen} >= {3, 4, 5, 6}
    for user, answer in different.values():
        check(made, answer, vector(made, user), 30, [5 * user])


def test_a_version_for_other_towers_is_refused_and_the_one_before_goes_on(made: ItemHistory, node: Node) -> None:
    retrieval = made.app.retrieval
    assert retrieval is not None
    app, made.app = made.app, replace(made.app, retrieval=replace(retrieval, model="model:Other"))
    made.cut(3, {})
    made.app = app
    wait_until(lambda: "was made for towers" in str(node.status().error), "the refusal", _WAIT_S)
    status, answer = asked(node, {"user": {"user_id": 3}, "k": _K})
    assert (status, answer["version"]) == (200, 2)


def test_items_are_found_in_the_node_also_if_lanes_that_score_are_processes(made: ItemHistory, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(_APP)
    compiled = json.dumps(str(tmp_path / "compiled"))
    settings = f"lane_processes = true\ncache_folder = {compiled}\nusers_buckets = [1]\ncandidates_buckets = [4]"
    front = 'listen = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\ndeadline_ms = 30000\ndrain_s = 0.5'
    (tmp_path / "app.toml").write_text(f"[serving]\n{settings}\n[front]\n{front}\n")
    with serving(load_app(tmp_path)) as (_, address):
        status, answer = asked(address, {"user": {"user_id": 5}, "k": _K})
        assert status == 200, answer
        check(made, answer, vector(made, 5), _K)
        assert asked(address, {"user": {"user_id": 5}, "items": [{"video_id": 7}]}, "/score")[0] == 200


def test_the_verb_shows_what_a_node_finds(made: ItemHistory, node: Node, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(_APP)

    def said(*more: str) -> tuple[int, Any]:
        result = CliRunner().invoke(cli, ["retrieve", str(tmp_path), "--at", node.http or "", *more])
        return result.exit_code, result.exception if result.exit_code else result.stdout

    status, text = said("--user", "user_id=7", "--user", "country=NO", "--k", "3", "--json")
    assert status == 0, text
    check(made, json.loads(text), vector(made, 7, "NO"), 3)
    status, text = said("--user", "user_id=7", "--version", "1")
    assert "version 1 of shop.retrieve" in text, text
    status, text = said("--user", "user_id=7", "--k", "3", "--rank")
    assert "version 2 of shop" in text, text
    assert "click" in text, text
    for wrong, help in (
        (("--user", "age=7"), "features of users are user_id, country"),
        (("--user", "user_id=x"), "user_id takes numbers"),
        (("--user", "user_id=7", "--user", "user_id=8"), "several values of one feature with commas"),
        (("--user", "user_id=7", "--version", "9"), "correct --user, --k, --version"),
        (("--at", "127.0.0.1:1"), "start a node"),
    ):
        _, error = said(*wrong)
        assert help in error.help, error
