"""The parameter server against TensorFlow's: rows pulled and gradients pushed between two processes."""

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
_LESS_IS_BETTER = ("_ms",)


def run(quick: bool, note: Note) -> Result:
    """Measure pulls, pushes, and pulls during an export; if quick, without the peer."""
    result = Result("ps")
    if len(os.sched_getaffinity(0)) < 2:
        message = "the server and the client need a core each"
        raise ServiceError(message, help="run the benchmark on a machine with two cores")
    peer: dict[str, float] = {}
    if not quick and ready_peers([_PEER], note):
        peer = run_peer(_PEER, keys_count=_KEYS, cores=2, figures=["remote"], note=note)
        result.figures |= {f"{_PEER}.{name}": value for name, value in peer.items()}
    for group in ("remote", "unix", "export"):
        note(f"streamlearn: {group} of {_KEYS:,} keys, the shard on one core and its client on another")
        result.figures |= ask(_OURS, Order("streamlearn", _KEYS, (group,)), 2)
    for name, value in peer.items():
        ours = result.figures[name]
        is_less = name.endswith(_LESS_IS_BETTER)
        result.ratios[f"ratio_tfps_{name}"] = value / ours if is_less else ours / value
    return result
