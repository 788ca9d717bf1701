"""CompileBudget: how many executables a process may make for all graphs together. TensorFlow never frees one."""

from __future__ import annotations

import threading

from streamlearn.serving.graphs.execution_meters import ExecutionMeters

__all__ = ["CompileBudget"]


class CompileBudget:
    """Counts the executables that were made, up to `compiles_max`; any thread may call."""

    def __init__(self, compiles_max: int) -> None:
        self.compiles_max = compiles_max
        self.made = 0
        self._lock = threading.Lock()
        self._meters = ExecutionMeters()

    @property
    def is_used_up(self) -> bool:
        """Whether no more may be made."""
        return self.made >= self.compiles_max

    def take(self) -> bool:
        """Count an executable that is made next and return whether it may be made."""
        with self._lock:
            if self.is_used_up:
                return False
            self.made += 1
        self._meters.compiles.inc()
        self._meters.compiled.set(self.made / self.compiles_max)
        return True
