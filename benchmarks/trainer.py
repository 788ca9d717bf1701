"""The trainer against its peers: DeepFM on the same samples and cores, how fast, at what cost, and that each learns."""

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
# What one side says when it is asked for a group of figures: of how many keys, in windows of how many steps.
Side: TypeAlias = Callable[[str, int, int], dict[str, float]]

OURS = "streamlearn"
_COMMAND = [sys.executable, "-m", "benchmarks.ours.streamlearn_trainer"]
_CORES = 2
_SIZES = ((100_000, "1e5"), (10_000_000, "1e7"))
_QUICK_SIZES = _SIZES[:1]
_ROUNDS, _QUICK_ROUNDS = 3, 1
_WINDOW_STEPS, _QUICK_WINDOW_STEPS = 30, 8
# `learn`: every key is there before the first step; `grow`: keys come as samples hold them; `dense`: our whole trainer
# and its dense part alone, in turn.
_GROUPS = {
    OURS: ("learn", "grow", "dense"),
    "keras_plain": ("learn",),
    "keras_static": ("learn",),
    "tfra_dynamic": ("learn", "grow"),
}
# Ours over theirs; of these, less is better.
_LESS = ("_us_", "_ms", "_bytes")
_NO_RATIO = ("_log_loss",)
# Ratios that go by names of their own: those that there are aims for.
_NAMES = {
    "learn_samples_per_s_to_keras_plain": "ratio_keras_plain",
    "learn_samples_per_s_to_keras_static": "ratio_keras_static",
    "learn_samples_per_s_to_tfra_dynamic": "ratio_tfra",
    "to_dense_only": "ratio_dense_only",
    "cpu_to_dense_only": "ratio_dense_only_cpu",
}
_TO_DENSE = ("to_dense_only", "cpu_to_dense_only")


def run(quick: bool, note: Note) -> Result:
    """Measure every side in turn, round by round; figures are medians of the rounds."""
    result = Result("trainer")
    if len(os.sched_getaffinity(0)) < _CORES:
        message = f"{_CORES} cores are needed"
        raise ServiceError(message, help="run it where there are as many")
    sides = ours(note) | peers(note)
    rounds, steps = (_QUICK_ROUNDS, _QUICK_WINDOW_STEPS) if quick else (_ROUNDS, _WINDOW_STEPS)
    found = {}
    for keys_count, size in _QUICK_SIZES if quick else _SIZES:
        found[size] = taken_in_turn(sides, keys_count, (rounds, steps), note)
        own = found[size].get(OURS, {})
        result.failures += [f"{group}_{size}" for group in _GROUPS[OURS] if not _has(own, group)]
        result.ratios |= {f"{ratio}_{size}": value for ratio, value in named(found[size]).items()}
        for name, figures in found[size].items():
            result.figures |= {
                f"{name}.{figure}_{size}": value for figure, value in figures.items() if figure not in _TO_DENSE
            }
    result.ratios |= growth([found[size].get(OURS, {}) for size in found])
    return result


def ours(note: Note) -> dict[str, tuple[Sequence[str], Side]]:
    """Our trainer, as a peer is: its groups, and how it is asked."""

    def asked(group: str, keys_count: int, window_steps: int) -> dict[str, float]:
        note(f"{OURS}: {group} of {keys_count:,} keys on {_CORES} cores")
        return ask(_COMMAND, Order(OURS, keys_count, (group,), window_steps=window_steps), _CORES)

    return {OURS: (_GROUPS[OURS], asked)}


def peers(note: Note) -> dict[str, tuple[Sequence[str], Side]]:
    """Peers that can be had here: the groups of each, and how it is asked."""

    def side(name: str) -> Side:
        def asked(group: str, keys_count: int, window_steps: int) -> dict[str, float]:
            return run_peer(
                name, keys_count=keys_count, cores=_CORES, figures=[group], note=note, window_steps=window_steps
            )

        return asked

    return {name: (_GROUPS[name], side(name)) for name in ready_peers([name for name in _GROUPS if name != OURS], note)}


def taken_in_turn(
    sides: Mapping[str, tuple[Sequence[str], Side]], keys_count: int, times: tuple[int, int], note: Note
) -> dict[str, dict[str, float]]:
    """Figures of each side, the median of the rounds; a side that fails is noted, and has those of its other rounds.

    Args:
        sides: By name, the groups each measures and how it is asked.
        keys_count: How many ids the samples hold.
        times: How many rounds, and how many steps a window has.
        note: Told what failed.
    """
    rounds, window_steps = times
    seen: dict[str, dict[str, list[float]]] = {name: {} for name in sides}
    for _ in range(rounds):
        for name, (groups, asked) in sides.items():
            for group in groups:
                try:
                    figures = asked(group, keys_count, window_steps)
                except ServiceError as error:
                    note(f"{name}: {group} of {keys_count:,} keys is left out of this round: {error}")
                    continue
                for figure, value in figures.items():
                    seen[name].setdefault(figure, []).append(value)
    return {
        name: {figure: statistics.median(values) for figure, values in figures.items()}
        for name, figures in seen.items()
        if figures
    }


def compared(ours: str, found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """How much better ours is than each other side, by figure; above 1 it is better.

    Args:
        ours: Which side; without its figures there are no ratios.
        found: Figures of the sides.
    """
    mine, ratios = found.get(ours, {}), {}
    for name, theirs in found.items():
        for figure in mine.keys() & theirs.keys() if name != ours else ():
            less = any(mark in figure for mark in _LESS)
            pair = (theirs[figure], mine[figure]) if less else (mine[figure], theirs[figure])
            if pair[1] > 0 and not any(mark in figure for mark in _NO_RATIO):
                ratios[f"{figure}_to_{name}"] = pair[0] / pair[1]
    return ratios


def named(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """All ratios of one size: ours to each peer's, and to our own dense part; those with aims by the aims' names."""
    own = found.get(OURS, {})
    ratios = {name: own[name] for name in _TO_DENSE if name in own} | compared(OURS, found)
    return {_NAMES.get(ratio, ratio): value for ratio, value in ratios.items()}


def growth(sizes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What a sample costs at the last size, over what it costs at the first: in time, and of processors.

    Args:
        sizes: Our figures, from few keys to many; nothing is said of fewer than two.
    """
    if len(sizes) < 2 or not all(_has(one, "learn") for one in sizes):
        return {}
    first, last = sizes[0], sizes[-1]
    return {
        "growth": first["learn_samples_per_s"] / last["learn_samples_per_s"],
        "growth_cpu": last["learn_cpu_us_per_sample"] / first["learn_cpu_us_per_sample"],
    }


def _has(figures: Mapping[str, float], group: str) -> bool:
    return f"{group}_samples_per_s" in figures
