"""Events of one lot in the order of time, however they came: what a bounded join is fed with. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from streamlearn.ingest.join.columns import ActionColumns, ImpressionColumns
from streamlearn.native import native

__all__ = ["in_time_order", "joined_columns", "taken_columns"]

Int64s = npt.NDArray[np.int64]
Columns = TypeVar("Columns", ImpressionColumns, ActionColumns)

# Values that lie end to end, and the offsets that cut them.
_SPANS = {"request_ids": "request_at", "items": "items_at", "payload": "payload_at"}


def joined_columns(parts: Sequence[Columns]) -> Columns:
    """The events of one part after those of another; there is at least one part."""
    kind = type(parts[0])
    names = list(vars(parts[0]))
    found: dict[str, Any] = {}
    for name in names:
        arrays = [getattr(part, name) for part in parts]
        if name in _SPANS.values():
            counts = np.concatenate([np.diff(at) for at in arrays])
            found[name] = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        else:
            found[name] = np.concatenate(arrays)
    return kind(**found)


def taken_columns(columns: Columns, rows: Int64s) -> Columns:
    """Some events, in the order given."""
    found: dict[str, Any] = {}
    for name, column in vars(columns).items():
        if name in _SPANS.values():
            continue
        if (at := _SPANS.get(name)) is None or not hasattr(columns, at):
            found[name] = column[rows]
        else:
            width = column.itemsize
            taken, offsets = native.take_spans(column.view(np.uint8), getattr(columns, at) * width, rows)
            found[name], found[at] = taken.view(column.dtype), offsets.astype(np.int64) // width
    return type(columns)(**found)


def in_time_order(
    impressions: ImpressionColumns, actions: ActionColumns, step_events: int
) -> Iterator[tuple[ImpressionColumns, ActionColumns, int]]:
    """All events by time, a step after another, each with a time that no later step has events before.

    Args:
        impressions: In any order.
        actions: In any order.
        step_events: About how many events a step has; those of one time are of one step.

    Yields:
        Impressions, actions, and the event time of the next step; of the last, one behind all.
    """
    shown, done = (np.argsort(one.event_time_ms, kind="stable") for one in (impressions, actions))
    shown_ms, done_ms = impressions.event_time_ms[shown], actions.event_time_ms[done]
    times = np.sort(np.concatenate((shown_ms, done_ms)))
    if not len(times):
        return
    bounds = [*np.unique(times[step_events::step_events]).tolist(), int(times[-1]) + 1]
    for begin_ms, end_ms in zip([int(times[0]), *bounds], bounds, strict=False):
        cuts = [np.searchsorted(one, (begin_ms, end_ms)) for one in (shown_ms, done_ms)]
        yield (
            taken_columns(impressions, shown[slice(*cuts[0])]),
            taken_columns(actions, done[slice(*cuts[1])]),
            end_ms,
        )
