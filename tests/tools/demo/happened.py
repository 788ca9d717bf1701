"""A history of a few requests that tests can see through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.events import texts_of
from streamlearn.replay import HistoryBlock

__all__ = ["ITEMS", "STEP_MS", "Happened", "request"]

STEP_MS, ITEMS = 1_000, 2

Int64s = npt.NDArray[np.int64]


def request(row: int) -> str:
    """The id of a request."""
    return f"q{row}"


class Happened:
    """Each second a request shows items 10 and 11; half a second later those of even ones click the first.

    Args:
        requests: How many.
    """

    def __init__(self, requests: int) -> None:
        self._requests = requests

    events_count = None
    begin_ms = 0

    def blocks(self, span_ms: int) -> Iterator[HistoryBlock]:
        """See `History`."""
        for begin_ms in range(0, self._requests * STEP_MS, span_ms):
            rows = np.arange(begin_ms // STEP_MS, min((begin_ms + span_ms) // STEP_MS, self._requests))
            clicked = rows[rows % 2 == 0]
            until_ms = begin_ms + span_ms
            yield HistoryBlock(self._shown(rows), len(rows), _clicks(clicked), len(clicked), until_ms, until_ms)

    @staticmethod
    def _shown(rows: Int64s) -> dict[str, npt.NDArray[Any]]:
        ids, at = texts_of(np.arange(len(rows)), [request(row) for row in rows.tolist()])
        return {
            "request_id": ids,
            "request_id$": at,
            "event_time_ms": rows * STEP_MS,
            "items[]": np.arange(len(rows) + 1, dtype=np.int32) * ITEMS,
            "items.video_id": np.tile(np.array([10, 11]), len(rows)),
        }


def _clicks(rows: Int64s) -> dict[str, npt.NDArray[Any]]:
    if not len(rows):
        return {}
    ids, at = texts_of(np.arange(len(rows)), [request(row) for row in rows.tolist()])
    kinds, kinds_at = texts_of(np.zeros(len(rows), np.int64), ["click"])
    return {
        "request_id": ids,
        "request_id$": at,
        "event_time_ms": rows * STEP_MS + STEP_MS // 2,
        "item_id": np.full(len(rows), 10),
        "action": kinds,
        "action$": kinds_at,
    }
