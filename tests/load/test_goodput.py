"""The search of the highest rate that holds, against nodes made of a formula."""

from __future__ import annotations

import pytest

from streamlearn.errors import ServiceError
from streamlearn.load.goodput import find_goodput, why_not
from streamlearn.load.load_run import LoadPlan, LoadResult

PLAN = LoadPlan("poisson", 100.0, 60, warmup_s=2.0)


def _found(plan: LoadPlan, p99_ms: float | None, refused: int = 0, lag_ms: float = 0.1) -> LoadResult:
    due = round(plan.amount * plan.seconds)
    return LoadResult(
        plan=plan,
        seconds=plan.seconds,
        due=due,
        ok=due - refused,
        in_time=due - refused,
        overrun=0,
        unanswered=0,
        refused={"RESOURCE_EXHAUSTED": refused} if refused else {},
        said={},
        latency_ms={"p99": p99_ms},
        lag_ms={"p99": lag_ms},
        answer_bytes=0,
        time_line=[],
        own_cpu_us=1.0,
    )


@pytest.mark.parametrize("most", [3.0, 40.0, 100.0, 777.0, 30_000.0])
def test_the_highest_rate_that_holds_is_found_and_confirmed(most: float) -> None:
    plans = []

    def run(plan: LoadPlan) -> LoadResult:
        plans.append(plan)
        return _found(plan, 5.0 if plan.amount <= most else 50.0)

    best = find_goodput(run, PLAN, 10.0)
    assert most / 1.04 < best.rate <= most
    assert plans[-1].seconds == 60
    assert all(plan.seconds <= 30 for plan in plans[:-1])
    assert best.run.plan == plans[-1]
    assert len(plans) < 60


def test_a_rate_that_short_runs_bear_and_a_long_one_does_not_is_lowered() -> None:
    def run(plan: LoadPlan) -> LoadResult:
        return _found(plan, 5.0 if plan.amount <= (500 if plan.seconds < 60 else 450) else 50.0)

    best = find_goodput(run, PLAN, 10.0)
    assert 430 < best.rate <= 450
    assert best.confirms[0][1] == "the p99 was 50.00 ms"
    assert best.confirms[-1][1] == ""


def test_one_pause_is_no_verdict() -> None:
    paused = []

    def run(plan: LoadPlan) -> LoadResult:
        if plan.amount not in paused and plan.seconds < 60:
            paused.append(plan.amount)
            return _found(plan, 90.0)
        return _found(plan, 5.0 if plan.amount <= 400 else 50.0)

    assert find_goodput(run, PLAN, 10.0).rate > 385


def test_where_no_rate_holds_it_is_said_why() -> None:
    with pytest.raises(ServiceError, match="RESOURCE_EXHAUSTED 1"):
        find_goodput(lambda plan: _found(plan, 5.0, refused=1), PLAN, 10.0)


def test_refusals_and_a_late_generator_fail_a_rate() -> None:
    assert why_not(_found(PLAN, 5.0), 10.0) == ""
    assert "1 of 6000 requests failed" in why_not(_found(PLAN, 5.0, refused=1), 10.0)
    assert "generator" in why_not(_found(PLAN, 5.0, lag_ms=4.0), 10.0)
    assert "too short to send a request" in why_not(_found(PLAN, None), 10.0)


def test_a_node_that_falls_behind_is_soon_done_with_what_is_left() -> None:
    plans = []

    def run(plan: LoadPlan) -> LoadResult:
        plans.append(plan)
        return _found(plan, 5.0 if plan.amount <= 300 else 50.0)

    find_goodput(run, PLAN, 10.0)
    assert all(plan.outstanding_max <= plan.amount + 17 for plan in plans)
