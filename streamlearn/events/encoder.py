"""Events to bytes: whole columns at once, or one checked row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.errors import BadRecord
from streamlearn.events.event import Columns
from streamlearn.events.row import action_row, impression_row
from streamlearn.events.rules import Broken, broken_actions, broken_impressions
from streamlearn.native import native
from streamlearn.schemas import CONTROL, Schema, action_schema, impression_schema
from streamlearn.settings import EventSettings

__all__ = ["EncodedEvents", "EventEncoder"]


class EncodedEvents(NamedTuple):
    """Framed events, one after another.

    Attributes:
        buffer: uint8. Their bytes.
        offsets: int64[n+1]. Where each begins.
        items: int32[n]. How many items each shows.
        request_ids: uint8. The bytes of their request ids.
        request_at: int32[n+1]. Where each request id begins.
        event_time_ms: int64[n]. When each happened.
    """

    buffer: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    items: npt.NDArray[np.int32]
    request_ids: npt.NDArray[np.uint8]
    request_at: npt.NDArray[np.int32]
    event_time_ms: npt.NDArray[np.int64]


class EventEncoder:
    """Writes the events of one application.

    Args:
        app: The application.
        settings: The bounds an event must keep.
    """

    def __init__(self, app: App, settings: EventSettings) -> None:
        self._app = app
        self._settings = settings
        self._impression = impression_schema(app)
        self._action = action_schema(app)
        self._impressions = _plan(self._impression)
        self._actions = _plan(self._action)

    def impression(self, given: Mapping[str, Any]) -> bytes:
        """One impression from plain values; see `row.impression_row`.

        Raises:
            BadRecord: A value is missing or wrong; the message names it.
        """
        return self._impression.write(impression_row(self._app, given, self._settings.items_max))

    def action(self, given: Mapping[str, Any]) -> bytes:
        """One action from plain values; see `row.action_row`.

        Raises:
            BadRecord: A value is missing or wrong; the message names it.
        """
        return self._action.write(action_row(self._app, given))

    def control(self, kind: str, event_time_ms: int, wall_ms: int, source: str) -> bytes:
        """A heartbeat or an end mark."""
        return CONTROL.write({"kind": kind, "event_time_ms": event_time_ms, "wall_ms": wall_ms, "source": source})

    def impressions(self, columns: Columns, rows: int) -> EncodedEvents:
        """Many impressions from columns.

        Args:
            columns: Named as `EventColumns` names them; columns with a default may be left out.
            rows: How many impressions.

        Raises:
            BadRecord: A row breaks a rule; the message names row and rule.
        """
        buffer, offsets = _encode(self._impressions, columns, rows, self._impression.prefix)
        _refuse("impression", broken_impressions(self._app, columns, self._settings.items_max))
        return _encoded(columns, buffer, offsets, np.diff(columns["items[]"]).astype(np.int32))

    def actions(self, columns: Columns, rows: int) -> EncodedEvents:
        """Many actions from columns; see `impressions`."""
        buffer, offsets = _encode(self._actions, columns, rows, self._action.prefix)
        _refuse("action", broken_actions(columns))
        return _encoded(columns, buffer, offsets, np.zeros(rows, np.int32))


def _plan(schema: Schema) -> Any:
    return native.AvroPlan(schema.text, schema.text)


def _encode(plan: Any, columns: Columns, rows: int, prefix: bytes) -> Any:
    try:
        return plan.encode(columns, rows, prefix)
    except (ValueError, TypeError) as error:
        message = f"the columns are not valid events: {error}"
        raise BadRecord(message, help="name the columns as `streamlearn schema APP --columns` lists them") from error


def _refuse(noun: str, broken: Broken) -> None:
    for rows, rule in broken:
        if rows.any():
            message = f"{noun} {int(np.argmax(rows))} of the columns: {rule}"
            raise BadRecord(message, help=f"{int(rows.sum())} of {len(rows)} rows break this rule")


def _encoded(
    columns: Columns,
    buffer: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    items: npt.NDArray[np.int32],
) -> EncodedEvents:
    ids, at, times = columns["request_id"], columns["request_id$"], columns["event_time_ms"]
    return EncodedEvents(buffer, offsets, items, ids, at, times)
