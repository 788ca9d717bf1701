"""A process of a benchmark ends with the benchmark, whatever ended that, and so does all that it has started."""

from __future__ import annotations

import os
import signal
import threading
import time

__all__ = ["end_with_parent"]

_LOOK_S = 1.0


def end_with_parent() -> None:
    """Watch over whoever started this process, which leads a group of its own; its end is the group's."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="benchmark-parent", daemon=True).start()
