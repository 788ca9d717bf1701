"""The content of a record of an event topic, as plain values: events as ingest will read them, and what it will refuse.

It decodes whole records as ingest does; it does not know topics, offsets or how a line is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

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
    """Reads the records of one application's event topics for people.

    Args:
        decoder: The decoder that ingest would use.
        schemas: Of an impression, an action and a control, whose fields are shown in their order.
    """

    def __init__(self, decoder: EventDecoder, schemas: tuple[Schema, Schema, Schema]) -> None:
        self._decoder = decoder
        self._schemas = schemas

    @classmethod
    def of(cls, folder: AppFolder) -> Self:
        """For an application as its settings have it.

        Raises:
            ConfigError: A schema file its settings name is at fault.
        """
        schemas = (impression_schema(folder.app), action_schema(folder.app), CONTROL)
        return cls(EventDecoder.of(folder), schemas)

    def show(self, values: Sequence[bytes | None], controls: bool = False) -> list[tuple[int, dict[str, Any]]]:
        """The events of some records in their order, each with the index of its record.

        Args:
            values: The records' values.
            controls: Whether heartbeats and end marks are shown.
        """
        found = sorted(self._show(self._decoder.decode(values), controls), key=lambda one: one[:2])
        return [(record, {"index": index, **event}) for record, index, event in found]

    def _show(self, events: Events, controls: bool) -> Iterator[tuple[int, int, dict[str, Any]]]:
        kinds = (events.impressions, events.actions, *((events.controls,) if controls else ()))
        for schema, of_kind in zip(self._schemas, kinds, strict=False):
            yield from _events(schema, of_kind)
        for failure in events.failures:
            shown = {"event": "unreadable", "reason": failure.reason, "detail": failure.detail}
            yield failure.record_index, failure.event_index, shown


def _events(schema: Schema, events: EventColumns) -> Iterator[tuple[int, int, dict[str, Any]]]:
    for row in range(len(events)):
        fields = _value(schema.json, "", events.columns, row)
        yield int(events.record_index[row]), int(events.event_index[row]), {"event": schema.name.lower(), **fields}


def _value(kind: Any, path: str, columns: Columns, row: int) -> Any:
    """One value of a field, read back from the columns that its schema's type became."""
    if isinstance(kind, list):  # a union with null; see `EventColumns` for how columns are named
        present = bool(columns[f"{path}?"][row])
        return _value(kind[1], path, columns, row) if present else None
    if isinstance(kind, dict) and kind["type"] == "record":
        inside = f"{path}." if path else ""
        return {one["name"]: _value(one["type"], inside + one["name"], columns, row) for one in kind["fields"]}
    if isinstance(kind, dict) and kind["type"] == "array":
        begin, end = columns[f"{path}[]"][row : row + 2].tolist()
        return [_value(kind["items"], path, columns, one) for one in range(begin, end)]
    if isinstance(kind, dict) and kind["type"] == "enum":
        return kind["symbols"][columns[path][row]]
    if kind == "string":
        return text_at(columns, path, row)
    # Through its shortest text: 9.99, and not the float64 nearest to the float32 nearest to it.
    return float(str(columns[path][row])) if kind == "float" else int(columns[path][row])
