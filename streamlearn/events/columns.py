"""Operations on the rows of columns: select, join, and make texts from a few distinct ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.events.event import Columns
from streamlearn.native import native

__all__ = ["ids_of", "join_rows", "rows_of", "take_rows", "text_columns", "texts_of"]

# A column name is a path, brackets for arrays, then `?` for validity or `$` for the offsets of texts.
_NAME = re.compile(r"([^\[\]$?]+)((?:\[\])*)([$?]?)")

Arrays = dict[str, npt.NDArray[Any]]


def rows_of(columns: Columns, begin: int, end: int) -> Arrays:
    """Return the columns of the rows [begin, end), as views where possible; names are as in `EventColumns`.

    Examples:
        >>> three = {"items[]": np.array([0, 2, 3, 5]), "items.id": np.array([7, 8, 9, 4, 6])}
        >>> {name: column.tolist() for name, column in rows_of(three, 1, 3).items()}
        {'items[]': [0, 1, 3], 'items.id': [9, 4, 6]}
    """
    kept: Arrays = {}
    bounds: dict[tuple[str, ...], tuple[int, int]] = {(): (begin, end)}
    for layout in _plan(tuple(columns)):
        name, column = layout.name, columns[layout.name]
        first, last = _bounds(columns, layout.inside, bounds)
        if layout.is_offsets:
            kept[name] = column[first : last + 1] - column[first]
        elif layout.texts:
            kept[name] = column[columns[layout.texts][first] : columns[layout.texts][last]]
        else:
            kept[name] = column[first:last]
    return kept


def take_rows(columns: Columns, rows: npt.NDArray[np.int64]) -> Arrays:
    """Return the columns of some rows, in the order given; a row may occur more than once.

    Examples:
        >>> three = {"items[]": np.array([0, 2, 3, 5]), "items.id": np.array([7, 8, 9, 4, 6])}
        >>> {name: column.tolist() for name, column in take_rows(three, np.array([2, 1])).items()}
        {'items[]': [0, 2, 3], 'items.id': [4, 6, 9]}
    """
    taken: Arrays = {}
    # The positions to take within each nest of arrays, computed once for all its columns.
    positions: dict[tuple[str, ...], npt.NDArray[np.int64]] = {(): rows}
    for layout in _plan(tuple(columns)):
        name, column = layout.name, columns[layout.name]
        at = _positions(columns, layout.inside, positions)
        if layout.is_offsets:
            taken[name] = _offsets(column[1:][at] - column[:-1][at], column.dtype)
        elif layout.texts:
            taken[name] = native.take_spans(column, columns[layout.texts].astype(np.int64, copy=False), at)[0]
        else:
            taken[name] = column[at]
    return taken


def join_rows(parts: Sequence[Columns]) -> Arrays:
    """Concatenate the rows of at least one part; all parts have the same column names."""
    joined: Arrays = {}
    for layout in _plan(tuple(parts[0])):
        arrays = [part[layout.name] for part in parts]
        if layout.is_offsets:
            counts = np.concatenate([np.diff(offsets) for offsets in arrays])
            joined[layout.name] = _offsets(counts, arrays[0].dtype)
        else:
            joined[layout.name] = np.concatenate(arrays)
    return joined


def texts_of(
    codes: npt.NDArray[np.integer[Any]], texts: Sequence[str]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Return the two columns of a text with few distinct values: its bytes, and where each row's text begins.

    `codes` holds the index of each row's text in `texts`.

    Examples:
        >>> data, offsets = texts_of(np.array([1, 0, 1]), ["click", "buy"])
        >>> data.tobytes(), offsets.tolist()
        (b'buyclickbuy', [0, 3, 8, 11])
    """
    raw = [text.encode() for text in texts]
    lengths = np.array([len(text) for text in raw], np.int64)
    padded = np.zeros((len(raw), max(1, int(lengths.max(initial=0)))), np.uint8)
    for row, text in enumerate(raw):
        padded[row, : len(text)] = np.frombuffer(text, np.uint8)
    row_lengths = lengths[codes]
    kept = np.arange(padded.shape[1]) < row_lengths[:, None]
    return padded[codes][kept], _offsets(row_lengths, np.int32)


def text_columns(name: str, texts: Sequence[str] | npt.NDArray[Any]) -> Arrays:
    """Return the two columns of any texts.

    Examples:
        >>> {name: column.tolist() for name, column in text_columns("kind", ["a", "bc"]).items()}
        {'kind': [97, 98, 99], 'kind$': [0, 1, 3]}
    """
    raw = [text.encode() for text in texts]
    lengths = np.fromiter(map(len, raw), np.int64, len(raw))
    return {name: np.frombuffer(b"".join(raw), np.uint8), f"{name}$": _offsets(lengths, np.int32)}


def ids_of(columns: Columns, name: str) -> list[Any]:
    """Return the values of a column of texts or integers."""
    offsets = columns.get(f"{name}$")
    if offsets is None:
        numbers: list[Any] = columns[name].tolist()
        return numbers
    raw, ends = columns[name].tobytes(), offsets.tolist()
    return [raw[begin:end].decode() for begin, end in pairwise(ends)]


class _Column(NamedTuple):
    """The layout of one column."""

    name: str
    inside: tuple[str, ...]  # the offsets columns of the arrays around it, outermost first
    texts: str  # the offsets column of its texts, or empty
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
        # It is inside as many of its own arrays as it has brackets; offsets are not inside the array they describe.
        own = len(brackets) // 2 - (not mark)
        inside = [f"{path}{'[]' * depth}[]" for depth in range(own)]
        return _Column(name, (*outer, *inside), "", not mark)
    texts = f"{path}$" if not mark and f"{path}$" in names else ""
    return _Column(name, (*outer, *_arrays(path, names)), texts, mark == "$")


def _arrays(path: str, names: frozenset[str]) -> list[str]:
    """Return the offsets columns of the arrays nested at a path."""
    nested: list[str] = []
    while (offsets := f"{path}{'[]' * len(nested)}[]") in names:
        nested.append(offsets)
    return nested


def _bounds(
    columns: Columns, inside: tuple[str, ...], bounds: dict[tuple[str, ...], tuple[int, int]]
) -> tuple[int, int]:
    if inside not in bounds:
        begin, end = _bounds(columns, inside[:-1], bounds)
        offsets = columns[inside[-1]]
        bounds[inside] = int(offsets[begin]), int(offsets[end])
    return bounds[inside]


def _positions(
    columns: Columns, inside: tuple[str, ...], positions: dict[tuple[str, ...], npt.NDArray[np.int64]]
) -> npt.NDArray[np.int64]:
    if inside not in positions:
        rows, offsets = _positions(columns, inside[:-1], positions), columns[inside[-1]]
        begins = offsets[:-1][rows]
        counts = offsets[1:][rows] - begins
        ends = np.cumsum(counts)
        positions[inside] = np.repeat(begins - (ends - counts), counts) + np.arange(int(counts.sum()))
    return positions[inside]


def _offsets(counts: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    offsets = np.zeros(len(counts) + 1, dtype)
    np.cumsum(counts, out=offsets[1:])
    return offsets
