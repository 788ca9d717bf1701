"""Columns of events on their way out of a history: some of their rows, and texts from a few distinct ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.events.event import Columns, Int32s
from streamlearn.native import native

__all__ = ["join_rows", "rows_of", "take_rows", "texts_of"]

# What a column's name says beyond its path: brackets for arrays, then validity or the offsets of texts.
_NAME = re.compile(r"([^\[\]$?]+)((?:\[\])*)([$?]?)")


def rows_of(columns: Columns, begin: int, end: int) -> dict[str, npt.NDArray[Any]]:
    """The columns of the rows from `begin` up to `end`; views wherever possible.

    Args:
        columns: Named as `EventColumns` names them.
        begin: The first row to keep.
        end: The row after the last to keep.

    Examples:
        >>> three = {"items[]": np.array([0, 2, 3, 5]), "items.id": np.array([7, 8, 9, 4, 6])}
        >>> {name: column.tolist() for name, column in rows_of(three, 1, 3).items()}
        {'items[]': [0, 1, 3], 'items.id': [9, 4, 6]}
    """
    kept: dict[str, npt.NDArray[Any]] = {}
    for name, column in columns.items():
        parents, own, is_offsets = _parse(name)
        first, last = (_place(columns, parents, own, row) for row in (begin, end))
        if is_offsets:
            kept[name] = column[first : last + 1] - column[first]
        else:
            kept[name] = column[first:last]
    return kept


def take_rows(columns: Columns, rows: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
    """The columns of some rows, in the order given; a row may be taken more than once.

    Args:
        columns: Named as `EventColumns` names them.
        rows: Which rows.

    Examples:
        >>> three = {"items[]": np.array([0, 2, 3, 5]), "items.id": np.array([7, 8, 9, 4, 6])}
        >>> {name: column.tolist() for name, column in take_rows(three, np.array([2, 1])).items()}
        {'items[]': [0, 2, 3], 'items.id': [4, 6, 9]}
    """
    taken: dict[str, npt.NDArray[Any]] = {}
    # The places taken within each nest of arrays, worked out once for all the columns in it.
    places: dict[tuple[str, ...], npt.NDArray[np.int64]] = {(): rows}
    for name, column in columns.items():
        parents, own, is_offsets = _parse(name)
        at = _places(columns, _offsets_names(columns, parents, own), places)
        if is_offsets:
            taken[name] = _offsets(np.diff(column)[at], column.dtype)
        elif own and (texts := f"{own}{'[]' * _depth(columns, own)}$") in columns:
            taken[name] = native.take_spans(column, columns[texts].astype(np.int64), at)[0]
        else:
            taken[name] = column[at]
    return taken


def join_rows(parts: Sequence[Columns]) -> dict[str, npt.NDArray[Any]]:
    """The rows of one part after those of another.

    Args:
        parts: Columns of the same names.
    """
    joined: dict[str, npt.NDArray[Any]] = {}
    for name in parts[0]:
        arrays = [part[name] for part in parts]
        if _parse(name)[2]:
            counts = np.concatenate([np.diff(offsets) for offsets in arrays])
            joined[name] = _offsets(counts, arrays[0].dtype)
        else:
            joined[name] = np.concatenate(arrays)
    return joined


def texts_of(
    codes: npt.NDArray[np.integer[Any]], texts: Sequence[str]
) -> tuple[npt.NDArray[np.uint8], Int32s]:
    """The two columns of a text that takes few distinct values: its bytes, and where each row's begin.

    Args:
        codes: Which of the texts each row has.
        texts: The distinct texts.
    """
    raw = [text.encode() for text in texts]
    length = np.array([len(one) for one in raw], np.int64)
    padded = np.zeros((len(raw), max(1, int(length.max(initial=0)))), np.uint8)
    for row, one in enumerate(raw):
        padded[row, : len(one)] = np.frombuffer(one, np.uint8)
    of_row = length[codes]
    offsets = np.zeros(len(codes) + 1, np.int32)
    np.cumsum(of_row, out=offsets[1:])
    kept = np.arange(padded.shape[1]) < of_row[:, None]
    return padded[codes][kept], offsets


@cache
def _parse(name: str) -> tuple[tuple[str, ...], str, bool]:
    """The paths a column is inside of, its own marked path without the last mark, and if it holds offsets."""
    matched = _NAME.fullmatch(name)
    assert matched is not None, name
    path, brackets, mark = matched.groups()
    parts = path.split(".")
    parents = tuple(".".join(parts[:depth]) for depth in range(1, len(parts)))
    if mark:
        return (*parents, *_arrays(path, brackets)), "", mark == "$"
    if brackets:
        return (*parents, *_arrays(path, brackets[2:])), "", True
    return parents, path, False


def _arrays(path: str, brackets: str) -> tuple[str, ...]:
    return tuple(f"{path}{brackets[:depth]}[]" for depth in range(0, len(brackets), 2))


def _place(columns: Columns, parents: Sequence[str], own: str, row: int) -> int:
    """Where a row's values begin in a column."""
    place = row
    for path in parents:
        place = int(columns[path][place]) if path.endswith("[]") else _inside(columns, path, place)
    if own:
        place = _inside(columns, own, place)
        marks = "[]" * _depth(columns, own)
        at = columns.get(f"{own}{marks}$")
        place = place if at is None else int(at[place])
    return place


def _inside(columns: Columns, path: str, place: int) -> int:
    for depth in range(_depth(columns, path)):
        place = int(columns[f"{path}{'[]' * depth}[]"][place])
    return place


def _depth(columns: Columns, path: str) -> int:
    """How many arrays are nested at a path."""
    depth = 0
    while f"{path}{'[]' * depth}[]" in columns:
        depth += 1
    return depth


def _offsets_names(columns: Columns, parents: Sequence[str], own: str) -> tuple[str, ...]:
    """The offsets a column is inside of, outermost first."""
    names: list[str] = []
    for path in (*parents, own) if own else parents:
        if path.endswith("[]"):
            names.append(path)
        else:
            names.extend(f"{path}{'[]' * depth}[]" for depth in range(_depth(columns, path)))
    return tuple(names)


def _places(
    columns: Columns, names: tuple[str, ...], places: dict[tuple[str, ...], npt.NDArray[np.int64]]
) -> npt.NDArray[np.int64]:
    if names not in places:
        rows, offsets = _places(columns, names[:-1], places), columns[names[-1]]
        begins, counts = offsets[:-1][rows], np.diff(offsets)[rows]
        ends = np.cumsum(counts)
        places[names] = np.repeat(begins - (ends - counts), counts) + np.arange(int(counts.sum()))
    return places[names]


def _offsets(counts: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    offsets = np.zeros(len(counts) + 1, dtype)
    np.cumsum(counts, out=offsets[1:])
    return offsets
