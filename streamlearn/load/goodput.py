"""Goodput: the highest rate that a node sustains, found by short runs and confirmed by a long one. No network here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from streamlearn.errors import ServiceError
from streamlearn.load.load_run import LoadPlan, LoadResult

__all__ = ["GoodputFound", "find_goodput", "why_not"]

_TRY_SECONDS, _TRY_WARMUP_S = 3, 1.0
_TRY_SECONDS_MAX = 30
# The p99 of fewer requests is not meaningful.
_TRY_REQUESTS_MIN = 300
_RATE_STEP = 2.0
_RATE_PRECISION = 1.03
_RATE_MAX = 1_000_000.0
_CONFIRMS_MAX = 12
# A generator that sends this share of the p99 bound late measures itself.
_LAG_SHARE_MAX = 0.25


@dataclass(frozen=True)
class GoodputFound:
    """The highest rate that a node sustains, in requests a second, and the long run at this rate.

    `tries` has the rate of each short run and why it failed, empty if it did not; `confirms` the same of long runs.
    """

    rate: float
    run: LoadResult
    tries: tuple[tuple[float, str], ...]
    confirms: tuple[tuple[float, str], ...]


def find_goodput(run: Callable[[LoadPlan], LoadResult], plan: LoadPlan, p99_ms_max: float) -> GoodputFound:
    """Find the highest rate at which every request is answered and the p99 latency is within `p99_ms_max`.

    A rate that fails is tried a second time, because one pause of the machine must not decide. The result is
    confirmed by a run as long as `plan` says; its rate is lowered until it passes. `plan.amount` is the first rate.
    Raises ServiceError if no rate passes.
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
        result = run(_bounded(replace(plan, amount=rate), p99_ms_max))
        confirms.append((rate, why_not(result, p99_ms_max)))
        if not confirms[-1][1]:
            return GoodputFound(rate, result, tuple(tries), tuple(confirms))
        rate /= _RATE_PRECISION
    last_rate, reason = (confirms or tries)[-1]
    message = f"found no rate that the node sustains: at {last_rate:.1f} requests/s {reason}"
    raise ServiceError(message, help="allow a longer p99, or see what keeps the node from answering")


def why_not(found: LoadResult, p99_ms_max: float) -> str:
    """Return why a run did not pass; an empty text if it did."""
    p99_ms, lag_ms = found.latency_ms["p99"], found.lag_ms["p99"]
    if lag_ms is not None and lag_ms > p99_ms_max * _LAG_SHARE_MAX:
        return f"requests were sent up to {lag_ms:.2f} ms late: the load generator needs more CPU"
    if found.failed:
        causes = dict(found.refused) | {"overrun": found.overrun, "unanswered": found.unanswered}
        counts = ", ".join(f"{name} {count}" for name, count in causes.items() if count)
        return f"{found.failed} of {found.due} requests failed ({counts})"
    if p99_ms is None:
        return "the run was too short to send a request"
    return f"the p99 was {p99_ms:.2f} ms" if p99_ms > p99_ms_max else ""


def _highest(holds: Callable[[float], bool], begin: float) -> float:
    """Return the highest rate that holds, to within 3 %; below 1 if none does."""
    good = bad = begin
    if holds(begin):
        while bad < _RATE_MAX:
            bad = min(good * _RATE_STEP, _RATE_MAX)
            if not holds(bad):
                break
            good = bad
    else:
        while good >= 1:
            good = bad / _RATE_STEP
            if good >= 1 and holds(good):
                break
            bad = good
    while good >= 1 and bad / good > _RATE_PRECISION:
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def _short(plan: LoadPlan, rate: float, p99_ms_max: float) -> LoadPlan:
    seconds = min(max(_TRY_SECONDS, math.ceil(_TRY_REQUESTS_MIN / rate)), _TRY_SECONDS_MAX)
    short = replace(plan, amount=rate, seconds=min(seconds, plan.seconds), warmup_s=min(_TRY_WARMUP_S, plan.warmup_s))
    return _bounded(short, p99_ms_max)


def _bounded(plan: LoadPlan, p99_ms_max: float) -> LoadPlan:
    """Limit the requests in flight, so that a node that fell behind soon finishes them."""
    outstanding_max = math.ceil(plan.amount * max(1.0, 4 * p99_ms_max / 1000)) + 16
    if plan.pace == "bursts":
        outstanding_max = math.ceil(outstanding_max * max(1.0, plan.bursts[0]))
    return replace(plan, outstanding_max=min(plan.outstanding_max, outstanding_max))
