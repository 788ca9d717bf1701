"""A graph goes with the versions that name it: made here, taken elsewhere, and called with their weights."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.versions import Chain, Cut, History, Store, VersionWriter, load_tensors, open_store
from streamlearn.versions.format.graphs import get_graph, graph_id_of, put_graph
from tests.versions.history import MODEL, Trainer

_WAIT_S_MAX = 240


def run(*many: Sequence[str]) -> None:
    """Have TensorFlow do things, each in a process of its own with another hash seed, as any two processes have."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONHASHSEED": "random"}

    def done(arguments: Sequence[str]) -> None:
        command = [sys.executable, "-m", "tests.versions.saved_models", *arguments]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_WAIT_S_MAX, check=False, env=os.environ | quiet
        )
        assert ended.returncode == 0, ended.stderr

    with ThreadPoolExecutor(len(many)) as pool:
        list(pool.map(done, many))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same model, saved by two processes."""
    folders = [tmp_path_factory.mktemp("graphs") / name for name in ("one", "two")]
    run(*(("make", str(folder)) for folder in folders))
    return folders


def weights() -> dict[str, Any]:
    chance = np.random.default_rng(7)
    shapes = {"user_kernel": (6, 4), "score_kernel": (10, 2), "score_bias": (2,)}
    return {name: chance.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def expected(dense: dict[str, Any], given: dict[str, Any]) -> Any:
    """What the two graphs are, in NumPy."""
    flat = np.maximum(given["user_inputs"] @ dense["user_kernel"], 0)
    return np.concatenate([flat[given["index"]], given["inputs"]], 1) @ dense["score_kernel"] + dense["score_bias"]


def test_the_graph_a_version_names_scores_elsewhere_as_it_did_where_it_was_made(
    local: Store, made: list[Path], tmp_path: Path
) -> None:
    trainer = Trainer(local)
    (first,) = trainer.story([1])
    graph = put_graph(local, MODEL, made[0])
    trainer.tables.seal(2)
    writer = VersionWriter(local, trainer.head(2))
    writer.add_rows(trainer.tables.changed(1, 2))
    writer.add_dense(weights())
    version = writer.finish(Cut(graph=graph))
    assert [one.graph for one in History(local, MODEL).read()] == [None, graph]
    assert version.manifest.parent == first.ref

    elsewhere = open_store(local.url)
    chain = Chain.find(elsewhere, MODEL)
    assert chain.manifest.graph is not None
    get_graph(elsewhere, MODEL, chain.manifest.graph, tmp_path / "graph")
    dense = {name: np.array(one) for name, one in load_tensors(elsewhere, chain.head).items()}
    chance = np.random.default_rng(8)
    given: dict[str, Any] = {
        "user_inputs": chance.standard_normal((3, 6), np.float32),
        "inputs": chance.standard_normal((5, 6), np.float32),
        "index": np.array([0, 0, 1, 2, 2], np.int32),
    }
    arrays: dict[str, Any] = dense | given
    np.savez(tmp_path / "inputs.npz", **arrays)
    scores = [tmp_path / "here.npz", tmp_path / "elsewhere.npz"]
    words = [str(tmp_path / "inputs.npz"), str(made[0]), str(scores[0]), str(tmp_path / "graph"), str(scores[1])]
    run(("call", *words))
    found = [np.load(one) for one in scores]
    assert found[0]["z"].tobytes() == found[1]["z"].tobytes()
    assert found[1]["variables"] == 0  # all weights came from the version
    np.testing.assert_allclose(found[1]["z"], expected(dense, given), atol=1e-5)


def test_a_graph_that_two_processes_make_alike_has_one_id_and_is_stored_once(local: Store, made: list[Path]) -> None:
    assert put_graph(local, MODEL, made[0]) == put_graph(local, MODEL, made[1]) == graph_id_of(made[1])
    assert len(local.entries(f"{MODEL}/graphs")) == 1
