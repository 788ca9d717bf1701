"""What is asked of servers that are measured in turn: callers who wait, the highest rate that holds, and twice that."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from streamlearn.errors import ServiceError
from streamlearn.serving.load.goodput import find_goodput, why_not
from streamlearn.serving.load.load_run import Load, LoadFound, LoadPlan

__all__ = ["P99_MS_MAX", "Contender", "answers_per_s_of", "cpu_us", "one_caller", "overload", "peaks", "poisson"]

Note = Callable[[str], None]

P99_MS_MAX = 25.0
_SATURATING, _WARMUP_S = 64, 0.5
_TRY_SECONDS, _STEP, _STEPS_MAX, _RUN_SECONDS = 3, 1.06, 4, 5
_BEGIN = 0.5


@dataclass(frozen=True)
class Contender:
    """A server that is asked, and stands still while others are.

    Attributes:
        name: Its own.
        load: What asks it.
        pause: Lets it stand still.
        resume: Lets it go on.
    """

    name: str
    load: Load
    pause: Callable[[], object]
    resume: Callable[[], object]


def one_caller(load: Load, seconds: int, seed: int = 0) -> LoadFound:
    """One caller who waits for each answer."""
    return _answered(load.run(LoadPlan("closed", 1, seconds, _WARMUP_S, seed=seed)))


def poisson(load: Load, rate: float, seconds: int, seed: int = 0, stop: Callable[[], bool] = bool) -> LoadFound:
    """Requests by chance, so many a second."""
    return _answered(load.run(LoadPlan("poisson", rate, seconds, _WARMUP_S, seed=seed), stop=stop))


def _answers_per_s(load: Load, seconds: int, seed: int = 0) -> float:
    """Answers a second to as many callers as keep a server busy."""
    found = _answered(load.run(LoadPlan("closed", _SATURATING, seconds, _WARMUP_S, seed=seed)))
    return found.ok / found.seconds


def answers_per_s_of(contenders: Sequence[Contender], rounds: int, seconds: int) -> dict[str, list[float]]:
    """The same of several servers, in turn."""
    return _in_turn(contenders, rounds, lambda one, at: _answers_per_s(one.load, seconds, at))


def cpu_us(load: Load, cpu_s: Callable[[], float], seconds: int) -> float:
    """What an answer costs a server whom as many callers as keep it busy ask.

    Args:
        load: What asks it.
        cpu_s: Processor time it has used.
        seconds: How long it is asked.
    """
    begin_s = cpu_s()
    found = _answered(load.run(LoadPlan("closed", _SATURATING, seconds)))
    return (cpu_s() - begin_s) / found.ok * 1e6


def peaks(contenders: Sequence[Contender], rounds: int, note: Note, *, quick: bool) -> dict[str, list[float]]:
    """The highest rate at which a server answers everything with a p99 of `P99_MS_MAX`, of several in turn.

    It is searched for in the first round, and begun at in the others. A round in which none was found is NaN.
    """
    known: dict[str, float] = {}

    def peak(one: Contender, at: int) -> float:
        try:
            rate = search(one, at)
        except ServiceError as error:
            note(f"{one.name}: {error}")
            return math.nan
        note(f"{one.name} held {rate:,.0f} requests/s")
        known[one.name] = rate
        return rate

    def search(one: Contender, at: int) -> float:
        if one.name in known:
            return _near(one.load, known[one.name], _TRY_SECONDS, at)
        begin = _answers_per_s(one.load, 1 if quick else _TRY_SECONDS) * _BEGIN
        if quick:
            return _near(one.load, begin, 1, at)
        return find_goodput(one.load.run, LoadPlan("poisson", begin, _RUN_SECONDS, 1.0), P99_MS_MAX).rate

    return _in_turn(contenders, rounds, peak)


def overload(load: Load, peak: float, rounds: int, seconds: int) -> float:
    """Answers in time at twice a rate, over those at that rate; the median of turns."""
    if not peak:
        message = "no peak was found"
        raise ServiceError(message, help="see what was said of it above")
    found = []
    for at in range(rounds):
        plan = LoadPlan("poisson", peak, seconds, 1.0, deadline_ms=math.ceil(P99_MS_MAX), seed=at)
        once = load.run(plan).goodput_per_s
        twice = load.run(replace(plan, amount=2 * peak)).goodput_per_s
        if not once:
            message = f"nothing was answered in time at {peak:,.0f} requests/s"
            raise ServiceError(message, help="see what else the machine does")
        found.append(twice / once)
    return statistics.median(found)


def _near(load: Load, begin: float, seconds: int, seed: int) -> float:
    """The highest rate that holds of those near one, in steps."""

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
    message = f"no rate from {begin / _STEP ** (2 * _STEPS_MAX):,.0f} to {begin:,.0f} requests/s held"
    raise ServiceError(message, help="see what else the machine does")


def _in_turn(
    contenders: Sequence[Contender], rounds: int, measure: Callable[[Contender, int], float]
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {one.name: [] for one in contenders}
    for one in contenders:
        one.pause()
    try:
        for at in range(rounds):
            for one in contenders:
                one.resume()
                found[one.name].append(measure(one, at))
                one.pause()
    finally:
        for one in contenders:
            one.resume()
    return found


def _answered(found: LoadFound) -> LoadFound:
    if not found.ok:
        message = f"none of {found.due} requests was answered: {dict(found.said)}"
        raise ServiceError(message, help="see the node's log")
    return found
