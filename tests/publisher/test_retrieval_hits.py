"""The judge of retrieval: a hit rate that fell is rejected, unless by chance or with too little to tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from streamlearn.errors import VersionRefused
from streamlearn.publisher import Case
from streamlearn.publisher.retrieval_hits import Found, RetrievalHits, fall_of
from streamlearn.samples import SampleBatch
from streamlearn.settings import JudgeSettings
from tests.publisher.samples import samples_of
from tests.publisher.test_judge import known


def found(now: int, before: int, both: int, count: int, a_request: int = 1) -> Found:
    """So many positives are found by each version, `both` of them by both."""
    places = np.arange(count)
    return Found(
        now=places < now,
        before=(places < both) | ((places >= now) & (places < now + before - both)),
        request=places // a_request,
        items=5_000,
    )


@pytest.mark.parametrize(
    ("now", "before", "both", "count", "is_worse"),
    [
        (100, 300, 100, 1_000, True),
        (0, 300, 0, 1_000, True),
        (300, 300, 200, 1_000, False),
        (400, 300, 300, 1_000, False),
        (285, 300, 285, 1_000, False),  # certain, but only 5 %
        (260, 300, 260, 1_000, True),  # 13 %, and all that moved was lost
        (260, 300, 80, 1_000, False),  # as much, but many moved both ways
        (0, 29, 0, 29, False),  # too few
        (0, 30, 0, 30, True),
        (0, 0, 0, 1_000, False),
    ],
)
def test_a_hit_rate_may_fall_by_a_share_or_by_chance(
    now: int, before: int, both: int, count: int, *, is_worse: bool
) -> None:
    assert bool(fall_of(found(now, before, both, count), 0.1)) is is_worse


def test_positives_of_one_request_count_as_one() -> None:
    assert fall_of(found(180, 300, 180, 1_000), 0.1)
    assert not fall_of(found(180, 300, 180, 1_000, a_request=120), 0.1)


def test_of_equal_versions_chance_rejects_almost_none() -> None:
    chance, rejected = np.random.default_rng(1), 0
    for _ in range(2_000):
        now, before = chance.random((2, 500)) < 0.3
        rejected += bool(fall_of(Found(now, before, np.arange(500) // 2, 5_000), 0.0))
    assert rejected <= 8  # 2.7 are expected


class Given:
    """Finds what it is given."""

    def __init__(self, result: Found | VersionRefused) -> None:
        self.result, self.versions = result, (0, 0)

    def found(self, version: int, active: int, batches: Sequence[SampleBatch]) -> Found:
        """See `Finder`."""
        assert batches
        self.versions = version, active
        if isinstance(self.result, VersionRefused):
            raise self.result
        return self.result


def case_of(settings: JudgeSettings | None = None, *, has_active: bool = True, has_samples: bool = True) -> Case:
    active, samples = known(7) if has_active else None, (lambda: [samples_of(100)]) if has_samples else None
    return Case(known(9), settings=settings or JudgeSettings(), active=active, samples=samples)


def test_a_finding_has_the_hit_rates_of_both_versions() -> None:
    finder = Given(found(100, 300, 100, 1_000))
    finding = RetrievalHits(finder).judge(case_of())
    assert finder.versions == (9, 7)
    assert (finding.check, finding.is_ok, finding.is_checked) == ("retrieval", False, True)
    assert finding.values == {
        "retrieval_hit_100": 0.1, "active.retrieval_hit_100": 0.3, "retrieval_positives": 1_000.0,
    }  # fmt: skip
    expected = "hit rate 0.1000 (0.3000) in the first 100 of 5000 items, 1000 positives"
    assert finding.said == f"hit rate fell by 66.67% (standard error 4.22%); {expected}"
    finding = RetrievalHits(Given(found(300, 300, 200, 1_000))).judge(case_of())
    assert finding.is_ok
    assert finding.said.startswith("hit rate 0.3000 (0.3000)")


@pytest.mark.parametrize(
    ("case", "result", "said"),
    [
        (case_of(has_active=False), found(1, 1, 1, 50), "no version is active"),
        (case_of(has_samples=False), found(1, 1, 1, 50), "no longer scored"),
        (case_of(), found(0, 0, 0, 0), "no positive"),
        (case_of(), VersionRefused("its vectors are gone", help="wait"), "its vectors are gone"),
    ],
)
def test_what_cannot_be_searched_is_not_checked(case: Case, result: Found | VersionRefused, said: str) -> None:
    finding = RetrievalHits(Given(result)).judge(case)
    assert (finding.is_ok, finding.is_checked) == (True, False)
    assert said in finding.said


def test_a_limit_of_zero_turns_the_check_off() -> None:
    finder = Given(found(0, 300, 0, 1_000))
    assert RetrievalHits(finder).judge(case_of(JudgeSettings(hit_drop_ratio_max=0.0))).is_ok
    assert finder.versions == (0, 0)
