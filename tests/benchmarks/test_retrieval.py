"""The benchmark of retrieval: what needs no peers and no nodes runs; peers and the logged week have doubles."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.result import Result
from benchmarks.retrieval import logged_week, scans, whole
from benchmarks.retrieval.vectors import Vectors, blocks_of
from streamlearn.errors import UsageError
from streamlearn.samples.item_ids import ItemIds


class _Peer:
    """A peer that takes a second for each user, and finds too little with one of its indexes."""

    def __init__(self) -> None:
        self.orders: list[dict[str, Any]] = []

    def ask(self, line: str) -> dict[str, float]:
        order = json.loads(line)
        self.orders.append(order)
        recall = 0.9 if order["index"] == "usearch_i8" else 0.96
        return {"build": {"build_s": 1.0}, "tune": {"effort": 4, "recall": recall}, "turn": {"ms": 1_000.0}}.get(
            order["do"], {}
        )


def _quick(part: str) -> Result:
    return whole.run(True, lambda text: None, only=part)


def test_a_search_of_all_items_is_exact_and_one_in_cells_finds_nearly_all() -> None:
    result = _quick("scans")
    assert result.figures["recall_100"] == 1
    assert 0.95 <= result.figures["ivf_recall"] < 1
    assert min(result.figures[f"{name}_ms"] for name in ("scan_1", "scan_32", "scan_2e5_32", "ivf_32")) > 0
    assert not result.ratios


def test_a_version_with_changed_rows_has_its_figures() -> None:
    figures = _quick("changes").figures
    assert {"apply_1e5_ms", "apply_1e6_ms", "apply_p99_to_quiet", "bytes_per_item"} <= figures.keys()
    assert 64 < figures["bytes_per_item_block"] < figures["bytes_per_item"] < 160


def test_a_part_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown part 'scan'\nhelp: choose from scans, "):
        _quick("scan")


def test_the_ratio_is_that_to_the_fastest_index_that_finds_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "_TURNS", 2)
    peer, result = _Peer(), Result("retrieval")
    vectors = Vectors.made(2_000, 1.5)
    scans._Scans(vectors, result, lambda text: None, "", 0.01).measure(1_000, peer)  # type: ignore[arg-type]
    assert {"ratio_faiss_flat", "ratio_faiss_sqfp16", "ratio_faiss_ivf", "ratio_hnsw_2e5"} <= result.ratios.keys()
    assert result.ratios["ratio_hnsw_2e5"] == min(result.ratios[f"ratio_{name}"] for name in ("hnswlib", "usearch_f16"))
    assert "ratio_usearch_i8" not in result.ratios
    assert result.figures["usearch_i8_recall"] == 0.9
    ours_ms = result.figures["scan_32_ms"]
    assert result.ratios["ratio_faiss_flat"] == pytest.approx(1_000 / ours_ms, rel=0.9)
    assert [order["index"] for order in peer.orders if order["do"] == "drop"].count("faiss_flat") == 1


def test_recall_counts_what_is_found_of_the_truth() -> None:
    vectors = Vectors.made(1_000, 1.5)
    truth = vectors.truth(1_000)
    assert scans.recall(blocks_of(vectors.items), vectors.users, truth) > 0.9
    assert scans.recall(blocks_of(vectors.items), vectors.users, truth[::-1]) < 0.5


def test_popularity_knows_only_clicks_that_were_known_at_its_time() -> None:
    ids, clicked = np.array([7, 8, 8, 9, 7, 7]), np.array([1, 1, 1, 0, 1, 1], np.uint8)
    batch = SimpleNamespace(item_ids=ItemIds(ids), labels=(SimpleNamespace(name="click", value=clicked),))
    week: Any = SimpleNamespace(batch=batch, settled_ms=np.array([0, 1, 2, 3, 50, 51]))
    of = np.array([7, 8, 9, 9, 7])
    positives: Any = SimpleNamespace(item=of)
    ranks = logged_week._popular(week, positives, np.array([10, 10, 10, 2, 60]))
    assert ranks[:2].tolist() == [1, 0]
    assert ranks[2] == 2
    assert ranks[3] == 3  # not shown before
    assert ranks[4] == 0


def test_values_of_a_request_are_those_of_its_event() -> None:
    columns = {
        "user.age": np.array([3, 4]),
        "user.page": np.frombuffer(b"feedtop", np.uint8),
        "user.page$": np.array([0, 4, 7]),
        "user.watched": np.array([1, 2, 3]),
        "user.watched[]": np.array([0, 0, 3]),
    }
    values = [logged_week._value(columns, f"user.{name}", 1) for name in ("age", "page", "watched")]
    assert values == [4, "top", [1, 2, 3]]
    assert logged_week._value(columns, "user.watched", 0) == []
