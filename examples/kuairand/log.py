"""The log: the rows of the recorded week as arrays, and which rows make one impression.

It knows the files and nothing of events.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from pyarrow import csv

__all__ = ["Log", "Order", "order_of", "pauses_of", "read_log"]

DATA = Path(__file__).resolve().parent / "data"
COLUMNS = (
    "time_ms",
    "user_id",
    "video_id",
    "author_id",
    "tab",
    "tag",
    "duration_ms",
    "is_click",
    "long_view",
)

Int64s: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Log:
    """The rows of the file, in its order; each array has one value a row.

    Attributes:
        time_ms: When the video was shown.
        user_id: To whom.
        video_id: Which video.
        author_id: Whose video.
        tab: On which page of the app.
        tags: Its tags, as texts like "62,4".
        duration_ms: How long it is.
        is_click: Whether it was played for 7 s, or to its end.
        long_view: Whether it was played for 18 s, or to its end.
    """

    time_ms: Int64s
    user_id: Int64s
    video_id: Int64s
    author_id: Int64s
    tab: Int64s
    tags: npt.NDArray[np.object_]
    duration_ms: Int64s
    is_click: npt.NDArray[np.bool_]
    long_view: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.time_ms)


@dataclass(frozen=True)
class Order:
    """Which rows make which impression.

    Attributes:
        rows: int64. The rows of each impression's items side by side, impressions in the file's order.
        items_at: int64[impressions+1]. Where each impression's rows begin.
        copy: int64[impressions]. 0 for a request's first impression, 1 and more for its duplicates.
    """

    rows: Int64s
    items_at: Int64s
    copy: Int64s


def read_log(file: Path = DATA / "demo_week1.csv.gz") -> Log:
    """Read the recorded week."""
    table = csv.read_csv(file, convert_options=csv.ConvertOptions(include_columns=list(COLUMNS)))
    values: dict[str, npt.NDArray[Any]] = {name: table[name].to_numpy() for name in COLUMNS}
    flags = {name: values.pop(name).astype(bool) for name in ("is_click", "long_view")}
    return Log(tags=values.pop("tag"), **flags, **values)


def order_of(log: Log) -> Order:
    """Sort rows into impressions.

    A request is what one user was shown at one millisecond. A row that names a video the request has already
    shown says that its impression was logged again, whole: a second, third, ... copy of it.
    """
    row = np.arange(len(log))
    request = _group(log.user_id, log.time_ms)
    copy = _occurrence(_group(request, log.video_id))
    items_of = np.flatnonzero(copy == 0)
    items_of = items_of[np.argsort(request[items_of], kind="stable")]
    items_at = np.append(np.flatnonzero(np.diff(request[items_of], prepend=-1)), len(items_of))
    # One row begins each impression: the first of its copy. Their order is that of the file, and so of time.
    impression = _group(request, copy)
    first = np.full(int(impression.max(initial=-1)) + 1, len(log))
    np.minimum.at(first, impression, row)
    first.sort()
    begins, counts = items_at[request[first]], np.diff(items_at)[request[first]]
    ends = np.cumsum(counts)
    within = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
    rows = items_of[np.repeat(begins, counts) + within]
    return Order(rows, np.concatenate(([0], ends)), copy[first])


def pauses_of(log: Log) -> Int64s:
    """For how many milliseconds each row's user had been shown nothing; -1 where nothing was shown before."""
    order = np.lexsort((log.time_ms, log.user_id))
    user, time_ms = log.user_id[order], log.time_ms[order]
    # Rows of one request share what came before it.
    begins = np.flatnonzero((np.diff(user, prepend=-1) != 0) | (np.diff(time_ms, prepend=-1) != 0))
    pauses = np.diff(time_ms[begins], prepend=0)
    pauses[np.diff(user[begins], prepend=-1) != 0] = -1
    found = np.empty_like(pauses, shape=len(log))
    found[order] = np.repeat(pauses, np.diff(np.append(begins, len(log))))
    return found


def _group(left: Int64s, right: Int64s) -> Int64s:
    """The number of each row's pair among the distinct pairs."""
    low = int(right.min(initial=0))
    pair = left.astype(np.int64) * (int(right.max(initial=0)) - low + 1) + (right - low)
    numbers: Int64s = np.unique(pair, return_inverse=True)[1].reshape(-1)
    return numbers


def _occurrence(group: Int64s) -> Int64s:
    """How many earlier rows are of the same group."""
    order = np.argsort(group, kind="stable")
    begins = np.flatnonzero(np.diff(group[order], prepend=-1))
    rank = np.arange(len(group)) - np.repeat(begins, np.diff(np.append(begins, len(group))))
    occurrence = np.empty_like(rank)
    occurrence[order] = rank
    return occurrence
