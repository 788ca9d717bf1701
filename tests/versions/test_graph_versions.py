"""A graph goes with the versions that name it: made here, taken elsewhere, and called with their weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from streamlearn.versions import (
    Chain,
    Committed,
    Cut,
    History,
    Store,
    VersionRef,
    VersionWriter,
    load_tensors,
    open_store,
)
from streamlearn.versions.format.graphs import get_graph, graph_id_of, put_graph
from tests.versions.history import MODEL, Trainer

_WAIT_S_MAX = 240


class Called(NamedTuple):
    """A graph that one process made, and another one called: beside what it made itself, by weights of a version."""

    made: list[Path]
    store: Store
    first: VersionRef
    version: Committed
    graph: str
    dense: dict[str, Any]
    given: dict[str, Any]
    here: Any
    elsewhere: Any


def run(*arguments: object) -> None:
    """Have TensorFlow do things, in a process of its own with another hash seed, as any two processes have."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONHASHSEED": "random"}
    command = [sys.executable, "-m", "tests.versions.saved_models", *map(str, arguments)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=_WAIT_S_MAX, check=False, env=os.environ | quiet
    )
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> Called:
    folder = tmp_path_factory.mktemp("graphs")
    made = [folder / name for name in ("one", "two")]
    run(made[0])
    store = open_store(str(folder / "store"))
    trainer = Trainer(store)
    (first,) = trainer.story([1])
    graph = put_graph(store, MODEL, made[0])
    trainer.tables.seal(2)
    writer = VersionWriter(store, trainer.head(2))
    writer.add_rows(trainer.tables.changed(1, 2))
    writer.add_dense(weights())
    version = writer.finish(Cut(graph=graph))

    elsewhere = open_store(store.url)
    chain = Chain.find(elsewhere, MODEL)
    assert chain.manifest.graph is not None
    get_graph(elsewhere, MODEL, chain.manifest.graph, folder / "graph")
    dense = {name: np.array(one) for name, one in load_tensors(elsewhere, chain.head).items()}
    chance = np.random.default_rng(8)
    given: dict[str, Any] = {
        "user_inputs": chance.standard_normal((3, 6), np.float32),
        "inputs": chance.standard_normal((5, 6), np.float32),
        "index": np.array([0, 0, 1, 2, 2], np.int32),
    }
    arrays: dict[str, Any] = dense | given
    np.savez(folder / "inputs.npz", **arrays)
    scores = [folder / "here.npz", folder / "elsewhere.npz"]
    # The second process is another one than the first for both: what it makes, and what it calls.
    run(made[1], folder / "inputs.npz", made[0], scores[0], folder / "graph", scores[1])
    return Called(made, store, first.ref, version, graph, dense, given, *(np.load(one) for one in scores))


def weights() -> dict[str, Any]:
    chance = np.random.default_rng(7)
    shapes = {"user_kernel": (6, 4), "score_kernel": (10, 2), "score_bias": (2,)}
    return {name: chance.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def expected(dense: dict[str, Any], given: dict[str, Any]) -> Any:
    """What the two graphs are, in NumPy."""
    flat = np.maximum(given["user_inputs"] @ dense["user_kernel"], 0)
    return np.concatenate([flat[given["index"]], given["inputs"]], 1) @ dense["score_kernel"] + dense["score_bias"]


def test_the_graph_a_version_names_scores_elsewhere_as_it_did_where_it_was_made(called: Called) -> None:
    assert [one.graph for one in History(called.store, MODEL).read()] == [None, called.graph]
    assert called.version.manifest.parent == called.first
    assert called.here["z"].tobytes() == called.elsewhere["z"].tobytes()
    assert called.elsewhere["variables"] == 0  # all weights came from the version
    np.testing.assert_allclose(called.elsewhere["z"], expected(called.dense, called.given), atol=1e-5)


def test_a_graph_that_two_processes_make_alike_has_one_id_and_is_stored_once(called: Called) -> None:
    store, made = called.store, called.made
    assert put_graph(store, MODEL, made[0]) == put_graph(store, MODEL, made[1]) == graph_id_of(made[1])
    assert len(store.entries(f"{MODEL}/graphs")) == 1
