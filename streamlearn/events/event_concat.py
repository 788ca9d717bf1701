"""Events put together: those decoded under several schemas become one set of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamlearn.events.columns import join_rows
from streamlearn.events.event import Columns, EventColumns

__all__ = ["empty_columns", "join_events"]


def empty_columns(plan: Any) -> Columns:
    """The columns of no events at all.

    Args:
        plan: The native Avro plan.
    """
    nothing = np.zeros(0, np.int64)
    columns: Columns = plan.decode(np.zeros(0, np.uint8), nothing, nothing)[0]
    return columns


def join_events(parts: Sequence[EventColumns], empty: Columns) -> EventColumns:
    """One part after another.

    Args:
        parts: Events of one kind, of the same columns.
        empty: What there is when there are no parts.
    """
    filled = [part for part in parts if len(part)]
    if not filled:
        none = np.zeros(0, np.int32)
        return EventColumns(empty, none, none, none)
    if len(filled) == 1:
        return filled[0]
    return EventColumns(
        join_rows([part.columns for part in filled]),
        np.concatenate([part.record_index for part in filled]),
        np.concatenate([part.event_index for part in filled]),
        np.concatenate([part.item_base for part in filled]),
    )
