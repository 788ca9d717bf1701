"""Plan: the order of the faults and the pauses between them; a seed determines both."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

__all__ = ["planned"]

_QUIET_S = (1.0, 5.0)


def planned(seed: int, names: Sequence[str]) -> Iterator[tuple[float, str]]:
    """Yield faults without end: all of them in a random order, then all in another order.

    Yields:
        The seconds to wait, and the name of the fault that follows.

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
