"""The trainer against its peers: DeepFM on the same samples and cores, how fast, at what cost, and that each learns."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from benchmarks.peers.peer import ready_peers, run_peer
from benchmarks.result import Result
from streamlearn.errors import ServiceError

__all__ = ["Side", "compared", "peers", "run", "taken_in_turn"]

Note = Callable[[str], None]
# What one side says when it is asked for a group of figures: of how many keys, in windows of how many steps.
Side: TypeAlias = Callable[[str, int, int], dict[str, float]]

_CORES = 2
_SIZES = ((100_000, "1e5"), (10_000_000, "1e7"))
_QUICK_SIZES = _SIZES[:1]
_ROUNDS, _QUICK_ROUNDS = 3, 1
_WINDOW_STEPS, _QUICK_WINDOW_STEPS = 30, 8
# `learn`: every key is there before the first step; `grow`: keys come as samples hold them.
_GROUPS = {"keras_static": ("learn",), "tfra_dynamic": ("learn", "grow")}
# Ours over theirs; of these, less is better.
_LESS = ("_us_", "_ms", "_bytes")
_NO_RATIO = ("_log_loss",)


def run(quick: bool, note: Note) -> Result:
    """Measure every side in turn, round by round; figures are medians of the rounds."""
    result = Result("trainer")
    if len(os.sched_getaffinity(0)) < _CORES:
        message = f"{_CORES} cores are needed"
        raise ServiceError(message, help="run it where there are as many")
    sides = peers(note)
    rounds, steps = (_QUICK_ROUNDS, _QUICK_WINDOW_STEPS) if quick else (_ROUNDS, _WINDOW_STEPS)
    for keys_count, size in _QUICK_SIZES if quick else _SIZES:
        found = taken_in_turn(sides, keys_count, (rounds, steps), note)
        for name, figures in found.items():
            result.figures |= {f"{name}.{figure}_{size}": value for figure, value in figures.items()}
        result.ratios |= {f"{ratio}_{size}": value for ratio, value in compared("streamlearn", found).items()}
    return result


def peers(note: Note) -> dict[str, tuple[Sequence[str], Side]]:
    """Peers that can be had here: the groups of each, and how it is asked."""

    def side(name: str) -> Side:
        def asked(group: str, keys_count: int, window_steps: int) -> dict[str, float]:
            return run_peer(
                name, keys_count=keys_count, cores=_CORES, figures=[group], note=note, window_steps=window_steps
            )

        return asked

    return {name: (_GROUPS[name], side(name)) for name in ready_peers(_GROUPS, note)}


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
