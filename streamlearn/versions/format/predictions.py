"""Predictions: first predictions that wait for their labels, as the changes of each version. It knows no score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from streamlearn.versions.format.loading import load_tensors
from streamlearn.versions.format.pieces import Tensors
from streamlearn.versions.format.writer import Committed
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store

__all__ = ["ADDED", "MIX", "STREAMS", "mixed", "run_lengths", "stands_for", "waiting_in"]

STREAMS = ("rows", "corrected")
"""The streams of a label: its predictions, and the identities of rows that turned positive."""

ADDED = {"served": np.float32("nan"), "user": np.uint8(0)}
"""Columns of predictions that versions of earlier releases lack, and what counts instead."""

_Array: TypeAlias = npt.NDArray[Any]
_Uint64s: TypeAlias = npt.NDArray[np.uint64]
# The odd constants of SplitMix64.
MIX = tuple(np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def waiting_in(store: Store, links: Sequence[Committed]) -> dict[str, _Array] | None:
    """Return all predictions that wait at the end of a chain, in one set of tensors; None if no version has any.

    State is the newest version's. Rows that no window needs any more, and those that were thinned out, are dropped.

    Raises:
        VersionDefect: A file is damaged.
    """
    parts: list[dict[str, _Array]] = []
    newest: dict[str, _Array] = {}
    for link in reversed(links):
        tensors = load_tensors(store, link, "predictions")
        newest = newest or tensors
        try:
            parts.insert(
                0, {name: column for label in _labels(newest) for name, column in _kept(tensors, newest, label)}
            )
            if tensors and tensors["is_whole"]:
                break
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise defective(link.folder, "corrupted", f"predictions do not fit together: {error!r}") from None
    if not newest:
        return None
    names = {name: None for part in parts for name in part}
    state = {name: tensor for name, tensor in newest.items() if not _is_column(name)}
    joined = {name: np.concatenate([part[name] for part in parts if name in part]) for name in names}
    return state | joined | {"is_whole": np.array([True])}


def run_lengths(windows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the windows of consecutive rows, once each, and their numbers of rows.

    Examples:
        >>> [column.tolist() for column in run_lengths(np.array([7, 7, 5, 7]))]
        [[7, 5, 7], [2, 1, 1]]
    """
    begins = np.flatnonzero(np.append(True, windows[1:] != windows[:-1])[: len(windows)])
    return windows[begins], np.diff(begins, append=len(windows))


def stands_for(identity: _Uint64s, halvings: int | _Uint64s) -> npt.NDArray[np.bool_]:
    """Return which rows stay in the sample after a number of halvings, for all rows or one for each.

    At most 60 halvings. Identities are mixed first, so that no pattern in them decides which rows stay.
    """
    counts = np.asarray(halvings, np.uint64)
    # A shift by all 64 bits is undefined.
    shift = np.uint64(64) - np.maximum(counts, np.uint64(1))
    kept: npt.NDArray[np.bool_] = (mixed(identity) >> shift == 0) | (counts == 0)
    return kept


def mixed(numbers: _Uint64s) -> _Uint64s:
    """Mix numbers with the last step of SplitMix64, so that no pattern in them remains."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * MIX[1]
    numbers = (numbers ^ (numbers >> np.uint64(27))) * MIX[2]
    return numbers ^ (numbers >> np.uint64(31))


def _labels(tensors: Tensors) -> list[str]:
    return [name.removesuffix(".begin") for name in tensors if name.endswith(".begin")]


def _is_column(name: str) -> bool:
    return name.count(".") == 2


def _kept(tensors: Tensors, newest: Tensors, label: str) -> list[tuple[str, _Array]]:
    """Return the columns of a label, with the rows that the newest version still needs."""
    columns: list[tuple[str, _Array]] = []
    halved = dict(zip(newest[f"{label}.halved"].tolist(), newest[f"{label}.halvings"].tolist(), strict=True))
    for stream in STREAMS:
        prefix = f"{label}.{stream}."
        mine = {name: column for name, column in tensors.items() if name.startswith(prefix)}
        if not mine:
            continue
        windows, counts = mine.pop(f"{prefix}windows"), mine.pop(f"{prefix}counts")
        halvings = np.array([halved.get(window, 0) for window in windows.tolist()], np.uint64)
        is_kept = np.repeat(windows >= newest[f"{label}.begin"][0], counts)
        is_kept &= stands_for(mine[f"{prefix}identity"], np.repeat(halvings, counts))
        lengths = run_lengths(np.repeat(windows, counts)[is_kept])
        columns += zip((f"{prefix}windows", f"{prefix}counts"), lengths, strict=True)
        if stream == "rows":
            mine |= {
                prefix + name: np.full(len(is_kept), missing)
                for name, missing in ADDED.items()
                if prefix + name not in mine
            }
        columns += [(name, column[is_kept]) for name, column in mine.items()]
    return columns
