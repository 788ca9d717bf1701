"""Candidate counts: how many candidates each request has. Most have few, some have many."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["candidate_counts"]

_SIGMA = 0.8


def candidate_counts(
    mean: float, candidates_max: int, count: int, random: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw `count` numbers from a lognormal distribution of this mean, clipped to 1..candidates_max."""
    drawn = random.lognormal(np.log(mean) - _SIGMA**2 / 2, _SIGMA, count)
    return np.clip(np.rint(drawn), 1, candidates_max).astype(np.int64)
