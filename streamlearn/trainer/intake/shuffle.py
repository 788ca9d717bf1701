"""Shuffle: the requests of a history in another order for each pass. It reads nothing and learns nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from streamlearn.trainer.step import Piece, Step

__all__ = ["WINDOW_STEPS", "shuffled"]

WINDOW_STEPS = 16
"""Number of steps whose requests are mixed with each other."""


def shuffled(steps: Iterable[Step | None], rng: np.random.Generator) -> Iterator[Step | None]:
    """Yield steps of the same sizes, with the requests of each `WINDOW_STEPS` steps in random order.

    The rows of a request stay together, but for requests at the end of a step. Rows with corrections come last of all,
    so that they follow what they correct.
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
    messages = _messages(window)
    sizes = [len(message) for message in messages]
    begins = np.cumsum([0, *sizes])
    # A number for each request of the window, then its place among all.
    counts = [len(message.batch.requests) for message in messages]
    firsts = np.cumsum([0, *counts])
    requests = [first + one.batch.request_index[one.rows] for first, one in zip(firsts[:-1], messages, strict=True)]
    place = rng.permutation(firsts[-1])
    is_correction = np.concatenate([np.zeros(0, bool), *(message.correct != 0 for message in messages)])
    order = np.lexsort((place[np.concatenate([np.zeros(0, np.int64), *requests])], is_correction))
    of_row = np.repeat(np.arange(len(messages)), sizes)
    at = 0
    for step in window:
        chosen = np.sort(order[at : at + len(step)])
        at += len(step)
        owners, ends = np.unique(of_row[chosen], return_index=True)
        parts = np.split(chosen, ends[1:]) if len(chosen) else []
        mixed = [_some(messages[owner], part - begins[owner]) for owner, part in zip(owners, parts, strict=True)]
        yield replace(step, pieces=tuple(mixed))


def _messages(window: list[Step]) -> list[Piece]:
    """Return one piece for each message; one that was cut between two steps has two there, one after the other."""
    joined: list[Piece] = []
    for piece in (piece for step in window for piece in step.pieces):
        if joined and joined[-1].batch is piece.batch:
            piece = joined.pop().followed_by(piece)
        joined.append(piece)
    return joined


def _some(piece: Piece, rows: npt.NDArray[np.int64]) -> Piece:
    known = None if piece.known is None else piece.known[rows]
    before = None if piece.before is None else piece.before[rows]
    return Piece(piece.batch, piece.rows[rows], piece.learn[rows], piece.correct[rows], known, before)
