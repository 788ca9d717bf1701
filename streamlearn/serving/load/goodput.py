"""The highest rate that a node holds: found by short runs, confirmed by a long one. It knows no network."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from streamlearn.errors import ServiceError
from streamlearn.serving.load.load_run import LoadFound, LoadPlan

__all__ = ["GoodputFound", "find_goodput", "why_not"]

_TRY_SECONDS, _TRY_WARMUP_S = 3, 1.0
_TRY_SECONDS_MAX = 30
# Of fewer requests a p99 says little.
_TRY_REQUESTS_MIN = 300
_TIMES = 2.0
_CLOSE = 1.03
_RATE_MAX = 1_000_000.0
_CONFIRMS_MAX = 12
# A generator that is late by so much of the bound measures itself.
_LAG_SHARE_MAX = 0.25


@dataclass(frozen=True)
class GoodputFound:
    """The highest rate that held.

    Attributes:
        rate: Requests a second.
        run: The long run at it.
        tries: Each short run's rate and why it did not hold; empty where it did.
        confirms: Of the long runs likewise.
    """

    rate: float
    run: LoadFound
    tries: tuple[tuple[float, str], ...]
    confirms: tuple[tuple[float, str], ...]


def find_goodput(run: Callable[[LoadPlan], LoadFound], plan: LoadPlan, p99_ms_max: float) -> GoodputFound:
    """The highest rate at which the p99 of latencies is within a bound and every request is answered.

    A rate that fails is tried once more: one pause of the machine is no verdict. What is found is confirmed by a
    run as long as the plan says, at a rate that is lowered until it holds.

    Args:
        run: Carries out a plan.
        plan: Where to begin, and what the long run is.
        p99_ms_max: The bound.

    Raises:
        ServiceError: No rate held.
    """
    tries: list[tuple[float, str]] = []
    confirms: list[tuple[float, str]] = []

    def holds(rate: float) -> bool:
        for _ in range(2):
            tries.append((rate, why_not(run(_short(plan, rate, p99_ms_max)), p99_ms_max)))
            if not tries[-1][1]:
                return True
        return False

    rate = _highest(holds, plan.amount)
    for _ in range(_CONFIRMS_MAX):
        if rate < 1:
            break
        found = run(_bounded(replace(plan, amount=rate), p99_ms_max))
        confirms.append((rate, why_not(found, p99_ms_max)))
        if not confirms[-1][1]:
            return GoodputFound(rate, found, tuple(tries), tuple(confirms))
        rate /= _CLOSE
    why = (confirms or tries)[-1]
    message = f"found no rate that the node sustains: at {why[0]:.1f} requests/s {why[1]}"
    raise ServiceError(message, help="allow a longer p99, or see what keeps the node from answering")


def why_not(found: LoadFound, p99_ms_max: float) -> str:
    """Why a rate does not hold; empty where it does."""
    p99_ms, lag_ms = found.latency_ms["p99"], found.lag_ms["p99"]
    if lag_ms is not None and lag_ms > p99_ms_max * _LAG_SHARE_MAX:
        return f"requests were sent up to {lag_ms:.2f} ms late: the load generator needs more CPU"
    if found.failed:
        causes = dict(found.refused) | {"overrun": found.overrun, "unanswered": found.unanswered}
        named = ", ".join(f"{name} {count}" for name, count in causes.items() if count)
        return f"{found.failed} of {found.due} requests failed ({named})"
    if p99_ms is None:
        return "the run was too short to send a request"
    return f"the p99 was {p99_ms:.2f} ms" if p99_ms > p99_ms_max else ""


def _highest(holds: Callable[[float], bool], begin: float) -> float:
    """The highest rate that holds, but for 3 %; below 1 where none does."""
    good = bad = begin
    if holds(begin):
        while bad < _RATE_MAX:
            bad = min(good * _TIMES, _RATE_MAX)
            if not holds(bad):
                break
            good = bad
    else:
        while good >= 1:
            good = bad / _TIMES
            if good >= 1 and holds(good):
                break
            bad = good
    while good >= 1 and bad / good > _CLOSE:
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def _short(plan: LoadPlan, rate: float, p99_ms_max: float) -> LoadPlan:
    seconds = min(max(_TRY_SECONDS, math.ceil(_TRY_REQUESTS_MIN / rate)), _TRY_SECONDS_MAX)
    short = replace(plan, amount=rate, seconds=min(seconds, plan.seconds), warmup_s=min(_TRY_WARMUP_S, plan.warmup_s))
    return _bounded(short, p99_ms_max)


def _bounded(plan: LoadPlan, p99_ms_max: float) -> LoadPlan:
    """With few enough requests under way that a node which fell behind is soon done with them."""
    most = math.ceil(plan.amount * max(1.0, 4 * p99_ms_max / 1000)) + 16
    if plan.pace == "bursts":
        most = math.ceil(most * max(1.0, plan.bursts[0]))
    return replace(plan, outstanding_max=min(plan.outstanding_max, most))
