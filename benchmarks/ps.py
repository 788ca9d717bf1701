"""The parameter server against TensorFlow's: rows pulled and gradients pushed between two processes, in turn."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from benchmarks.peers.answer import Order
from benchmarks.peers.peer import ask, ready_peers
from benchmarks.result import Result
from benchmarks.trainer import OURS, side, taken_in_turn
from streamlearn.errors import ServiceError

__all__ = ["run"]

Note = Callable[[str], None]

_KEYS = 1_000_000
_OURS = [sys.executable, "-m", "benchmarks.ours.streamlearn_ps"]
_PEER = "tensorflow_ps"
_TO_PEER = f"_to_{_PEER}"
_REMOTE, _WINDOWS = "remote", 9


def run(quick: bool, note: Note) -> Result:
    """Measure pulls, pushes, and pulls during an export; if quick, without the peer."""
    result = Result("ps")
    if len(os.sched_getaffinity(0)) < 2:
        message = "the server and the client need a core each"
        raise ServiceError(message, help="run the benchmark on a machine with two cores")
    peers = [] if quick else ready_peers([_PEER], note)
    note(f"remote of {_KEYS:,} keys, the shard on one core and its client on another")
    order = Order("", _KEYS, (_REMOTE,), windows=_WINDOWS, in_turns=True)
    figures, ratios = taken_in_turn({name: side(name, order, _OURS, 2) for name in (OURS, *peers)}, _WINDOWS, note)
    result.figures |= figures.get(OURS, {})
    result.failures += [] if OURS in figures else [_REMOTE]
    result.figures |= {f"{_PEER}.{name}": value for name, value in figures.get(_PEER, {}).items()}
    result.ratios |= {f"ratio_tfps_{name.removesuffix(_TO_PEER)}": value for name, value in ratios.items()}
    for group in ("unix", "export"):
        note(f"streamlearn: {group} of {_KEYS:,} keys")
        result.figures |= ask(_OURS, Order(OURS, _KEYS, (group,)), 2)
    return result
