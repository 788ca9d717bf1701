"""Promises: each is broken by what breaks it, and by nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamlearn.online.served_check import ServedCheck
from tools.demo.board import Rows
from tools.demo.burst import Burst
from tools.demo.change import Takeover
from tools.demo.facts import Outcome, facts_of, promises_of
from tools.demo.new_item import NewItem
from tools.demo.scenario import Observations
from tools.demo.worker_loss import WorkerLoss

_ROWS, _BAD = 900, (300, 600)
_FORCED, _GOOD = 7, 5


def _rows(bad: float = -1.0, frozen: float = 0.3) -> Rows:
    """Rows whose served scores tell well what was done, but for those of the bad version; a kept one tells little."""
    rng = np.random.default_rng(1)
    done = rng.random((_ROWS, 1)) < 0.5
    noise = rng.standard_normal((_ROWS, 1))
    sign = np.ones(_ROWS)
    sign[slice(*_BAD)] = bad
    version = np.full(_ROWS, _GOOD)
    version[slice(*_BAD)] = _FORCED
    served, kept = (np.where(done, 1.0, -1.0) * weight[:, None] + noise for weight in (sign, np.full(_ROWS, frozen)))
    return Rows(np.arange(_ROWS), version, served.astype(np.float32), kept.astype(np.float32)[:, None], done)


_OBSERVED = Observations(
    killed_s=2.0, frozen=2, rejected=6, forced=_FORCED, good=_GOOD, acted_ms={"a": 20.0, "b": 30.0}, bad_rows=_BAD,
    reverted=9, away=12, worker=WorkerLoss(held=True, continued_s=0.9, back_s=8.0),
)  # fmt: skip
_OUTCOME = Outcome(
    impressions=_ROWS, actions=10, events_per_s=100.0, requests=1_800, repeated=0, unanswered=0, refusal="",
    dead_letters=0,
    learned={"samples": 800, "labels_learned": 800, "labels_corrected": 0}, sent=(700, 1_000), labels=1,
    skipped_rows=100, versions=12, rejected=2, served=(11, 11),
    takeover=Takeover(kept=9, moved_ms=(80.0, 70.0), requests=100, answered=40),
    checked=ServedCheck(impressions=900, values=4_500),
    burst=Burst(rate=500.0, kept=0.6),
)  # fmt: skip

_TAKEOVERS: tuple[dict[str, Any], ...] = (
    {"unanswered": 1}, {"answered": 0}, {"kept": 0}, {"moved_ms": (80.0, 1_001.0)}, {"difference": 0.01},
    {"difference": float("nan")},
)  # fmt: skip


def _broken(observed: Observations = _OBSERVED, outcome: Outcome = _OUTCOME, rows: Rows | None = None) -> list[str]:
    return [one.text for one in promises_of(observed, rows or _rows(), outcome) if not one.is_kept]


def test_a_label_that_few_items_have_is_not_missed_on_the_others() -> None:
    some = replace(_OUTCOME, labels=2, unlabelled=1, learned={**_OUTCOME.learned, "labels_learned": 812})
    assert _broken(outcome=some) == []
    assert _broken(outcome=replace(some, unlabelled=0)) == [
        "each label is learned once, except poisoned ones and those of unavailable columns"
    ]


def test_rows_that_were_served_with_defaults_need_not_be_learned() -> None:
    fewer = replace(_OUTCOME, learned={**_OUTCOME.learned, "labels_learned": 790})
    assert _broken(outcome=replace(fewer, unavailable=10)) == []
    assert len(_broken(outcome=replace(fewer, unavailable=9))) == 1
    assert len(promises_of(_OBSERVED, _rows(), replace(_OUTCOME, checked=None))) == 13


def test_promises_on_items_that_are_found_are_broken_by_time_by_other_lists_and_by_what_stays() -> None:
    new = NewItem(found_s=4.0, back_ms=(20.0, 30.0), lists=18, wrong="", left="")
    kept = promises_of(_OBSERVED, _rows(), _with(new))
    assert len(kept) == len(promises_of(_OBSERVED, _rows(), _OUTCOME)) + 2
    assert _broken(outcome=_with(new)) == []
    assert facts_of(_OBSERVED, _rows(), _with(new), "click")["time until all nodes found a new item, s"] == 4.0
    for changed, text in (
        ({"found_s": 21.0}, "a new item is found"),
        ({"wrong": "version 3 has no item 7"}, "a new item is found"),
        ({"lists": 0}, "a new item is found"),
        ({"back_ms": (20.0,)}, "a rollback takes back the items"),
        ({"back_ms": (20.0, 1_001.0)}, "a rollback takes back the items"),
        ({"left": "1 lists of version 3"}, "a rollback takes back the items"),
    ):
        (broken,) = _broken(outcome=_with(replace(new, **changed)))
        assert broken.startswith(text), changed


def _with(new: NewItem) -> Outcome:
    return replace(_OUTCOME, takeover=replace(_OUTCOME.takeover, new_item=new))


def test_all_are_kept_where_all_went_well() -> None:
    assert _broken() == []
    facts = facts_of(_OBSERVED, _rows(), _OUTCOME, "click")
    assert facts["served AUC of click"] > 0.7
    assert facts["time until a answered with version 5 again, ms"] == 20.0
    assert facts["time until training continued after a worker was killed, s"] == 0.9


def test_labels_that_may_have_been_learned_before_they_were_skipped_are_said_as_a_range() -> None:
    def seen(sent: tuple[int, int], *, held: bool) -> str:
        observed = replace(_OBSERVED, worker=WorkerLoss(held, continued_s=0.9, back_s=8.0))
        promises = promises_of(observed, _rows(), replace(_OUTCOME, sent=sent))
        (one,) = (one for one in promises if one.text.startswith("training continues after a worker"))
        assert one.is_kept
        return one.seen

    assert seen((800, 800), held=False) == "0.9 s; 800 labels learned, 800 sent"
    assert seen((790, 1_800), held=True) == (
        "0.9 s, after its slice was learned again; 800 labels learned, 790 to 1,800 sent"
    )


def test_without_workers_nothing_is_promised_of_them() -> None:
    alone = replace(_OBSERVED, worker=None)
    assert _broken(alone, replace(_OUTCOME, sent=(0, 0))) == []
    assert not [one.text for one in promises_of(alone, _rows(), _OUTCOME) if "worker" in one.text]
    assert not [name for name in facts_of(alone, _rows(), _OUTCOME, "click") if "worker" in name]


@pytest.mark.parametrize(
    ("outcome", "broken"),
    [
        (replace(_OUTCOME, unanswered=1), "every request is answered"),
        (replace(_OUTCOME, dead_letters=1), "every event is joined"),
        (replace(_OUTCOME, learned={**_OUTCOME.learned, "labels_learned": 799}), "each label is learned once"),
        (replace(_OUTCOME, learned={**_OUTCOME.learned, "labels_learned": 901}), "each label is learned once"),
        (replace(_OUTCOME, sent=(801, 801)), "training continues after a worker is killed"),
        (replace(_OUTCOME, sent=(700, 799)), "training continues after a worker is killed"),
        (replace(_OUTCOME, served=(11, 8)), "all nodes follow"),
        (replace(_OUTCOME, checked=ServedCheck(values=4_500, differences=1)), "computed columns are served"),
        (replace(_OUTCOME, checked=ServedCheck()), "computed columns are served"),
        (replace(_OUTCOME, burst=Burst(rate=500.0, kept=0.34)), "an overloaded node keeps more"),
        (replace(_OUTCOME, burst=Burst()), "an overloaded node keeps more"),
        *(
            (replace(_OUTCOME, takeover=replace(_OUTCOME.takeover, **broken)), "a changed application")
            for broken in _TAKEOVERS
        ),
    ],
)
def test_an_outcome_breaks_one(outcome: Outcome, broken: str) -> None:
    (one,) = _broken(outcome=outcome)
    assert one.startswith(broken)


@pytest.mark.parametrize(
    ("observed", "broken"),
    [
        (replace(_OBSERVED, killed_s=60.0), "training continues after a shard is killed"),
        (replace(_OBSERVED, worker=WorkerLoss(True, 60.0, 61.0)), "training continues after a worker is killed"),
        (replace(_OBSERVED, rejected=0), "the judge rejects"),
        (replace(_OBSERVED, acted_ms={"a": 20.0}), "every node rolls back"),
        (replace(_OBSERVED, acted_ms={"a": 20.0, "b": 2_000.0}), "every node rolls back"),
        (replace(_OBSERVED, reverted=0), "all nodes follow"),
        (replace(_OBSERVED, away=0), "computed columns are served"),
    ],
)
def test_an_observation_breaks_one(observed: Observations, broken: str) -> None:
    (one,) = _broken(observed)
    assert one.startswith(broken)


def test_poor_scores_break_others() -> None:
    assert _broken(rows=_rows(bad=1.0)) == [
        "the bad version lowers the served AUC", "rolling back restores the quality of serving",
    ]  # fmt: skip
    assert _broken(rows=_rows(frozen=3.0)) == ["fresh versions score better than a version that was kept"]
