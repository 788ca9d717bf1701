"""How many candidates requests have: few mostly, many now and then."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["candidate_counts"]

_SIGMA = 0.8


def candidate_counts(
    mean: float, candidates_max: int, count: int, random: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Numbers drawn from a lognormal distribution, at least 1 and at most the bound.

    Args:
        mean: Their mean, but for what the bound takes off.
        candidates_max: The bound.
        count: How many numbers.
        random: What they are drawn by.
    """
    drawn = random.lognormal(np.log(mean) - _SIGMA**2 / 2, _SIGMA, count)
    return np.clip(np.rint(drawn), 1, candidates_max).astype(np.int64)
