"""Rows of columns: some of them, several sets of them joined, and texts from a few distinct ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.events.event import Columns
from streamlearn.native import native

__all__ = ["join_rows", "rows_of", "take_rows", "texts_of"]

# What a column's name says beyond its path: brackets for arrays, then validity or the offsets of texts.
_NAME = re.compile(r"([^\[\]$?]+)((?:\[\])*)([$?]?)")

Arrays = dict[str, npt.NDArray[Any]]


def rows_of(columns: Columns, begin: int, end: int) -> Arrays:
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
    kept: Arrays = {}
    bounds: dict[tuple[str, ...], tuple[int, int]] = {(): (begin, end)}
    for one in _plan(tuple(columns)):
        column, (first, last) = columns[one.name], _bounds(columns, one.inside, bounds)
        if one.is_offsets:
            kept[one.name] = column[first : last + 1] - column[first]
        elif one.texts:
            kept[one.name] = column[columns[one.texts][first] : columns[one.texts][last]]
        else:
            kept[one.name] = column[first:last]
    return kept


def take_rows(columns: Columns, rows: npt.NDArray[np.int64]) -> Arrays:
    """The columns of some rows, in the order given; a row may be taken more than once.

    Args:
        columns: Named as `EventColumns` names them.
        rows: Which rows.

    Examples:
        >>> three = {"items[]": np.array([0, 2, 3, 5]), "items.id": np.array([7, 8, 9, 4, 6])}
        >>> {name: column.tolist() for name, column in take_rows(three, np.array([2, 1])).items()}
        {'items[]': [0, 2, 3], 'items.id': [4, 6, 9]}
    """
    taken: Arrays = {}
    # The places taken within each nest of arrays, worked out once for all the columns in it.
    places: dict[tuple[str, ...], npt.NDArray[np.int64]] = {(): rows}
    for one in _plan(tuple(columns)):
        column, at = columns[one.name], _places(columns, one.inside, places)
        if one.is_offsets:
            taken[one.name] = _offsets(np.diff(column)[at], column.dtype)
        elif one.texts:
            taken[one.name] = native.take_spans(column, columns[one.texts].astype(np.int64), at)[0]
        else:
            taken[one.name] = column[at]
    return taken


def join_rows(parts: Sequence[Columns]) -> Arrays:
    """The rows of one part after those of another.

    Args:
        parts: Columns of the same names; at least one part.
    """
    joined: Arrays = {}
    for one in _plan(tuple(parts[0])):
        arrays = [part[one.name] for part in parts]
        if one.is_offsets:
            counts = np.concatenate([np.diff(offsets) for offsets in arrays])
            joined[one.name] = _offsets(counts, arrays[0].dtype)
        else:
            joined[one.name] = np.concatenate(arrays)
    return joined


def texts_of(
    codes: npt.NDArray[np.integer[Any]], texts: Sequence[str]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """The two columns of a text that takes few distinct values: its bytes, and where each row's begin.

    Args:
        codes: Which of the texts each row has.
        texts: The distinct texts.

    Examples:
        >>> data, offsets = texts_of(np.array([1, 0, 1]), ["click", "buy"])
        >>> data.tobytes(), offsets.tolist()
        (b'buyclickbuy', [0, 3, 8, 11])
    """
    raw = [text.encode() for text in texts]
    length = np.array([len(one) for one in raw], np.int64)
    padded = np.zeros((len(raw), max(1, int(length.max(initial=0)))), np.uint8)
    for row, one in enumerate(raw):
        padded[row, : len(one)] = np.frombuffer(one, np.uint8)
    of_row = length[codes]
    kept = np.arange(padded.shape[1]) < of_row[:, None]
    return padded[codes][kept], _offsets(of_row, np.int32)


class _Column(NamedTuple):
    """How one column lies: inside which offsets, outermost first; and by which its own bytes are parted."""

    name: str
    inside: tuple[str, ...]
    texts: str
    is_offsets: bool


@lru_cache(maxsize=256)
def _plan(names: tuple[str, ...]) -> tuple[_Column, ...]:
    return tuple(_column(name, frozenset(names)) for name in names)


def _column(name: str, names: frozenset[str]) -> _Column:
    matched = _NAME.fullmatch(name)
    assert matched is not None, name
    path, brackets, mark = matched.groups()
    parts = path.split(".")
    outer: list[str] = []
    for depth in range(1, len(parts)):
        outer += _arrays(".".join(parts[:depth]), names)
    if brackets or mark == "?":
        # Inside as many arrays of its own as it has brackets, of which the last may be what it says itself.
        own = len(brackets) // 2 - (not mark)
        inside = [f"{path}{'[]' * depth}[]" for depth in range(own)]
        return _Column(name, (*outer, *inside), "", not mark)
    texts = f"{path}$" if not mark and f"{path}$" in names else ""
    return _Column(name, (*outer, *_arrays(path, names)), texts, mark == "$")


def _arrays(path: str, names: frozenset[str]) -> list[str]:
    """The offsets of the arrays nested at a path."""
    found: list[str] = []
    while (offsets := f"{path}{'[]' * len(found)}[]") in names:
        found.append(offsets)
    return found


def _bounds(
    columns: Columns, inside: tuple[str, ...], bounds: dict[tuple[str, ...], tuple[int, int]]
) -> tuple[int, int]:
    if inside not in bounds:
        begin, end = _bounds(columns, inside[:-1], bounds)
        offsets = columns[inside[-1]]
        bounds[inside] = int(offsets[begin]), int(offsets[end])
    return bounds[inside]


def _places(
    columns: Columns, inside: tuple[str, ...], places: dict[tuple[str, ...], npt.NDArray[np.int64]]
) -> npt.NDArray[np.int64]:
    if inside not in places:
        rows, offsets = _places(columns, inside[:-1], places), columns[inside[-1]]
        begins, counts = offsets[:-1][rows], np.diff(offsets)[rows]
        ends = np.cumsum(counts)
        places[inside] = np.repeat(begins - (ends - counts), counts) + np.arange(int(counts.sum()))
    return places[inside]


def _offsets(counts: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    offsets = np.zeros(len(counts) + 1, dtype)
    np.cumsum(counts, out=offsets[1:])
    return offsets
