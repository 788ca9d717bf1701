"""The log: the rows of the recorded week as arrays, and their grouping into impressions.

It knows the files, but no events.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from pyarrow import csv

__all__ = ["Log", "Order", "order_of", "read_log"]

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
    """The rows in the order of the file; each array has a value per row.

    Attributes:
        time_ms: Time of the impression.
        user_id: The user.
        video_id: The video.
        author_id: The author of the video.
        tab: The page of the app.
        tags: Tags of the video, as texts like "62,4".
        duration_ms: Duration of the video.
        is_click: Whether it was played for 7 s, or to the end.
        long_view: Whether it was played for 18 s, or to the end.
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
    """The grouping of rows into impressions.

    Attributes:
        rows: int64. The rows of each impression's items, with impressions in the order of the file.
        items_at: int64[impressions+1]. Offsets of impressions in `rows`.
        copy: int64[impressions]. 0 for a request's first impression, 1 and more for duplicates.
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
    """Group rows into impressions.

    A request has the rows of one user at one millisecond. A row that repeats a video of the request means that the
    whole impression was logged again, as a second, third, ... copy.
    """
    row = np.arange(len(log))
    request = _group(log.user_id, log.time_ms)
    copy = _occurrence(_group(request, log.video_id))
    items_of = np.flatnonzero(copy == 0)
    items_of = items_of[np.argsort(request[items_of], kind="stable")]
    items_at = np.append(np.flatnonzero(np.diff(request[items_of], prepend=-1)), len(items_of))
    # Each impression begins with the first row of its copy. Impressions are in the order of the file, so of time.
    impression = _group(request, copy)
    first = np.full(int(impression.max(initial=-1)) + 1, len(log))
    np.minimum.at(first, impression, row)
    first.sort()
    begins, counts = items_at[request[first]], np.diff(items_at)[request[first]]
    ends = np.cumsum(counts)
    within = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
    rows = items_of[np.repeat(begins, counts) + within]
    return Order(rows, np.concatenate(([0], ends)), copy[first])


def _group(left: Int64s, right: Int64s) -> Int64s:
    """Return the number of each row's pair among the distinct pairs."""
    low = int(right.min(initial=0))
    pair = left.astype(np.int64) * (int(right.max(initial=0)) - low + 1) + (right - low)
    numbers: Int64s = np.unique(pair, return_inverse=True)[1].reshape(-1)
    return numbers


def _occurrence(group: Int64s) -> Int64s:
    """Return the number of earlier rows in the same group, by row."""
    order = np.argsort(group, kind="stable")
    begins = np.flatnonzero(np.diff(group[order], prepend=-1))
    rank = np.arange(len(group)) - np.repeat(begins, np.diff(np.append(begins, len(group))))
    occurrence = np.empty_like(rank)
    occurrence[order] = rank
    return occurrence
