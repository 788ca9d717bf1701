"""Ladder tuner: the cheapest ladders for recorded sizes, with a limited number of executables. It asks no node."""

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

# The limits of `serving.users_buckets` and `serving.candidates_buckets`.
_USERS_BUCKETS_MAX = 16
_CANDIDATES_BUCKETS_MAX = 32
# More sizes than this are grouped, because the search grows with their square.
_SIZES_MAX = 1024

_Demands = list[tuple[Histogram, list[tuple[int, float]]]]


@dataclass(frozen=True)
class Rungs:
    """The buckets of one graph, the share of rows that are padding, and the mean cost of an execution."""

    buckets: tuple[int, ...]
    padding_waste: float
    cost_us: float


@dataclass(frozen=True)
class Tuned:
    """The present and the proposed ladder of each graph.

    `batches` TensorBatches were recorded, and the proposed ladders have `executables` executables.
    """

    users: tuple[Rungs, Rungs]
    candidates: tuple[Rungs, Rungs]
    batches: int
    executables: int


def tune(sizes: Sizes, executables_max: int, candidates_top: int | None = None) -> Tuned:
    """Choose the ladders of both graphs, with at most `executables_max` executables for all lengths together.

    The last bucket of the user graph stays, because the score graph always takes that many users. `candidates_top` is
    the last bucket of the score graph, by default the present one.
    """
    batches = sum(count for formed in sizes.formed for _, count in formed.candidates)
    if not batches:
        message = "no TensorBatch has been formed yet"
        raise UsageError(message, help="use a node that has answered requests for a while, or --lognormal")
    buckets_max = executables_max // len(sizes.lengths)
    if buckets_max < 2:
        message = f"{executables_max} executables are too few for two graphs of {len(sizes.lengths)} lengths"
        raise UsageError(message, help=f"allow at least {2 * len(sizes.lengths)}")
    users = _demands([formed.users for formed in sizes.formed], sizes.users_buckets, sizes.user_us)
    candidates = _demands([formed.candidates for formed in sizes.formed], sizes.candidates_buckets, sizes.score_us)
    top = candidates_top or sizes.candidates_buckets[-1]
    users_rungs = _choices(users, sizes.users_buckets[-1], min(_USERS_BUCKETS_MAX, buckets_max - 1))
    candidates_rungs = _choices(candidates, top, min(_CANDIDATES_BUCKETS_MAX, buckets_max - 1))
    pairs = [pair for pair in product(users_rungs, candidates_rungs) if _buckets(pair) <= buckets_max]
    best = min(pairs, key=lambda pair: (sum(rungs.cost_us for rungs in pair), _buckets(pair)))
    return Tuned(
        users=(_rungs(sizes.users_buckets, users), best[0]),
        candidates=(_rungs(sizes.candidates_buckets, candidates), best[1]),
        batches=batches,
        executables=_buckets(best) * len(sizes.lengths),
    )


def uncosted(requests: Histogram, settings: ServingSettings, like: Sizes | None) -> Sizes:
    """Return the sizes of requests that each run alone, from a histogram of their candidates.

    Ladders and costs come from the recorded sizes `like`. Without these, ladders come from the settings and a row costs
    one.
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


def _buckets(ladders: Sequence[Rungs]) -> int:
    return sum(len(rungs.buckets) for rungs in ladders)


def _demands(histograms: list[Histogram], buckets: Sequence[int], costs_us: list[list[float]]) -> _Demands:
    """Return each length's histogram of sizes, with the cost of each bucket."""
    by_length = zip(histograms, costs_us, strict=True)
    return [(histogram, list(zip(buckets, costs, strict=True))) for histogram, costs in by_length]


def _choices(demands: _Demands, top: int, buckets_max: int) -> list[Rungs]:
    multiple = -(-top // _SIZES_MAX)
    return [_rungs(buckets, demands) for buckets in native.choose_ladders(demands, top, buckets_max, multiple)]


def _rungs(buckets: Sequence[int], demands: _Demands) -> Rungs:
    waste, cost_us = native.ladder_figures(list(buckets), demands)
    return Rungs(tuple(buckets), waste, cost_us)
