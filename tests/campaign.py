"""Campaign: the size of random tests: small and deterministic by default, large under `make chaos-parts`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["away_s", "every", "examples", "some"]

_Case = TypeVar("_Case")
_TIMES = int(os.environ.get("EXAMPLES_TIMES", "1"))
_AWAY_S = float(os.environ.get("AWAY_S", "10"))


def examples(count: int) -> int:
    """Return the number of examples; in a campaign `EXAMPLES_TIMES` times as many."""
    return count * _TIMES


def away_s() -> float:
    """Return the seconds for which a server is stopped; in a campaign `AWAY_S`."""
    return _AWAY_S


def every(steps: int) -> int:
    """Return how many steps lie between two at which something is killed; in a campaign each is tried."""
    return 1 if _TIMES > 1 else steps


def some(cases: Sequence[_Case]) -> Sequence[_Case]:
    """Return the first of similar cases; in a campaign all of them."""
    return cases if _TIMES > 1 else cases[:1]
