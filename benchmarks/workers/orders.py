"""Orders: lines that tell a process of a crew what to do. It answers each with a line of JSON."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator

from benchmarks.peers.answer import reserve_stdout

__all__ = ["Orders"]

_ORDER_S_MAX = 3_600  # a process that waits or works for longer ends itself


class Orders:
    """The orders of a crew's process, from stdin; its answers alone are on stdout."""

    def __init__(self) -> None:
        signal.alarm(_ORDER_S_MAX)
        self._stdout = reserve_stdout()

    def __iter__(self) -> Iterator[list[str]]:
        """Yield the words of each order, until nobody gives any."""
        while line := sys.stdin.readline():
            signal.alarm(_ORDER_S_MAX)
            yield line.split()

    def answer(self, **figures: object) -> None:
        """Answer an order, or a part of it."""
        self._stdout.write(json.dumps(figures) + "\n")
        self._stdout.flush()
