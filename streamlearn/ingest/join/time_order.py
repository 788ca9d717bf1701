"""Time order: the events of one lot sorted by time, for a bounded join. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from streamlearn.ingest.join.columns import ActionColumns, ImpressionColumns, JoinedRequests, Letters
from streamlearn.native import native

__all__ = ["in_time_order", "joined_columns", "taken_columns"]

Int64s = npt.NDArray[np.int64]
Columns = TypeVar("Columns", ImpressionColumns, ActionColumns)
AnyColumns = TypeVar("AnyColumns", ImpressionColumns, ActionColumns, JoinedRequests, Letters)

# Concatenated values, and the offsets that cut them.
_SPANS = {"request_ids": "request_at", "items": "items_at", "payload": "payload_at"}


def joined_columns(parts: Sequence[Columns]) -> Columns:
    """Return the events of several parts, one after another; there is at least one part."""
    joined: dict[str, Any] = {}
    for name in vars(parts[0]):
        arrays = [getattr(part, name) for part in parts]
        if name in _SPANS.values():
            counts = np.concatenate([np.diff(at) for at in arrays])
            joined[name] = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        else:
            joined[name] = np.concatenate(arrays)
    return type(parts[0])(**joined)


def taken_columns(columns: AnyColumns, rows: Int64s) -> AnyColumns:
    """Return some rows of columns, in the given order."""
    taken: dict[str, Any] = {}
    for name, column in vars(columns).items():
        if name in _SPANS.values():
            continue
        if (at := _SPANS.get(name)) is None or not hasattr(columns, at):
            taken[name] = column[rows]
        else:
            width = column.itemsize
            data, offsets = native.take_spans(column.view(np.uint8), getattr(columns, at) * width, rows)
            taken[name], taken[at] = data.view(column.dtype), offsets.astype(np.int64) // width
    return type(columns)(**taken)


def in_time_order(
    impressions: ImpressionColumns, actions: ActionColumns, step_events: int
) -> Iterator[tuple[ImpressionColumns, ActionColumns, int]]:
    """Yield all events by time in steps: impressions, actions, and a time that no later event precedes.

    A step has about `step_events` events; events of one time are in one step.
    """
    shown, done = (np.argsort(kind.event_time_ms, kind="stable") for kind in (impressions, actions))
    shown_ms, done_ms = impressions.event_time_ms[shown], actions.event_time_ms[done]
    times = np.sort(np.concatenate((shown_ms, done_ms)))
    if not len(times):
        return
    bounds = [*np.unique(times[step_events::step_events]).tolist(), int(times[-1]) + 1]
    for begin_ms, end_ms in zip([int(times[0]), *bounds], bounds, strict=False):
        cuts = [np.searchsorted(times_ms, (begin_ms, end_ms)) for times_ms in (shown_ms, done_ms)]
        shown_part, done_part = shown[slice(*cuts[0])], done[slice(*cuts[1])]
        yield taken_columns(impressions, shown_part), taken_columns(actions, done_part), end_ms
