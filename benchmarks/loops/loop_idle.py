"""The idle loop: the processor time of its parts while nothing happens. Prism is a process of its own and left out."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.loops.loop_whole import Whole

__all__ = ["idle"]

_WARM_S, _QUIET_S, _SECONDS = 5.0, 20.0, 60.0
_RATE = 200.0


def idle(whole: Whole) -> dict[str, float]:
    """Send events for some seconds, let the loop come to rest, and measure it."""
    with whole.producing(_RATE, _WARM_S):
        time.sleep(2 * _WARM_S)
    time.sleep(_QUIET_S)  # rows that are due are learned and published
    pids = [part.process.pid for part in (whole.ingest, whole.trainer, *whole.shards, *whole.nodes)]
    begin_s, before_s = time.monotonic(), sum(map(_used_s, pids))
    time.sleep(_SECONDS)
    return {"idle_cores": (sum(map(_used_s, pids)) - before_s) / (time.monotonic() - begin_s)}


def _used_s(pid: int) -> float:
    """Return the processor time of a process, without that of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
