"""Sample cuts: how many bytes rows cost, and where messages end. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamlearn.samples import FeatureColumns

__all__ = ["cut_rows", "feature_bytes"]

Int64s = npt.NDArray[np.int64]

_MESSAGE_ROWS_MIN = 64
_NO_BREAKS = np.zeros(0, np.int64)


def feature_bytes(features: FeatureColumns, rows: int) -> Int64s:
    """Return the bytes that each row of one side's features has in a message."""
    fixed = sum(4 * numbers.shape[1] for numbers in features.dense.values())
    sizes = np.zeros(rows, np.int64)
    for slot in features.slots.values():
        if slot.offsets is None:
            fixed += 8
        else:
            fixed += 4
            sizes += np.diff(slot.offsets) * (8 if slot.weights is None else 12)
    sizes += fixed
    return sizes


def cut_rows(
    request_index: npt.NDArray[np.int32],
    row_bytes: Int64s,
    request_bytes: Int64s,
    limits: tuple[int, int],
    breaks: Int64s = _NO_BREAKS,
) -> tuple[list[tuple[int, int]], list[int]]:
    """Return where to cut rows into messages within `limits` (rows and bytes), and the rows too large for any message.

    A request costs its bytes in every message that has rows of it, once for each run of its rows: a message may be
    smaller than possible, and is never larger. A message also ends at the first of `breaks` after 64 rows. Each cut is
    a first row and an end, exclusive.

    Examples:
        >>> index, rows, requests = np.array([0, 0, 1, 1], np.int32), np.full(4, 10), np.array([5, 50])
        >>> cut_rows(index, rows, requests, (100, 40))
        ([(0, 2)], [2, 3])
        >>> cut_rows(index, rows, requests, (3, 1000))
        ([(0, 3), (3, 4)], [])
        >>> many = np.zeros(100, np.int64)
        >>> cut_rows(many, many, many, (1_000, 1_000), np.array([10, 70, 90]))
        ([(0, 70), (70, 100)], [])
    """
    rows_max, bytes_max = limits
    alone = request_bytes[request_index]
    changes = np.ones(len(request_index), bool)
    changes[1:] = request_index[1:] != request_index[:-1]
    ends = np.concatenate(([0], np.cumsum(row_bytes + np.where(changes, alone, 0))))
    too_large = row_bytes + alone > bytes_max
    cuts: list[tuple[int, int]] = []
    begin, rows = 0, len(request_index)
    # A row that is too large ends a message and is in none.
    stops, breaks = np.append(np.flatnonzero(too_large), rows), np.append(breaks, rows + _MESSAGE_ROWS_MIN)
    while begin < rows:
        if too_large[begin]:
            begin += 1
            continue
        first = 0 if changes[begin] else int(alone[begin])
        fit = int(np.searchsorted(ends, ends[begin] + bytes_max - first, side="right")) - 1
        stop = int(stops[np.searchsorted(stops, begin)])
        broken = int(breaks[np.searchsorted(breaks, begin + _MESSAGE_ROWS_MIN)])
        end = max(begin + 1, min(fit, begin + rows_max, stop, broken))
        cuts.append((begin, end))
        begin = end
    return cuts, np.flatnonzero(too_large).tolist()
