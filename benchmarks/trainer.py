"""The trainer against its peers, with DeepFM on the same samples and cores: rate, cost and log loss."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from benchmarks.peers.answer import Order
from benchmarks.peers.peer import ask, ready_peers, run_peer
from benchmarks.result import Result
from streamlearn.errors import ServiceError

__all__ = ["OURS", "Side", "compared", "growth", "named", "ours", "peers", "run", "taken_in_turn"]

Note = Callable[[str], None]
# Measures a group of figures, with a number of keys, in windows of a number of steps.
Side: TypeAlias = Callable[[str, int, int], dict[str, float]]

OURS = "streamlearn"
_COMMAND = [sys.executable, "-m", "benchmarks.ours.streamlearn_trainer"]
_CORES = 2
_SIZES = ((100_000, "1e5"), (10_000_000, "1e7"))
_QUICK_SIZES = _SIZES[:1]
_ROUNDS, _QUICK_ROUNDS = 3, 1
_WINDOW_STEPS, _QUICK_WINDOW_STEPS = 30, 8
# `learn`: the table holds all keys before the first step; `grow`: keys arrive with samples; `dense`: our trainer
# and its dense part alone, by turns.
_GROUPS = {
    OURS: ("learn", "grow", "dense"),
    "keras_plain": ("learn",),
    "keras_static": ("learn",),
    "tfra_dynamic": ("learn", "grow"),
}
# Parts of the names of figures that are better when lower.
_LESS_IS_BETTER = ("_us_", "_ms", "_bytes")
_NO_RATIO = ("_log_loss",)
# The names of ratios that have targets.
_NAMES = {
    "learn_samples_per_s_to_keras_plain": "ratio_keras_plain",
    "learn_samples_per_s_to_keras_static": "ratio_keras_static",
    "learn_samples_per_s_to_tfra_dynamic": "ratio_tfra",
    "to_dense_only": "ratio_dense_only",
    "cpu_to_dense_only": "ratio_dense_only_cpu",
}
_TO_DENSE = ("to_dense_only", "cpu_to_dense_only")


def run(quick: bool, note: Note) -> Result:
    """Measure every side by turns, round by round; figures are medians of the rounds."""
    result = Result("trainer")
    if len(os.sched_getaffinity(0)) < _CORES:
        message = f"the benchmark needs {_CORES} cores"
        raise ServiceError(message, help="run it on a machine that has them")
    sides = ours(note) | peers(note)
    rounds, steps = (_QUICK_ROUNDS, _QUICK_WINDOW_STEPS) if quick else (_ROUNDS, _WINDOW_STEPS)
    figures_by_size = {}
    for keys_count, size in _QUICK_SIZES if quick else _SIZES:
        figures_by_size[size] = taken_in_turn(sides, keys_count, (rounds, steps), note)
        own = figures_by_size[size].get(OURS, {})
        result.failures += [f"{group}_{size}" for group in _GROUPS[OURS] if not _has(own, group)]
        result.ratios |= {f"{ratio}_{size}": value for ratio, value in named(figures_by_size[size]).items()}
        for name, figures in figures_by_size[size].items():
            result.figures |= {
                f"{name}.{figure}_{size}": value for figure, value in figures.items() if figure not in _TO_DENSE
            }
    result.ratios |= growth([figures_by_size[size].get(OURS, {}) for size in figures_by_size])
    return result


def ours(note: Note) -> dict[str, tuple[Sequence[str], Side]]:
    """Return our trainer as a side: its groups and the function that measures them."""

    def measure(group: str, keys_count: int, window_steps: int) -> dict[str, float]:
        note(f"{OURS}: {group} of {keys_count:,} keys on {_CORES} cores")
        return ask(_COMMAND, Order(OURS, keys_count, (group,), window_steps=window_steps), _CORES)

    return {OURS: (_GROUPS[OURS], measure)}


def peers(note: Note) -> dict[str, tuple[Sequence[str], Side]]:
    """Return the available peers: the groups of each and the function that measures them."""

    def side(name: str) -> Side:
        def measure(group: str, keys_count: int, window_steps: int) -> dict[str, float]:
            return run_peer(
                name, keys_count=keys_count, cores=_CORES, figures=[group], note=note, window_steps=window_steps
            )

        return measure

    return {name: (_GROUPS[name], side(name)) for name in ready_peers([name for name in _GROUPS if name != OURS], note)}


def taken_in_turn(
    sides: Mapping[str, tuple[Sequence[str], Side]], keys_count: int, times: tuple[int, int], note: Note
) -> dict[str, dict[str, float]]:
    """Return the figures of each side: medians of its successful rounds.

    Args:
        sides: The groups of each side and the function that measures them.
        keys_count: Number of ids in the samples.
        times: Number of rounds, and steps per window.
        note: Called with failures.
    """
    rounds, window_steps = times
    values_of: dict[str, dict[str, list[float]]] = {name: {} for name in sides}
    for _ in range(rounds):
        for name, (groups, measure) in sides.items():
            for group in groups:
                try:
                    figures = measure(group, keys_count, window_steps)
                except ServiceError as error:
                    note(f"{name}: {group} of {keys_count:,} keys is left out of this round: {error}")
                    continue
                for figure, value in figures.items():
                    values_of[name].setdefault(figure, []).append(value)
    return {
        name: {figure: statistics.median(values) for figure, values in figures.items()}
        for name, figures in values_of.items()
        if figures
    }


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


def named(figures_of: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return all ratios of one size, to peers and to our dense part; those with targets under the targets' names."""
    own = figures_of.get(OURS, {})
    ratios = {name: own[name] for name in _TO_DENSE if name in own} | compared(OURS, figures_of)
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
