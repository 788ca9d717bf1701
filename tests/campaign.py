"""Campaign: how long random tests go on: shortly, and the same every time; or as long as `make chaos-parts` says."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["away_s", "examples", "some"]

_One = TypeVar("_One")
_TIMES = int(os.environ.get("EXAMPLES_TIMES", "1"))
_AWAY_S = float(os.environ.get("AWAY_S", "10"))


def examples(count: int) -> int:
    """So many examples; in a campaign `EXAMPLES_TIMES` as many."""
    return count * _TIMES


def away_s() -> float:
    """For how many seconds a server is away; in a campaign `AWAY_S`."""
    return _AWAY_S


def some(cases: Sequence[_One]) -> Sequence[_One]:
    """The first of cases that are much alike; in a campaign all of them."""
    return cases if _TIMES > 1 else cases[:1]
