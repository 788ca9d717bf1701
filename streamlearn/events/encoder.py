"""The encoder of events: whole columns at once, or one checked row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.errors import BadRecord, UsageError
from streamlearn.events.event import Columns
from streamlearn.events.row import action_row, impression_row, item_row
from streamlearn.events.rules import Broken, broken_actions, broken_impressions
from streamlearn.schemas import CONTROL, Schema, action_schema, impression_schema
from streamlearn.schemas.events import item_schema
from streamlearn.settings import EventSettings

__all__ = ["EncodedEvents", "EventEncoder"]


class EncodedEvents(NamedTuple):
    """n framed events, end to end."""

    buffer: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]  # [n+1], where each event begins
    items: npt.NDArray[np.int32]  # [n], the number of items that each shows; 0 for actions
    request_ids: npt.NDArray[np.uint8]
    request_at: npt.NDArray[np.int32]  # [n+1], where each request id begins
    event_time_ms: npt.NDArray[np.int64]  # [n]


class EventEncoder:
    """Writes the events of one application."""

    def __init__(self, app: App, settings: EventSettings) -> None:
        self._app = app
        self._settings = settings
        self._impression = impression_schema(app)
        self._action = action_schema(app)
        self._item = None if app.retrieval is None else item_schema(app)

    def impression(self, given: Mapping[str, Any]) -> bytes:
        """Encode an impression from plain values; raises as `row.impression_row` does."""
        return self._impression.write(impression_row(self._app, given, self._settings.items_max))

    def action(self, given: Mapping[str, Any]) -> bytes:
        """Encode an action from plain values; raises as `row.action_row` does."""
        return self._action.write(action_row(self._app, given))

    def item(self, given: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """Encode an item of the library from plain values, and return its key and it; raises as `row.item_row` does."""
        if self._item is None:
            message = f"app {self._app.name!r} has no library of items"
            raise UsageError(message, help="declare retrieval=Retrieval(...) in its app.py")
        row = item_row(self._app, given, self._settings.items_max)
        return str(row["item_id"]).encode(), self._item.write(row)

    def control(self, kind: str, event_time_ms: int, wall_ms: int, source: str) -> bytes:
        """Encode a heartbeat or an end mark."""
        return CONTROL.write({"kind": kind, "event_time_ms": event_time_ms, "wall_ms": wall_ms, "source": source})

    def impressions(self, columns: Columns, rows: int) -> EncodedEvents:
        """Encode impressions from columns named as in `EventColumns`; columns with a default may be absent.

        Raises:
            BadRecord: A row breaks a rule; the message names row and rule.
        """
        broken = broken_impressions(self._app, columns, self._settings.items_max)
        encoded = _encode(self._impression, columns, rows, broken)
        return encoded._replace(items=np.diff(columns["items[]"]).astype(np.int32))

    def actions(self, columns: Columns, rows: int) -> EncodedEvents:
        """Encode actions from columns; see `impressions`."""
        return _encode(self._action, columns, rows, broken_actions(columns))


def _encode(schema: Schema, columns: Columns, rows: int, broken: Broken) -> EncodedEvents:
    try:
        buffer, offsets = schema.plan.encode(columns, rows, schema.prefix)
    except (ValueError, TypeError) as error:
        message = f"the columns are not valid events: {error}"
        command = f"`streamlearn schema APP {schema.name.lower()} --columns`"
        raise BadRecord(message, help=f"name the columns as {command} lists them") from error
    for broken_rows, rule in broken:
        if broken_rows.any():
            message = f"{schema.name.lower()} {int(np.argmax(broken_rows))} of the columns: {rule}"
            raise BadRecord(message, help=f"{int(broken_rows.sum())} of {rows} rows break this rule")
    ids, at, times = columns["request_id"], columns["request_id$"], columns["event_time_ms"]
    return EncodedEvents(buffer, offsets, np.zeros(rows, np.int32), ids, at, times)
