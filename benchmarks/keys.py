"""Keys of a table's workload: ids, their distribution in requests, and the row of each key.

Peers use this file in their own environments, so it imports only numpy. Ids are numbers from 0. A key is a bijective
mix of an id and never negative, because TensorFlow's tables take signed keys. Everything is a function of the seed.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BATCH_KEYS",
    "DIM",
    "Keys",
    "every_bit",
    "uniform",
    "zipf",
    "zipf_ranks",
]

BATCH_KEYS = 100_000
DIM = 16

_KEY_BITS = 63
_KEY_MASK = np.uint64((1 << _KEY_BITS) - 1)
_GOLDEN = 0x9E3779B97F4A7C15
# Odd numbers: multiplication by them modulo a power of two is a bijection.
_ODD = (np.uint64(0xD1342543DE82EF95), np.uint64(0xAF251AF3B0F025B5))
_SHIFTS = (np.uint64(32), np.uint64(29), np.uint64(32))
_ROW_SHIFT = np.uint64(40)  # leaves 24 bits: what a float32 holds exactly
_DRAW_MAX = 1 << 20


class Keys:
    """The keys of a seed, and their rows. Keys of two seeds are the same only by chance."""

    def __init__(self, seed: int) -> None:
        self._offset = np.uint64((seed * _GOLDEN) & int(_KEY_MASK))
        columns = np.arange(1, DIM + 1, dtype=np.uint64)
        self._columns = (columns * np.uint64(_GOLDEN)) | np.uint64(1)  # (dim,)

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the keys of ids, from 0 to 2**63 - 1. Different ids have different keys."""
        mixed = (ids.astype(np.uint64) + self._offset) & _KEY_MASK
        mixed ^= mixed >> _SHIFTS[0]
        for odd, shift in zip(_ODD, _SHIFTS[1:], strict=True):
            mixed *= odd
            mixed &= _KEY_MASK
            mixed ^= mixed >> shift
        return mixed.view(np.int64)

    def between(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the keys of the ids from `begin` up to `end`."""
        return self.of(np.arange(begin, end))

    def rows(self, keys: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the row of each key, (keys, dim): numbers in [-1, 1) from 24 bits of the key, never 0."""
        bits = keys.view(np.uint64)[:, None] * self._columns
        bits >>= _ROW_SHIFT
        bits |= np.uint64(1)
        rows = bits.astype(np.float32)
        rows *= np.float32(2.0**-23)
        rows -= np.float32(1.0)
        return rows


def every_bit(keys: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return keys for a table that takes 64 bits: the bit that is always 0 becomes the lowest."""
    return keys.view(np.uint64) << np.uint64(1)


def uniform(count: int, size: int, seed: int) -> NDArray[np.int64]:
    """Draw `size` of `count` ids uniformly, with repeats."""
    return np.random.default_rng((seed, 1)).integers(0, count, size)


def zipf(count: int, size: int, seed: int, exponent: float = 1.05) -> NDArray[np.int64]:
    """Draw `size` of `count` ids by Zipf's law, with repeats; frequent ids are not neighbours.

    The probability of rank r is proportional to r to the power of `-exponent`. The assignment of ids to ranks depends
    only on `count`.
    """
    ranks = zipf_ranks(count, size, seed, exponent)
    ranks *= _stride(count)
    ranks %= count
    return ranks


def zipf_ranks(count: int, size: int, seed: int, exponent: float = 1.05) -> NDArray[np.int64]:
    """Draw ranks from 0 by a bounded Zipf law, exactly, in memory that does not grow with `count`.

    It uses rejection from the integral of the law (Hörmann and Derflinger, 1996), which keeps nearly every draw.
    """
    rng = np.random.default_rng((seed, 2))
    ranks = np.empty(size, np.int64)
    drawn = 0
    while drawn < size:
        chances = rng.random(min(size - drawn + 16, _DRAW_MAX))
        kept = _zipf_kept(chances, count, exponent)[: size - drawn]
        ranks[drawn : drawn + len(kept)] = kept
        drawn += len(kept)
    return ranks


def _zipf_kept(chances: NDArray[np.float64], count: int, exponent: float) -> NDArray[np.int64]:
    """Return the ranks of the draws that the rejection keeps."""
    first, last = _area(np.float64(1.5), exponent) - 1.0, _area(np.float64(count + 0.5), exponent)
    areas = last + chances * (first - last)
    points = _point(areas, exponent)
    ranks = np.clip(np.floor(points + 0.5), 1, count)
    kept = areas >= _area(ranks + 0.5, exponent) - ranks**-exponent
    result: NDArray[np.int64] = ranks[kept].astype(np.int64) - 1
    return result


def _area(points: NDArray[np.float64] | np.float64, exponent: float) -> NDArray[np.float64]:
    """Return the integral of x**-exponent, up to a constant."""
    logs = np.log(points)
    result: NDArray[np.float64] = logs if exponent == 1.0 else np.expm1((1.0 - exponent) * logs) / (1.0 - exponent)
    return result


def _point(areas: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    """Return the inverse of `_area`."""
    logs = areas if exponent == 1.0 else np.log1p((1.0 - exponent) * areas) / (1.0 - exponent)
    return np.exp(logs)


def _stride(count: int) -> int:
    """Return about the golden section of `count`, coprime to it: its multiples visit every id once, far apart."""
    stride = max(1, round(count * 0.6180339887498949))
    while math.gcd(stride, count) != 1:
        stride += 1
    return stride
