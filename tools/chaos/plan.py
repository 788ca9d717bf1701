"""Plan: which faults come in which order, and how long nothing happens between them. Pure: a seed says all of it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

__all__ = ["planned"]

_QUIET_S = (1.0, 5.0)


def planned(seed: int, names: Sequence[str]) -> Iterator[tuple[float, str]]:
    """Faults without end: all of them in some order, then all in another one.

    Args:
        seed: Says which.
        names: The faults there are.

    Yields:
        How long to wait, and the fault that follows.

    Examples:
        >>> import itertools
        >>> first = [name for _, name in itertools.islice(planned(1, ["a", "b", "c"]), 3)]
        >>> sorted(first)
        ['a', 'b', 'c']
    """
    chance = random.Random(seed)
    while names:
        for name in chance.sample(list(names), len(names)):
            yield chance.uniform(*_QUIET_S), name
