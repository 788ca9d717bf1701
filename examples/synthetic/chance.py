"""Chance: random draws that depend only on the seed and their purpose, not on earlier draws."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["chance_of", "mix", "zipf_ranks"]

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def chance_of(*purpose: int) -> np.random.Generator:
    """Return a separate generator for each purpose, such as (seed, purpose, number)."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(purpose)))


def zipf_ranks(rng: np.random.Generator, draws: int, ranks: int, exponent: float) -> npt.NDArray[np.int64]:
    """Draw ranks from 0; the probability of rank r is about proportional to (r + 1) ** -exponent."""
    uniform = rng.random(draws)
    if abs(exponent - 1) < 1e-6:
        ranks_from_1 = (ranks + 1.0) ** uniform
    else:
        power = 1.0 - exponent
        ranks_from_1 = (1.0 + uniform * ((ranks + 1.0) ** power - 1.0)) ** (1.0 / power)
    return np.minimum(ranks_from_1.astype(np.int64) - 1, ranks - 1)


def mix(numbers: npt.NDArray[np.int64], salt: int) -> npt.NDArray[np.uint64]:
    """Return pseudorandom numbers, different for different inputs (the finalizer of SplitMix64)."""
    word = numbers.astype(np.uint64) + np.uint64(salt * _GOLDEN & _WORD)
    word = (word ^ word >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ word >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return word ^ word >> np.uint64(31)
