"""Load on servers that are measured by turns: waiting callers, the highest sustained rate, and overload."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from streamlearn.errors import ServiceError
from streamlearn.load.goodput import find_goodput, why_not
from streamlearn.load.load_run import Load, LoadPlan, LoadResult

__all__ = ["P99_MS_MAX", "Contender", "answers_per_s_of", "cpu_us", "one_caller", "overload", "peaks", "poisson"]

Note = Callable[[str], None]

P99_MS_MAX = 25.0
_SATURATING, _WARMUP_S = 64, 0.5
_TRY_SECONDS, _STEP, _STEPS_MAX, _RUN_SECONDS = 3, 1.06, 4, 5
_BEGIN = 0.5


@dataclass(frozen=True)
class Contender:
    """A server, which is paused while others are measured."""

    name: str
    load: Load
    pause: Callable[[], object]
    resume: Callable[[], object]


def one_caller(load: Load, seconds: int, seed: int = 0) -> LoadResult:
    """Run one caller that waits for each answer."""
    return _answered(load.run(LoadPlan("closed", 1, seconds, _WARMUP_S, seed=seed)))


def poisson(load: Load, rate: float, seconds: int, seed: int = 0, stop: Callable[[], bool] = bool) -> LoadResult:
    """Send requests at random times, `rate` per second."""
    return _answered(load.run(LoadPlan("poisson", rate, seconds, _WARMUP_S, seed=seed), stop=stop))


def _answers_per_s(load: Load, seconds: int, seed: int = 0) -> float:
    """Return the answers per second to enough callers to saturate a server."""
    result = _answered(load.run(LoadPlan("closed", _SATURATING, seconds, _WARMUP_S, seed=seed)))
    return result.ok / result.seconds


def answers_per_s_of(contenders: Sequence[Contender], rounds: int, seconds: int) -> dict[str, list[float]]:
    """Return the answers per second of several servers, measured by turns."""
    return _in_turn(contenders, rounds, lambda contender, at: _answers_per_s(contender.load, seconds, at))


def cpu_us(load: Load, cpu_s: Callable[[], float], seconds: int) -> float:
    """Return the CPU microseconds of an answer of a saturated server; `cpu_s` returns its CPU time."""
    begin_s = cpu_s()
    result = _answered(load.run(LoadPlan("closed", _SATURATING, seconds)))
    return (cpu_s() - begin_s) / result.ok * 1e6


def peaks(contenders: Sequence[Contender], rounds: int, note: Note, *, quick: bool) -> dict[str, list[float]]:
    """Return the highest rates at which servers answer everything with a p99 of at most `P99_MS_MAX`.

    Servers are measured by turns. The first round searches, and later rounds begin with its result. A round without a
    result is NaN.
    """
    known: dict[str, float] = {}

    def peak(contender: Contender, at: int) -> float:
        try:
            rate = search(contender, at)
        except ServiceError as error:
            note(f"{contender.name}: {error}")
            return math.nan
        note(f"{contender.name} sustained {rate:,.0f} requests/s")
        known[contender.name] = rate
        return rate

    def search(contender: Contender, at: int) -> float:
        if contender.name in known:
            return _near(contender.load, known[contender.name], _TRY_SECONDS, at)
        begin = _answers_per_s(contender.load, 1 if quick else _TRY_SECONDS) * _BEGIN
        if quick:
            return _near(contender.load, begin, 1, at)
        return find_goodput(contender.load.run, LoadPlan("poisson", begin, _RUN_SECONDS, 1.0), P99_MS_MAX).rate

    return _in_turn(contenders, rounds, peak)


def overload(load: Load, peak: float, rounds: int, seconds: int) -> float:
    """Return the ratio of timely answers at twice the peak rate to those at the peak; the median of rounds."""
    if not peak:
        message = "no peak was found"
        raise ServiceError(message, help="see the messages above")
    ratios = []
    for at in range(rounds):
        plan = LoadPlan("poisson", peak, seconds, 1.0, deadline_ms=math.ceil(P99_MS_MAX), seed=at)
        once = load.run(plan).goodput_per_s
        twice = load.run(replace(plan, amount=2 * peak)).goodput_per_s
        if not once:
            message = f"nothing was answered in time at {peak:,.0f} requests/s"
            raise ServiceError(message, help="check what else runs on the machine")
        ratios.append(twice / once)
    return statistics.median(ratios)


def _near(load: Load, begin: float, seconds: int, seed: int) -> float:
    """Return the highest sustained rate near `begin`, in steps."""

    def holds(rate: float) -> bool:
        plan = LoadPlan("poisson", rate, seconds, _WARMUP_S, seed=seed)
        return any(not why_not(load.run(plan), P99_MS_MAX) for _ in range(2))

    if holds(begin):
        for _ in range(_STEPS_MAX):
            if not holds(begin * _STEP):
                break
            begin *= _STEP
        return begin
    for step in range(1, 2 * _STEPS_MAX + 1):
        if holds(begin / _STEP**step):
            return begin / _STEP**step
    message = f"no rate from {begin / _STEP ** (2 * _STEPS_MAX):,.0f} to {begin:,.0f} requests/s was sustained"
    raise ServiceError(message, help="check what else runs on the machine")


def _in_turn(
    contenders: Sequence[Contender], rounds: int, measure: Callable[[Contender, int], float]
) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for contender in contenders:
        contender.pause()
    try:
        for at in range(rounds):
            for contender in contenders:
                contender.resume()
                values[contender.name].append(measure(contender, at))
                contender.pause()
    finally:
        for contender in contenders:
            contender.resume()
    return values


def _answered(result: LoadResult) -> LoadResult:
    if not result.ok:
        message = f"none of {result.due} requests was answered: {dict(result.said)}"
        raise ServiceError(message, help="see the node's log")
    return result
