"""Events as columns, and the events that could not be read.

Column names are those of the native Avro plan: `items.video_id` holds the values of all items one after
another, `items[]` where each impression's items begin, `request_id$` where each text begins,
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
    """n events of one kind."""

    columns: Columns
    record_index: Int32s  # [n], the index of each event's record in the decoded list
    event_index: Int32s  # [n], the event's index in its record
    item_base: Int32s  # [n], the index, within its record, of its first item

    def __len__(self) -> int:
        return len(self.record_index)

    def texts(self, name: str) -> list[str]:
        """Return a copy of a text column as a list, for people and tests."""
        return [text_at(self.columns, name, row) for row in range(len(self.columns[f"{name}$"]) - 1)]


@dataclass(frozen=True)
class Failure:
    """A record, or one event of it, that could not be read."""

    record_index: int  # the index of the record in the decoded list
    event_index: int  # the event's index in its record; -1 for the record as a whole
    reason: str  # one of DEAD_LETTER_REASONS
    detail: str
    bytes: bytes = field(repr=False)  # the record, or the one event with its framing


@dataclass(frozen=True)
class Events:
    """The decoded events of some records, and the failures."""

    impressions: EventColumns
    actions: EventColumns
    controls: EventColumns
    failures: tuple[Failure, ...]


def text_at(columns: Columns, name: str, row: int) -> str:
    """Return one text of a text column."""
    begin, end = columns[f"{name}$"][row : row + 2]
    return columns[name][begin:end].tobytes().decode()
