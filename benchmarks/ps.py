"""The parameter server against TensorFlow's own: rows pulled and gradients pushed between two processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from benchmarks.peers.answer import Order
from benchmarks.peers.peer import ask, ready_peers, run_peer
from benchmarks.result import Result
from streamlearn.errors import ServiceError

__all__ = ["run"]

Note = Callable[[str], None]

_KEYS = 1_000_000
_OURS = [sys.executable, "-m", "benchmarks.ours.streamlearn_ps"]
_PEER = "tensorflow_ps"
_LESS = ("_ms",)


def run(quick: bool, note: Note) -> Result:
    """Measure pulls, pushes, and pulls beside an export; quickly without peers."""
    result = Result("ps")
    if len(os.sched_getaffinity(0)) < 2:
        message = "a server and a client need a core each"
        raise ServiceError(message, help="run it where there are two")
    theirs: dict[str, float] = {}
    if not quick and ready_peers([_PEER], note):
        theirs = run_peer(_PEER, keys_count=_KEYS, cores=2, figures=["remote"], note=note)
        result.figures |= {f"{_PEER}.{name}": value for name, value in theirs.items()}
    for group in ("remote", "unix", "export"):
        note(f"streamlearn: {group} of {_KEYS:,} keys, the shard on one core and its client on another")
        result.figures |= ask(_OURS, Order("streamlearn", _KEYS, (group,)), 2)
    for name, value in theirs.items():
        mine = result.figures[name]
        is_less = name.endswith(_LESS)
        result.ratios[f"ratio_tfps_{name}"] = value / mine if is_less else mine / value
    return result
