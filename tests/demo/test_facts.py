"""Promises: each is broken by what breaks it, and by nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from streamlearn.demo.board import Rows
from streamlearn.demo.facts import Ended, facts_of, promises_of
from streamlearn.demo.story import Found

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


_FOUND = Found(
    killed_s=2.0, frozen=2, rejected=6, forced=_FORCED, good=_GOOD, acted_ms={"a": 20.0, "b": 30.0}, bad_rows=_BAD,
    reverted=9,
)  # fmt: skip
_ENDED = Ended(
    impressions=_ROWS, actions=10, events_per_s=100.0, asked=1_800, unanswered=0, letters=0,
    learned={"samples": 800, "labels_learned": 800, "labels_corrected": 0}, labels=1, skipped_rows=100, versions=12,
    rejected=2, served=(11, 11),
)  # fmt: skip


def _broken(found: Found = _FOUND, ended: Ended = _ENDED, rows: Rows | None = None) -> list[str]:
    return [one.text for one in promises_of(found, rows or _rows(), ended) if not one.is_kept]


def test_all_are_kept_where_all_went_well() -> None:
    assert _broken() == []
    facts = facts_of(_FOUND, _rows(), _ENDED, "click")
    assert facts["served AUC of click"] > 0.7
    assert facts["time until a answered with version 5 again, ms"] == 20.0


@pytest.mark.parametrize(
    ("ended", "broken"),
    [
        (replace(_ENDED, unanswered=1), "every request is answered"),
        (replace(_ENDED, letters=1), "every event is joined"),
        (replace(_ENDED, learned={**_ENDED.learned, "labels_learned": 799}), "each label is learned once"),
        (replace(_ENDED, learned={**_ENDED.learned, "labels_learned": 901}), "each label is learned once"),
        (replace(_ENDED, served=(11, 8)), "all nodes follow"),
    ],
)
def test_what_there_is_at_the_end_breaks_one(ended: Ended, broken: str) -> None:
    (one,) = _broken(ended=ended)
    assert one.startswith(broken)


@pytest.mark.parametrize(
    ("found", "broken"),
    [
        (replace(_FOUND, killed_s=60.0), "training continues after a shard is killed"),
        (replace(_FOUND, rejected=0), "the judge rejects"),
        (replace(_FOUND, acted_ms={"a": 20.0}), "every node rolls back"),
        (replace(_FOUND, acted_ms={"a": 20.0, "b": 2_000.0}), "every node rolls back"),
        (replace(_FOUND, reverted=0), "all nodes follow"),
    ],
)
def test_what_befell_it_breaks_one(found: Found, broken: str) -> None:
    (one,) = _broken(found)
    assert one.startswith(broken)


def test_what_was_served_breaks_others() -> None:
    assert _broken(rows=_rows(bad=1.0)) == [
        "the bad version lowers the served AUC", "rolling back restores the quality of serving",
    ]  # fmt: skip
    assert _broken(rows=_rows(frozen=3.0)) == ["fresh versions score better than a version that was kept"]
