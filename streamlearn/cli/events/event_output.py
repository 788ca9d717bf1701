"""The content of records of event topics as plain values: the events that ingest reads, and those that it refuses.

It decodes records as ingest does. It does not know topics, offsets or the output format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from streamlearn.events import EventDecoder
from streamlearn.events.event import text_at
from streamlearn.schemas import CONTROL, action_schema, impression_schema

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.events import EventColumns, Events
    from streamlearn.events.event import Columns
    from streamlearn.schemas import Schema

__all__ = ["ShownEvents"]


class ShownEvents:
    """Decodes the records of one application's event topics for people; ConfigError if a schema file is invalid."""

    def __init__(self, folder: AppFolder) -> None:
        self._decoder = EventDecoder.of(folder)
        self._schemas = (impression_schema(folder.app), action_schema(folder.app), CONTROL)

    def show(self, values: Sequence[bytes | None], controls: bool = False) -> list[tuple[int, dict[str, Any]]]:
        """Return the events of some records in order, each with the index of its record.

        `controls` includes heartbeats and end marks.
        """
        events = sorted(self._show(self._decoder.decode(values), controls), key=lambda event: event[:2])
        return [(record, {"index": index, **fields}) for record, index, fields in events]

    def _show(self, events: Events, controls: bool) -> Iterator[tuple[int, int, dict[str, Any]]]:
        kinds = (events.impressions, events.actions, *((events.controls,) if controls else ()))
        for schema, of_kind in zip(self._schemas, kinds, strict=False):
            yield from _events(schema, of_kind)
        for failure in events.failures:
            fields = {"event": "unreadable", "reason": failure.reason, "detail": failure.detail}
            yield failure.record_index, failure.event_index, fields


def _events(schema: Schema, events: EventColumns) -> Iterator[tuple[int, int, dict[str, Any]]]:
    for row in range(len(events)):
        fields = _value(schema.json, "", events.columns, row)
        yield int(events.record_index[row]), int(events.event_index[row]), {"event": schema.name.lower(), **fields}


def _value(kind: Any, path: str, columns: Columns, row: int) -> Any:
    """Read one value of a field from the columns of its schema's type."""
    if isinstance(kind, list):  # a union with null; see `EventColumns` for how columns are named
        present = bool(columns[f"{path}?"][row])
        return _value(kind[1], path, columns, row) if present else None
    if isinstance(kind, dict) and kind["type"] == "record":
        inside = f"{path}." if path else ""
        return {field["name"]: _value(field["type"], inside + field["name"], columns, row) for field in kind["fields"]}
    if isinstance(kind, dict) and kind["type"] == "array":
        begin, end = columns[f"{path}[]"][row : row + 2].tolist()
        return [_value(kind["items"], path, columns, item) for item in range(begin, end)]
    if isinstance(kind, dict) and kind["type"] == "enum":
        return kind["symbols"][columns[path][row]]
    if kind == "string":
        return text_at(columns, path, row)
    # Through the shortest text of the float32: 9.99 instead of 9.989999771118164.
    return float(str(columns[path][row])) if kind == "float" else int(columns[path][row])
