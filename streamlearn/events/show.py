"""A record of an event topic as plain values, for people who want to see it; slow and complete."""

from __future__ import annotations

from typing import Any

from streamlearn.apps import App
from streamlearn.errors import BadRecord, DataError
from streamlearn.schemas import CONTROL, EVENT_PACK, Schema, action_schema, impression_schema, read_framing
from streamlearn.schemas.schema import PREFIX_BYTES

__all__ = ["show_record"]


def show_record(app: App, value: bytes | None) -> list[dict[str, Any]]:
    """The events of one record, each with its kind; what cannot be read says so in its place.

    Args:
        app: The application whose topic it is.
        value: The record's value.
    """
    schemas = {one.prefix: one for one in (impression_schema(app), action_schema(app), CONTROL)}
    try:
        if value is not None and value[:PREFIX_BYTES] == EVENT_PACK.prefix:
            return [_show(schemas, event) for event in EVENT_PACK.read(value[PREFIX_BYTES:])["events"]]
        return [_show(schemas, value or b"")]
    except DataError as error:
        return [{"event": "unreadable", "detail": error.message}]


def _show(schemas: dict[bytes, Schema], event: bytes) -> dict[str, Any]:
    try:
        schema = schemas.get(event[:PREFIX_BYTES])
        if schema is None:
            framing = read_framing(event)
            message = f"no schema of this application wrote it: {framing}"
            raise BadRecord(message)
        return {"event": schema.name.lower(), **schema.read(event[PREFIX_BYTES:])}
    except DataError as error:
        return {"event": "unreadable", "detail": error.message}
