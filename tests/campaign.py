"""Campaign: how long random tests go on: shortly, and the same every time; or as long as `make chaos` says."""

from __future__ import annotations

import os

__all__ = ["examples"]

_TIMES = int(os.environ.get("EXAMPLES_TIMES", "1"))


def examples(count: int) -> int:
    """So many examples; in a campaign `EXAMPLES_TIMES` as many."""
    return count * _TIMES
