"""Overload: what an answer keeps, and the most that could be kept, beside an enumeration of all choices."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from benchmarks.nodes.overload_world import SHOWN, Costs, Worth, oracle
from streamlearn.load.requests import LoadRequests


def _worth(counts: list[int], seed: int = 1) -> Worth:
    random = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    item = {"video_id": np.arange(offsets[-1])}
    logits = [random.normal(-2.3, 0.7, count) for count in counts]
    return Worth.of(LoadRequests({"user_id": np.arange(len(counts))}, item, offsets), logits, seed)


def test_candidates_come_best_first_as_far_as_is_known_and_none_is_lost() -> None:
    worth = _worth([3, 40, 12])
    assert worth.asked.offsets.tolist() == [0, 3, 43, 55]
    for begin, end in ((0, 3), (3, 43), (43, 55)):
        assert sorted(worth.asked.item["video_id"][begin:end].tolist()) == list(range(begin, end))
    for expected, kept in zip(worth.prescores, worth.kept, strict=True):
        assert (np.diff(expected) <= 0).all()
        assert len(kept) == len(expected) + 1
        assert kept[0] == 0
        assert (np.diff(kept) >= 0).all()
        assert (np.diff(kept[: SHOWN + 1]) > 0).all()


def test_the_oracle_keeps_as_much_as_the_best_of_all_choices_within_its_time() -> None:
    worth, costs = _worth([3, 4, 2]), Costs(2.0, 1.0)
    asked = np.array([0, 1, 2])
    whole = sum(float(kept[-1]) for kept in worth.kept)
    assert oracle(worth, asked, costs, 1_000.0) == pytest.approx(whole)
    for budget in (5.0, 8.0, 11.0):
        best = 0.0
        for chosen in product(range(4), range(5), range(3)):
            spent = costs.of(np.array(chosen)).sum()
            if spent <= budget:
                kept = sum(float(worth.kept[at][count]) for at, count in enumerate(chosen))
                best = max(best, kept)
        found = oracle(worth, asked, costs, budget)
        # A price may leave a part of the time unused, less than one request takes.
        assert 0 < found <= best + 1e-9
        assert found >= best - max(float(kept[-1]) for kept in worth.kept)
    twice = oracle(worth, np.array([0, 0, 1, 1, 2, 2]), costs, 16.0)
    assert twice == pytest.approx(2 * oracle(worth, asked, costs, 8.0))
