"""Columns put together: events decoded under two schemas become one set of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamlearn.events.event import Columns, EventColumns

__all__ = ["concat_columns", "empty_columns"]


def empty_columns(plan: Any) -> Columns:
    """The columns of no events at all.

    Args:
        plan: The native Avro plan.
    """
    nothing = np.zeros(0, np.int64)
    columns: Columns = plan.decode(np.zeros(0, np.uint8), nothing, nothing)[0]
    return columns


def concat_columns(parts: Sequence[EventColumns], empty: Columns) -> EventColumns:
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
    columns = {name: _concat(name, [part.columns[name] for part in filled]) for name in empty}
    return EventColumns(
        columns,
        np.concatenate([part.record_index for part in filled]),
        np.concatenate([part.event_index for part in filled]),
        np.concatenate([part.item_base for part in filled]),
    )


def _concat(name: str, arrays: Sequence[Any]) -> Any:
    if not name.endswith(("[]", "$")):
        return np.concatenate(arrays)
    shifted, base = [arrays[0]], arrays[0][-1]
    for offsets in arrays[1:]:
        shifted.append(offsets[1:] + base)
        base = shifted[-1][-1]
    return np.concatenate(shifted)
