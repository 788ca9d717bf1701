"""The Producer: events in, acknowledged records of the application's topics out.

Events of one partition are packed into records, for an event alone costs a reader several times as much. It
does not retry what a topic refuses for good, and it never drops an event in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from streamlearn.apps import AppFolder, load_app
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import BadRecord, ConfigError, NotDelivered
from streamlearn.events.encoder import EncodedEvents, EventEncoder
from streamlearn.events.event import Columns
from streamlearn.events.outlet import Outlet
from streamlearn.topics import Topic

__all__ = ["Producer"]

ACTIONS_NOTED_MAX = 100
_LOG = logging.getLogger(__name__)


class Producer:
    """Writes an application's events.

    Guaranteed: when `flush` returns, every event given before is acknowledged, and when it raises it says what is
    lost; events of one request keep their order; an impression and its actions go to the same partition number. A
    caller waits for a topic only in `flush`, or when 64 MiB are unsent. Not guaranteed: that an
    event is written once when an acknowledgement was lost; the join drops duplicates.
    The classic mistake is to forget `flush` or `close` before the process ends: use it as a context manager. Whoever
    never flushes hears of lost events from the log and the metric `streamlearn_events_lost_total` alone.

    Safe to use from many threads.

    Args:
        folder: The application, or the folder it is in.
        impressions: Its impressions topic; opened by the application's settings when None.
        actions: Its actions topic; opened by the application's settings when None.
        clock: Where the wall time comes from.

    Raises:
        ConfigError: The two topics differ in their number of partitions.
        TopicMissing: A topic was never created; `streamlearn topics APP --create N` creates them.
    """

    def __init__(
        self,
        folder: AppFolder | Path | str,
        *,
        impressions: Topic | None = None,
        actions: Topic | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        folder = folder if isinstance(folder, AppFolder) else load_app(folder)
        settings = folder.settings.events
        self._actions_known = set(folder.app.actions)
        self._app_says = (folder.app.name, ", ".join(folder.app.actions))
        self._clock = clock
        live = folder.settings.topics.time == "wall"
        self._ahead_ms_max = settings.ahead_s_max * 1000 if live else None
        self._encoder = EventEncoder(folder.app, settings)
        writer = replace(folder.writer_settings, buffer_bytes_max=settings.unsent_bytes_max)
        with ExitStack() as opened:
            if impressions is None:
                impressions = opened.enter_context(folder.open_topic("impressions"))
            if actions is None:
                actions = opened.enter_context(folder.open_topic("actions"))
            _require_same_partitions(impressions, actions)
            self._impressions = Outlet(impressions, writer, settings, clock)
            opened.callback(self._impressions.close)
            self._actions = Outlet(actions, writer, settings, clock)
            opened.callback(self._actions.close)
            self._opened = opened.pop_all()

    def impression(
        self,
        request_id: str,
        event_time_ms: int,
        *,
        user: Mapping[str, Any],
        items: Sequence[Mapping[str, Any]],
        **envelope: Any,
    ) -> None:
        """One request and the items shown.

        Args:
            request_id: One per request.
            event_time_ms: When it was shown.
            user: The user's features by name.
            items: Each item's features by name, and perhaps `served_score_LABEL` and `segment_NAME`.
            **envelope: shown_wall_ms (now), served_version (None), segments by name (empty).

        Raises:
            BadRecord: A value is missing or wrong; nothing was taken.
            Oversize: The event is larger than a record may be; nothing was taken.
            UsageError: The producer is closed.
        """
        given = {
            "request_id": request_id,
            "event_time_ms": event_time_ms,
            "shown_wall_ms": envelope.pop("shown_wall_ms", None) or self._clock.wall_ms(),
            "served_version": envelope.pop("served_version", None),
            "segments": envelope.pop("segments", None),
            "user": user,
            "items": items,
        }
        if envelope:
            message = f"impression() got an unexpected keyword argument {min(envelope)!r}"
            raise TypeError(message)
        event = self._encoder.impression(given)
        self._require_near(self._impressions, event_time_ms, f"impression {request_id!r}")
        self._impressions.give(event, len(items), (request_id, event_time_ms))

    def action(
        self, request_id: str, event_time_ms: int, item_id: int | str, action: str, *, weight: float = 1.0
    ) -> None:
        """Something done to one item of a request; raises as `impression` does.

        Args:
            request_id: The impression's.
            event_time_ms: When it was done.
            item_id: The item's id, as the impression showed it.
            action: What was done.
            weight: How much the positive it makes weighs in training.
        """
        given = {
            "request_id": request_id,
            "event_time_ms": event_time_ms,
            "item_id": item_id,
            "action": action,
            "weight": weight,
        }
        record = self._encoder.action(given)
        self._require_near(self._actions, event_time_ms, f"action on {request_id!r}")
        self._note_action(action)
        self._actions.give(record, 0, (request_id, event_time_ms))

    def impressions(self, columns: Columns, rows: int) -> None:
        """Many impressions, as `EventEncoder.impressions` takes them; raises as `impression` does."""
        encoded = self._encoder.impressions(columns, rows)
        self._require_all_near(self._impressions, encoded, "impression")
        self._impressions.give_columns(encoded)

    def actions(self, columns: Columns, rows: int) -> None:
        """Many actions, as `EventEncoder.actions` takes them; raises as `impression` does."""
        encoded = self._encoder.actions(columns, rows)
        self._require_all_near(self._actions, encoded, "action")
        self._actions.give_columns(encoded)

    def heartbeat(self, event_time_ms: int) -> None:
        """Say on every partition of both topics that no earlier event will follow."""
        self._control("HEARTBEAT", event_time_ms)

    def end(self, event_time_ms: int) -> None:
        """Say on every partition of both topics that nothing will follow."""
        self._control("END", event_time_ms)

    def flush(self) -> None:
        """Wait until everything given is acknowledged.

        Raises:
            NotDelivered: Some of what was given since the last flush was not; the message says what, and why.
        """
        outlets = (self._impressions, self._actions)
        # Wait for both before anything is taken: a flush that Ctrl-C ends has told nothing and forgotten nothing.
        for outlet, wanted in [(outlet, outlet.press()) for outlet in outlets]:
            outlet.settle(wanted)
        failures = [failure for outlet in outlets for failure in outlet.failures()]
        if len(failures) == 1:
            raise failures[0]
        if failures:
            message = "; ".join(failure.message for failure in failures)
            raise NotDelivered(message, help=failures[0].help) from failures[0]

    def close(self) -> None:
        """Flush, then let go of everything, whatever the flush says."""
        with self._opened:
            self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _control(self, kind: str, event_time_ms: int) -> None:
        if event_time_ms < 0:
            message = f"event_time_ms {event_time_ms} is before 1970"
            raise BadRecord(message, help="milliseconds since 1970 UTC")
        record = self._encoder.control(kind, event_time_ms, self._clock.wall_ms(), "producer")
        for outlet in (self._impressions, self._actions):
            outlet.give_everywhere(record, event_time_ms)

    def _require_all_near(self, outlet: Outlet, encoded: EncodedEvents, noun: str) -> None:
        if len(encoded.event_time_ms):
            for row in (int(encoded.event_time_ms.argmax()), int(encoded.event_time_ms.argmin())):
                self._require_near(outlet, int(encoded.event_time_ms[row]), f"{noun} {row} of the columns")

    def _require_near(self, outlet: Outlet, event_time_ms: int, what: str) -> None:
        """Refuse an event whose time would have a broker refuse its record, or delete it at once."""
        if self._ahead_ms_max is None:
            return
        ahead_ms = event_time_ms - self._clock.wall_ms()
        if ahead_ms > self._ahead_ms_max:
            message = f"{what}: event_time_ms {event_time_ms} is {ahead_ms / 1000:.0f} s ahead of this machine"
            raise BadRecord(message, help="correct the clock that set this time")
        if outlet.retention_ms != -1 and -ahead_ms > outlet.retention_ms:
            message = (
                f"{what}: event_time_ms {event_time_ms} is older than the {outlet.retention_ms} ms its topic keeps"
            )
            hint = (
                "the topic would delete it at once; check that the time is in milliseconds, or use a topic "
                "without retention by age"
            )
            raise BadRecord(message, help=hint)

    def _note_action(self, action: str) -> None:
        """Say once of each action that makes no label: most often it is a typing error."""
        if action not in self._actions_known and len(self._actions_known) < ACTIONS_NOTED_MAX:
            self._actions_known.add(action)
            _LOG.warning(
                "action %r gives no label of app %r; the actions of its labels are %s", action, *self._app_says
            )


def _require_same_partitions(impressions: Topic, actions: Topic) -> None:
    if impressions.partitions != actions.partitions:
        message = f"{impressions.url} has {impressions.partitions} partitions, {actions.url} has {actions.partitions}"
        raise ConfigError(
            message, help="create both with the same number: a request and its actions must be in the same partition"
        )
