"""Chaos: a short run by a seed, and invariants that are broken by what breaks them."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from streamlearn.demo import Board
from streamlearn.errors import ServiceError
from streamlearn.samples import SampleBatch
from streamlearn.serving.infer import InferAnswer, numbers_tensor
from streamlearn.testing import small_app, small_batch
from tools.chaos.faults import QUICK, faults_of
from tools.chaos.ground import Ground
from tools.chaos.heard import Heard, differ
from tools.chaos.invariants import learned
from tools.chaos.plan import planned
from tools.chaos.run import Wanted, run
from tools.chaos.settled import Settled, counted

# So many seconds at most: it is over after so many faults.
_SEED, _SECONDS, _FAULTS = 7, 200.0, 2


def test_a_short_run_leaves_nothing_violated(tmp_path: Path) -> None:
    said: list[str] = []
    wanted = Wanted(_SECONDS, _SEED, whole_s_max=120.0, is_quick=True, faults_max=_FAULTS)
    outcome = run(wanted, tmp_path, {}, (), said.append)
    assert outcome.violations == [], said
    assert sum(map(len, outcome.took_s.values())) == _FAULTS, said
    assert outcome.rows > 1_000
    assert sum(outcome.compared) > 10


def test_a_seed_says_which_faults_come_and_all_of_them_do() -> None:
    names = ["a", "b", "c", "d"]
    once, again = (list(islice(planned(3, names), 12)) for _ in range(2))
    assert once == again != list(islice(planned(4, names), 12))
    for at in range(0, 12, 4):
        assert {name for _, name in once[at : at + 4]} == set(names)
    assert list(planned(1, [])) == []


def test_quick_faults_are_among_all() -> None:
    class Stands:
        services: dict[str, Any] = {"kafka": None}  # noqa: RUF012

    found = faults_of(cast("Ground", Stands()))
    assert set(QUICK) <= set(found)
    assert any("kafka" in name for name in found)


@pytest.mark.parametrize(
    ("settled", "metrics", "says"),
    [
        (Settled(3, 6, 1), {"labels_learned": 6, "labels_corrected": 1}, None),
        (Settled(2, 6, 1), {"labels_learned": 6, "labels_corrected": 1}, "3 rows were shown, and 2 are"),
        (Settled(3, 5, 1), {"labels_learned": 5, "labels_corrected": 1}, "6 labels are to be settled, and 5 are"),
        (Settled(3, 6, 1), {"labels_learned": 7, "labels_corrected": 1}, "6 labels are settled, and 7 were"),
        (Settled(3, 6, 1), {"labels_learned": 6, "labels_corrected": 2}, "1 labels are to be corrected, and 2 were"),
    ],
)
def test_what_was_lost_or_learned_twice_is_named(settled: Settled, metrics: dict[str, float], says: str | None) -> None:
    board = Board(small_app())
    none = np.zeros((3, 2), np.float32)
    three = np.arange(3)
    board.shown([("q", at) for at in range(3)], three, three, none, none[:, None])
    found = list(learned(board, 2, settled, metrics))
    assert [one.startswith(says or "") for one in found] == [True] * (says is not None)


def test_labels_count_once_and_corrections_by_their_order() -> None:
    batch = small_batch(small_app(), 3, 5, seed=1)
    settled = _valued(batch, 1, 0)
    one = counted([settled])
    assert (one.labels, one.corrected) == (one.rows * 2, 0)
    positive = _valued(batch, 1, 1)
    assert counted([settled, settled]) == one
    corrected = counted([settled, positive, settled, positive])
    assert (corrected.rows, corrected.labels, corrected.corrected) == (one.rows, one.labels, one.labels)
    assert counted([positive, settled]).corrected == 0
    assert counted([_valued(batch, 0, 0)]).labels == 0


def _valued(batch: SampleBatch, settles: int, value: int) -> SampleBatch:
    """The batch with all labels settled or not, and of one value."""
    rows = np.arange(len(batch), dtype=np.int32)
    labels = tuple(
        replace(one, settles=np.full(len(batch), settles, np.uint8), value=np.full(len(batch), value, np.uint8))
        for one in batch.labels
    )
    return replace(batch, labels=labels, item_index=rows)


def test_answers_of_another_version_or_with_other_scores_differ() -> None:
    def answer(version: str, score: float) -> InferAnswer:
        return InferAnswer("m", version, {"click": numbers_tensor("click", np.array([score], np.float32))})

    differ(answer("3", 0.5), answer("3", 0.500001), "a")
    for other in (answer("4", 0.5), answer("3", 0.5001), answer("3", float("nan"))):
        with pytest.raises(ServiceError, match="where version 3 said"):
            differ(answer("3", 0.5), other, "a")


def test_a_few_answers_of_each_version_are_kept() -> None:
    heard = Heard()
    for at in range(1_000):
        heard(b"asked", InferAnswer("m", str(1 + at // 500), {}))
    assert heard.versions == [1, 2]
    assert 5 < len(heard.of(2)) < 50
    assert heard.of(3) == []
