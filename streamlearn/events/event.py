"""Events as columns, and what could not become one.

Column names are those of the native Avro plan: `items.video_id` holds the values of all items one after
another, `items[]` says where each impression's items begin, `request_id$` where each text begins,
`served_version?` which values are present.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Columns", "EventColumns", "Events", "Failure", "Int32s", "text_at"]

Columns: TypeAlias = Mapping[str, npt.NDArray[Any]]
Int32s: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True)
class EventColumns:
    """Many events of one kind.

    Attributes:
        columns: The fields, as columns.
        record_index: int32[n]. Which of the records handed in each event came from.
        event_index: int32[n]. Which event of its record.
        item_base: int32[n]. The index, within its record, of its first item.
    """

    columns: Columns
    record_index: Int32s
    event_index: Int32s
    item_base: Int32s

    def __len__(self) -> int:
        return len(self.record_index)

    def texts(self, name: str) -> list[str]:
        """A text column as a list, for people and tests; it copies."""
        return [text_at(self.columns, name, row) for row in range(len(self.columns[f"{name}$"]) - 1)]


@dataclass(frozen=True)
class Failure:
    """A record, or one event of it, that could not be read.

    Attributes:
        record_index: Which of the records handed in.
        event_index: Which event of it; -1 for the record as a whole.
        reason: One of the dead letter's reasons.
        detail: What exactly was found.
        bytes: The record, or the one event with its framing.
    """

    record_index: int
    event_index: int
    reason: str
    detail: str
    bytes: bytes = field(repr=False)


@dataclass(frozen=True)
class Events:
    """All that some records held."""

    impressions: EventColumns
    actions: EventColumns
    controls: EventColumns
    failures: tuple[Failure, ...]


def text_at(columns: Columns, name: str, row: int) -> str:
    """One text of a text column."""
    begin, end = columns[f"{name}$"][row : row + 2]
    return columns[name][begin:end].tobytes().decode()
