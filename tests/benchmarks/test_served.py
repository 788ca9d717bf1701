"""What peers serve is the same model: rows by number, merged and padded, score as the graphs do one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.nodes.serving_workload import Workload
from benchmarks.peers.served_model import ServedModel
from streamlearn.features import FeatureSpec, Slot
from streamlearn.load.requests import LoadRequests
from streamlearn.models import Din, PackedSide, export_graphs, load_graphs

DIM, LENGTH, VALUES = 3, 4, 7
FEATURES = FeatureSpec(
    (
        Slot("who", "user", dim=DIM),
        Slot("watched", "user", dim=DIM, multi=True, pooling="sequence", length=LENGTH, keys_of="video_id"),
        Slot("where", "user", dim=DIM),
        Slot("video_id", "item", dim=DIM),
        Slot("author", "item", dim=DIM),
    ),
    item_id="video_id",
)
FIRST = {"who": 1, "where": 8, "video_id": 15, "watched": 15, "author": 22}
COUNTS = (2, 0, 5, 1, 9)


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    """Five requests of a small model, and what its graphs make of each alone."""
    graphs = tmp_path_factory.mktemp("served") / "graphs"
    described = export_graphs(Din(hidden=(4,), attention=(3,)), FEATURES, ["click"], graphs)
    random = np.random.default_rng(5)
    weights = {
        one.name: random.standard_normal([int(size or 0) for size in one.shape], np.float32)
        for one in described.weights
    }
    rows = random.standard_normal((29, DIM), np.float32)
    rows[0] = 0
    lengths = np.array([0, LENGTH, 2, 1, 3])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    users, items = len(COUNTS), sum(COUNTS)
    user = {
        "who": random.integers(0, VALUES, users),
        "where": random.integers(0, VALUES, users),
        "watched": random.integers(0, VALUES, int(lengths.sum())),
        "watched[]": offsets,
    }
    item = {name: random.integers(0, VALUES, items) for name in ("video_id", "author")}
    asked = LoadRequests(user, item, np.concatenate([[0], np.cumsum(COUNTS)]))
    expected = [_alone(graphs, weights, rows, asked, at) for at in range(users)]
    return Workload("small", FEATURES, graphs, weights, rows, FIRST, asked, expected)


def _alone(
    graphs: Path,
    weights: dict[str, np.typing.NDArray[np.float32]],
    rows: np.typing.NDArray[np.float32],
    asked: LoadRequests,
    at: int,
) -> np.typing.NDArray[np.float32]:
    """One request, put together value by value."""
    loaded = load_graphs(graphs)
    dense = loaded.weights(weights)
    flat = np.concatenate([rows[FIRST[name] + asked.user[name][at]] for name in ("who", "where")])[None]
    block = np.zeros((1, LENGTH, DIM + 1), np.float32)
    begin, end = asked.user["watched[]"][at : at + 2]
    for place, value in enumerate(asked.user["watched"][begin:end]):
        block[0, place] = [*rows[FIRST["watched"] + value], 1]
    known = loaded.user(dense, PackedSide(flat, block))
    found = []
    for one in range(asked.offsets[at], asked.offsets[at + 1]):
        item = np.concatenate([rows[FIRST[name] + asked.item[name][one]] for name in ("video_id", "author")])[None]
        logit = loaded.score(dense, known, np.zeros(1, np.int32), PackedSide(item, None)).numpy()[0, 0]
        found.append(1 / (1 + np.exp(-logit)))
    return np.array(found, np.float32)


def test_merged_requests_score_as_each_does_alone(workload: Workload, tmp_path: Path) -> None:
    workload.write(tmp_path)
    served = ServedModel(tmp_path, users=(1, 2), candidates=(4,))
    # Two at a time at most, and the last one in three calls: all of merging and splitting is in this.
    found = served.score(workload.requests)
    assert [len(one) for one in found] == list(COUNTS)
    for one, expected in zip(found, workload.expected, strict=True):
        np.testing.assert_allclose(one, expected, atol=1e-5)
    np.testing.assert_allclose(served.score(workload.requests[2:3])[0], workload.expected[2], atol=1e-5)


def test_requests_are_numbers_of_rows_and_histories_end_in_empty_places(workload: Workload) -> None:
    request = workload.requests[2]
    asked = workload.asked
    assert request.dtype == np.int32
    assert request[:2].tolist() == [1 + asked.user["who"][2], 8 + asked.user["where"][2]]
    watched = asked.user["watched"][LENGTH : LENGTH + 2]
    assert request[2 : 2 + LENGTH].tolist() == [*(15 + watched).tolist(), 0, 0]
    items = request[2 + LENGTH :].reshape(-1, 2)
    assert items[:, 0].tolist() == (15 + asked.item["video_id"][2:7]).tolist()
    assert items[:, 1].tolist() == (22 + asked.item["author"][2:7]).tolist()
