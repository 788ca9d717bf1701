"""Chance: draws that depend on the seed and on what they are for, and on nothing that happened before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["chance_of", "mix", "zipf_ranks"]

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def chance_of(*what: int) -> np.random.Generator:
    """A generator of its own for each purpose: (seed, purpose, number)."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(what)))


def zipf_ranks(rng: np.random.Generator, draws: int, ranks: int, exponent: float) -> npt.NDArray[np.int64]:
    """Ranks from 0, the first the likeliest: rank r about as (r + 1) ** -exponent."""
    uniform = rng.random(draws)
    if abs(exponent - 1) < 1e-6:
        found = (ranks + 1.0) ** uniform
    else:
        power = 1.0 - exponent
        found = (1.0 + uniform * ((ranks + 1.0) ** power - 1.0)) ** (1.0 / power)
    return np.minimum(found.astype(np.int64) - 1, ranks - 1)


def mix(numbers: npt.NDArray[np.int64], salt: int) -> npt.NDArray[np.uint64]:
    """Numbers that look like chance, no two of them equal (SplitMix64's finalizer)."""
    word = numbers.astype(np.uint64) + np.uint64(salt * _GOLDEN & _WORD)
    word = (word ^ word >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ word >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return word ^ word >> np.uint64(31)
