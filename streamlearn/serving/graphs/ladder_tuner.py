"""Tuning: the ladders that cost least for sizes that came, within a bound of executables. It asks no node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from msgspec import structs

from streamlearn.errors import UsageError
from streamlearn.native import native
from streamlearn.serving.sizes import Formed, Histogram, Rows, Sizes
from streamlearn.settings import ServingSettings

__all__ = ["Rungs", "Tuned", "tune", "uncosted"]

# What `serving.users_buckets` and `serving.candidates_buckets` hold at most.
_USERS_BUCKETS_MAX = 16
_CANDIDATES_BUCKETS_MAX = 32
# Sizes are looked at in steps where there are more: the search grows with their square.
_SIZES_MAX = 1024

_Demands = list[tuple[Histogram, list[tuple[int, float]]]]


@dataclass(frozen=True)
class Rungs:
    """The buckets of one graph, and how well they fit.

    Attributes:
        buckets: The buckets.
        padding_waste: The share of rows that would be padding.
        cost_us: What an execution would cost, in microseconds, in the mean.
    """

    buckets: tuple[int, ...]
    padding_waste: float
    cost_us: float


@dataclass(frozen=True)
class Tuned:
    """The ladders there are, and those that would cost least.

    Attributes:
        users: The user graph's: present, proposed.
        candidates: The score graph's: present, proposed.
        batches: How many TensorBatches that is of.
        executables: How many the proposed ladders have.
    """

    users: tuple[Rungs, Rungs]
    candidates: tuple[Rungs, Rungs]
    batches: int
    executables: int


def tune(sizes: Sizes, executables_max: int, candidates_top: int | None = None) -> Tuned:
    """Choose the ladders of both graphs; how many buckets each has is chosen with them.

    The last bucket of the user graph stays: it is what the score graph always takes.

    Args:
        sizes: What came, and what executions cost.
        executables_max: How many executables both graphs may have, of all lengths.
        candidates_top: The last bucket of the score graph; the present one by default.

    Raises:
        UsageError: Nothing came yet, or no ladder has so few executables.
    """
    batches = sum(count for one in sizes.formed for _, count in one.candidates)
    if not batches:
        message = "no TensorBatch has been formed yet"
        raise UsageError(message, help="use a node that has answered requests for a while, or --lognormal")
    buckets_max = executables_max // len(sizes.lengths)
    if buckets_max < 2:
        message = f"{executables_max} executables are too few for two graphs of {len(sizes.lengths)} lengths"
        raise UsageError(message, help=f"allow at least {2 * len(sizes.lengths)}")
    users = [(one.users, _points(sizes.users_buckets, us)) for one, us in zip(sizes.formed, sizes.user_us, strict=True)]
    candidates = [
        (one.candidates, _points(sizes.candidates_buckets, us))
        for one, us in zip(sizes.formed, sizes.score_us, strict=True)
    ]
    top = candidates_top or sizes.candidates_buckets[-1]
    users_rungs = _choices(users, sizes.users_buckets[-1], min(_USERS_BUCKETS_MAX, buckets_max - 1))
    candidates_rungs = _choices(candidates, top, min(_CANDIDATES_BUCKETS_MAX, buckets_max - 1))
    pairs = [
        (one, other)
        for one, other in product(users_rungs, candidates_rungs)
        if len(one.buckets) + len(other.buckets) <= buckets_max
    ]
    best = min(pairs, key=lambda pair: (sum(one.cost_us for one in pair), sum(len(one.buckets) for one in pair)))
    return Tuned(
        users=(_rungs(sizes.users_buckets, users), best[0]),
        candidates=(_rungs(sizes.candidates_buckets, candidates), best[1]),
        batches=batches,
        executables=sum(len(one.buckets) for one in best) * len(sizes.lengths),
    )


def uncosted(requests: Histogram, settings: ServingSettings, like: Sizes | None) -> Sizes:
    """Requests that each run alone, as sizes.

    Args:
        requests: How often each number of candidates comes.
        settings: The present ladders, where nothing was recorded.
        like: What was recorded, and gives the costs; without it a row costs one.
    """
    count = sum(count for _, count in requests)
    if like is not None:
        quiet = [Formed(length, [], []) for length in like.lengths[:-1]]
        return structs.replace(like, formed=[*quiet, Formed(like.lengths[-1], [(1, count)], requests)])
    users, candidates = settings.users_buckets, settings.candidates_buckets
    return Sizes(
        users_buckets=users,
        candidates_buckets=candidates,
        lengths=[1],
        user_us=[[float(size) for size in users]],
        score_us=[[float(size) for size in candidates]],
        formed=[Formed(1, [(1, count)], requests)],
        requests={"candidates": requests, "histories": []},
        user_rows=Rows(0, 0),
        score_rows=Rows(0, 0),
    )


def _points(buckets: Sequence[int], costs_us: Sequence[float]) -> list[tuple[int, float]]:
    return list(zip(buckets, costs_us, strict=True))


def _choices(demands: _Demands, top: int, buckets_max: int) -> list[Rungs]:
    bounds = (top, buckets_max, -(-top // _SIZES_MAX))
    return [_rungs(buckets, demands) for buckets in native.choose_ladders(demands, bounds)]


def _rungs(buckets: Sequence[int], demands: _Demands) -> Rungs:
    waste, cost_us = native.ladder_figures(list(buckets), demands)
    return Rungs(tuple(buckets), waste, cost_us)
