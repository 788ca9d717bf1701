"""The budget: how many executables a process may make in its life, of all graphs together; none is ever freed."""

from __future__ import annotations

import threading

from streamlearn.serving.graphs.execution_meters import ExecutionMeters

__all__ = ["CompileBudget"]


class CompileBudget:
    """Counts executables; any thread may ask.

    Args:
        compiles_max: The most of them.
    """

    def __init__(self, compiles_max: int) -> None:
        self.compiles_max = compiles_max
        self._made = 0
        self._lock = threading.Lock()
        self._meters = ExecutionMeters()

    @property
    def made(self) -> int:
        """How many were made."""
        return self._made

    @property
    def is_used_up(self) -> bool:
        """Whether no more may be made."""
        return self._made >= self.compiles_max

    def take(self) -> bool:
        """Count one that is made now; gives whether it may be."""
        with self._lock:
            if self.is_used_up:
                return False
            self._made += 1
        self._meters.compiles.inc()
        self._meters.compiled.set(self._made / self.compiles_max)
        return True
