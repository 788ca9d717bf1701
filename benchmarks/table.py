"""The embedding table against its peers: filling, reading, training, reading during writes, and versions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.peers.answer import Order
from benchmarks.peers.peer import PEERS, ask, ready_peers, run_peer
from benchmarks.result import Result
from streamlearn.errors import ServiceError

__all__ = ["run"]

Note = Callable[[str], None]

_FULL_KEYS = 10_000_000
_QUICK_KEYS = 1_000_000
_OURS = [sys.executable, "-m", "benchmarks.ours.streamlearn_table"]
# A virtual machine is slow to provide memory that was not used for long: touch it before each process.
_TOUCHED_BYTES = 4 << 30
# Groups of figures that peers have too, and their numbers of cores.
_ROUNDS: tuple[tuple[str, int], ...] = (("fill", 1), ("fill", 2), ("train", 1), ("train", 2), ("latency", 2))
_ALONE: tuple[tuple[str, int], ...] = (
    ("rowwise", 1),
    ("rowwise", 2),
    ("versions", 1),
    ("versions", 2),
    ("images", 1),
    ("images", 2),
    ("stager", 2),
    ("pack", 1),
)
_QUICK = (("fill", 1), ("train", 1), ("versions", 1), ("images", 1), ("pack", 1))
# Parts of the names of figures that are better when lower.
_LESS_IS_BETTER = ("bytes_", "_ms", "_us")


def run(quick: bool, note: Note) -> Result:
    """Measure everything; if quick, without peers."""
    result = Result("table")
    keys_count, latency_s = (_QUICK_KEYS, 2.0) if quick else (_FULL_KEYS, 10.0)
    names = [] if quick else ready_peers(PEERS, note)
    for group, cores in _QUICK if quick else (*_ROUNDS, *_ALONE):
        _touch()
        note(f"streamlearn: {group} of {keys_count:,} keys on {cores} {'core' if cores == 1 else 'cores'}")
        order = Order("streamlearn", keys_count, (group,), latency_s=latency_s)
        try:
            ours = ask(_OURS, order, cores)
        except ServiceError as error:
            # Keep the other figures, which take a quarter of an hour.
            note(f"error: {error}")
            result.failures.append(f"{group} on {cores}")
            continue
        result.figures |= {_name(figure, cores): value for figure, value in ours.items()}
        for name in _measured(names, group):
            _compare(name, (group, cores), order, ours, result, note)
    return result


def _measured(names: Sequence[str], group: str) -> list[str]:
    return [name for name in names if group in PEERS[name].figures]


def _compare(
    name: str,
    round_: tuple[str, int],
    order: Order,
    ours: dict[str, float],
    result: Result,
    note: Note,
) -> None:
    group, cores = round_
    _touch()
    try:
        peer = run_peer(
            name, keys_count=order.keys_count, cores=cores, figures=[group], note=note, latency_s=order.latency_s
        )
    except ServiceError as error:
        note(f"peer {name} is left out: {error}")
        return
    result.figures |= {f"{name}.{_name(figure, cores)}": value for figure, value in peer.items()}
    for figure in ours.keys() & peer.keys():
        is_less = any(mark in figure for mark in _LESS_IS_BETTER)
        pair = (peer[figure], ours[figure]) if is_less else (ours[figure], peer[figure])
        if pair[1] > 0:
            result.ratios[f"{_name(figure, cores)}_to_{name}"] = pair[0] / pair[1]


def _name(figure: str, cores: int) -> str:
    return figure if cores == 1 else f"{figure}_{cores}_cores"


def _touch() -> None:
    """Touch memory, so that the machine provides it before the measurement."""
    np.ones(_TOUCHED_BYTES, np.uint8)
