"""Shuffle: the rows of a history in another order for each pass. It reads nothing and learns nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from streamlearn.trainer.step import Piece, Step

__all__ = ["WINDOW_STEPS", "shuffled"]

WINDOW_STEPS = 16
"""Number of steps whose rows are mixed with each other."""


def shuffled(steps: Iterable[Step | None], rng: np.random.Generator) -> Iterator[Step | None]:
    """Yield steps of the same sizes, with the rows of each `WINDOW_STEPS` steps in random order.

    Rows with corrections come last of these, so that they follow what they correct.
    """
    window: list[Step] = []
    for step in steps:
        if step is None:
            yield None
            continue
        window.append(step)
        if len(window) == WINDOW_STEPS:
            yield from _mixed(window, rng)
            window = []
    yield from _mixed(window, rng)


def _mixed(window: list[Step], rng: np.random.Generator) -> Iterator[Step]:
    pieces = [piece for step in window for piece in step.pieces]
    sizes = [len(piece) for piece in pieces]
    is_correction = np.concatenate([np.zeros(0, bool), *(piece.correct != 0 for piece in pieces)])
    order = rng.permutation(len(is_correction))
    order = order[np.argsort(is_correction[order], kind="stable")]
    of_row = np.repeat(np.arange(len(pieces)), sizes)
    begins = np.cumsum([0, *sizes])
    at = 0
    for step in window:
        chosen = np.sort(order[at : at + len(step)])
        at += len(step)
        owners, firsts = np.unique(of_row[chosen], return_index=True)
        parts = np.split(chosen, firsts[1:])
        mixed = [_some(pieces[owner], part - begins[owner]) for owner, part in zip(owners, parts, strict=True)]
        yield replace(step, pieces=tuple(mixed))


def _some(piece: Piece, rows: npt.NDArray[np.int64]) -> Piece:
    known = None if piece.known is None else piece.known[rows]
    before = None if piece.before is None else piece.before[rows]
    return Piece(piece.batch, piece.rows[rows], piece.learn[rows], piece.correct[rows], known, before)
