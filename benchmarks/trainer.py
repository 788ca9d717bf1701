"""The trainer against its peers, with DeepFM on the same samples and cores: rate, cost and log loss.

All sides wait in processes of their own, and each measures a window in its turn, so that a slow minute of the machine
hits every one.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Protocol, TypeAlias

from benchmarks.peers.answer import Order
from benchmarks.peers.peer import PeerProcess, ask, command_of, ready_peers
from benchmarks.result import Result
from streamlearn.errors import ServiceError

__all__ = ["OURS", "Side", "compared", "growth", "named", "run", "side", "taken_in_turn"]

Note = Callable[[str], None]


class Side(Protocol):
    """A process that measures windows."""

    def turn(self) -> dict[str, float]:
        """Return the figures of its next window; nothing from the first call, which waits until it is ready."""

    def end(self) -> dict[str, float]:
        """Return the figures of all windows."""

    def close(self) -> None:
        """End it."""


Sides: TypeAlias = Mapping[str, Callable[[], Side]]

OURS = "streamlearn"
_COMMAND = [sys.executable, "-m", "benchmarks.ours.streamlearn_trainer"]
_CORES = 2
_SIZES = ((100_000, "1e5"), (10_000_000, "1e7"))
_QUICK_SIZES = _SIZES[:1]
_WINDOWS, _QUICK_WINDOWS = 15, 5
_WINDOW_STEPS, _QUICK_WINDOW_STEPS = 30, 8
_WAIT_S_MAX = 3_600.0
# `learn`: the table holds all keys before the first step; `grow`: keys arrive with samples.
_GROUPS = {
    "learn": (OURS, "keras_plain", "keras_static", "keras_static_stream", "tfra_dynamic", "tfra_stream"),
    "grow": (OURS, "tfra_dynamic"),
}
# Our trainer and its dense part alone, by turns in one process.
_DENSE = "dense"
# Parts of the names of figures that are better when lower.
_LESS_IS_BETTER = ("_us_", "_ms", "_bytes")
_NO_RATIO = ("_log_loss",)
# The names of ratios that have targets.
_NAMES = {
    "learn_samples_per_s_to_keras_plain": "ratio_keras_plain",
    "learn_samples_per_s_to_keras_static": "ratio_keras_static",
    "learn_samples_per_s_to_keras_static_stream": "ratio_keras_static_stream",
    "learn_samples_per_s_to_tfra_dynamic": "ratio_tfra",
    "learn_samples_per_s_to_tfra_stream": "ratio_tfra_stream",
    "to_dense_only": "ratio_dense_only",
    "cpu_to_dense_only": "ratio_dense_only_cpu",
}
_TO_DENSE = ("to_dense_only", "cpu_to_dense_only")


def run(quick: bool, note: Note) -> Result:
    """Measure all sides by turns; figures and ratios are medians of windows."""
    result = Result("trainer")
    if len(os.sched_getaffinity(0)) < _CORES:
        message = f"the benchmark needs {_CORES} cores"
        raise ServiceError(message, help="run it on a machine that has them")
    ready = ready_peers([name for name in _GROUPS["learn"] if name != OURS], note)
    windows, steps = (_QUICK_WINDOWS, _QUICK_WINDOW_STEPS) if quick else (_WINDOWS, _WINDOW_STEPS)
    ours = []
    for keys_count, size in _QUICK_SIZES if quick else _SIZES:
        figures_of: dict[str, dict[str, float]] = {}
        paired: dict[str, float] = {}
        for group, names in _GROUPS.items():
            note(f"{group} of {keys_count:,} keys on {_CORES} cores")
            order = Order(
                "", keys_count, (group,), window_steps=steps, windows=windows, in_turns=True, wait_s_max=_WAIT_S_MAX
            )
            sides = {name: side(name, order, _COMMAND, _CORES) for name in names if name == OURS or name in ready}
            figures, ratios = taken_in_turn(sides, windows, note)
            paired |= ratios
            for name, of_group in figures.items():
                figures_of.setdefault(name, {}).update(of_group)
        own = figures_of.setdefault(OURS, {})
        own |= ask(_COMMAND, Order(OURS, keys_count, (_DENSE,), window_steps=steps, windows=windows), _CORES)
        ours.append(own)
        result.failures += [f"{group}_{size}" for group in _GROUPS if not _has(own, group)]
        result.ratios |= {f"{ratio}_{size}": value for ratio, value in named(figures_of, paired).items()}
        for name, own in figures_of.items():
            result.figures |= {
                f"{name}.{figure}_{size}": value for figure, value in own.items() if figure not in _TO_DENSE
            }
    result.ratios |= growth(ours)
    return result


def side(name: str, order: Order, ours: Sequence[str], cores: int) -> Callable[[], Side]:
    """Return what starts a side with an order's figures: ours with its command, or a peer."""
    own = replace(order, peer=name)
    return lambda: PeerProcess(ours if name == OURS else command_of(own, cores), own, cores)


def taken_in_turn(sides: Sides, windows: int, note: Note) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Return the figures of each side, and how much better ours are: the median of the windows' ratios.

    Args:
        sides: What starts each side. One after the other is started and made ready.
        windows: Number of windows.
        note: Called with failures; a side that fails is left out.
    """
    seen: dict[str, list[dict[str, float]]] = {}
    figures: dict[str, dict[str, float]] = {}
    with ExitStack() as ends:
        running: dict[str, Side] = {}

        def left_out(name: str, error: ServiceError) -> None:
            note(f"{name} is left out: {error}")
            running.pop(name, None)

        for name, start in sides.items():
            try:
                running[name] = ends.enter_context(closing(start()))
                running[name].turn()
            except ServiceError as error:
                left_out(name, error)
        for _ in range(windows):
            for name, side in list(running.items()):
                try:
                    seen.setdefault(name, []).append(side.turn())
                except ServiceError as error:
                    left_out(name, error)
        for name, side in list(running.items()):
            try:
                figures[name] = side.end()
            except ServiceError as error:
                left_out(name, error)
    pairs = [
        compared(OURS, {name: seen[name][window] for name in figures}) for window in range(windows if figures else 0)
    ]
    return figures, {ratio: statistics.median(pair[ratio] for pair in pairs) for ratio in (pairs[0] if pairs else {})}


def compared(ours: str, figures_of: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return how much better the side `ours` is than each other side, by figure; above 1 it is better.

    Without figures of `ours` there are no ratios.
    """
    own, ratios = figures_of.get(ours, {}), {}
    for name, peer in figures_of.items():
        for figure in own.keys() & peer.keys() if name != ours else ():
            is_less = any(mark in figure for mark in _LESS_IS_BETTER)
            pair = (peer[figure], own[figure]) if is_less else (own[figure], peer[figure])
            if pair[1] > 0 and not any(mark in figure for mark in _NO_RATIO):
                ratios[f"{figure}_to_{name}"] = pair[0] / pair[1]
    return ratios


def named(figures_of: Mapping[str, Mapping[str, float]], paired: Mapping[str, float]) -> dict[str, float]:
    """Return all ratios of one size, to peers and to our dense part; those with targets under the targets' names.

    `paired` are those of windows in turn, which count where there are both.
    """
    own = figures_of.get(OURS, {})
    ratios = {name: own[name] for name in _TO_DENSE if name in own} | compared(OURS, figures_of) | dict(paired)
    return {_NAMES.get(ratio, ratio): value for ratio, value in ratios.items()}


def growth(sizes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the cost of a sample at the last size relative to the first, in wall time and CPU time.

    `sizes` are our figures, from few keys to many. With fewer than two sizes there is no result.
    """
    if len(sizes) < 2 or not all(_has(figures, "learn") for figures in sizes):
        return {}
    first, last = sizes[0], sizes[-1]
    return {
        "growth": first["learn_samples_per_s"] / last["learn_samples_per_s"],
        "growth_cpu": last["learn_cpu_us_per_sample"] / first["learn_cpu_us_per_sample"],
    }


def _has(figures: Mapping[str, float], group: str) -> bool:
    return f"{group}_samples_per_s" in figures
