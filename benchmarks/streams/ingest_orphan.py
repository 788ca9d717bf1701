"""Orphan guard: ends a benchmark's process and its children when the benchmark ends in any way."""

from __future__ import annotations

import os
import signal
import threading
import time

__all__ = ["end_with_parent"]

_LOOK_S = 1.0


def end_with_parent() -> None:
    """Kill the process group of this process, which must lead it, when the parent ends."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="benchmark-parent", daemon=True).start()
