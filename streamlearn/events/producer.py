"""The Producer: it takes events and writes acknowledged records to the application's topics.

It packs events of one partition into records, since single events cost a reader several times as much. It
does not retry what a topic refuses for good, and it never drops an event silently.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from msgspec import structs

from streamlearn.apps import AppFolder, load_app
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import BadRecord, ConfigError, NotDelivered, UsageError
from streamlearn.events.encoder import EncodedEvents, EventEncoder
from streamlearn.events.event import Columns
from streamlearn.events.outlet import Outlet
from streamlearn.topics import Topic

__all__ = ["Producer"]

ACTIONS_NOTED_MAX = 100
_LOG = logging.getLogger(__name__)


class Producer:
    """Writes the events of an application, given by its folder. Safe to use from many threads.

    Guaranteed: when `flush` returns, every event passed before is acknowledged, and when it raises it states the
    loss; events of one request keep their order; an impression and its actions go to the same partition number. A
    caller waits for a topic only in `flush`, or when 64 MiB are unsent. Not guaranteed: that an
    event is written once if an acknowledgement was lost; the join drops duplicates.
    The classic mistake is to forget `flush` or `close` before the process ends: use it as a context manager. Without
    `flush`, only the log and the metric `streamlearn_events_lost_total` report lost events.

    The application's settings name the topics, unless `impressions` or `actions` is given. The one of items is opened
    for the first item.

    Raises:
        ConfigError: The two topics differ in their number of partitions.
        TopicMissing: A topic does not exist; `streamlearn topics APP --create N` creates them.
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
        self._app_facts = (folder.app.name, ", ".join(folder.app.actions))
        self._clock = clock
        live = folder.settings.topics.time == "wall"
        self._ahead_ms_max = settings.ahead_s_max * 1000 if live else None
        self._encoder = EventEncoder(folder.app, settings)
        writer = replace(folder.writer_settings, buffer_bytes_max=settings.unsent_bytes_max)
        with ExitStack() as stack:
            impressions = impressions or stack.enter_context(folder.open_topic("impressions"))
            actions = actions or stack.enter_context(folder.open_topic("actions"))
            _require_same_partitions(impressions, actions)
            self._impressions = Outlet(impressions, writer, settings, clock)
            stack.callback(self._impressions.close)
            self._actions = Outlet(actions, writer, settings, clock)
            stack.callback(self._actions.close)
            self._resources = stack.pop_all()
        self._folder, self._writer_settings, self._is_closed = folder, writer, False
        self._items: Outlet | None = None
        self._items_lock = threading.Lock()

    def impression(
        self,
        request_id: str,
        event_time_ms: int,
        *,
        user: Mapping[str, Any],
        items: Sequence[Mapping[str, Any]],
        shown_wall_ms: int | None = None,
        served_version: int | None = None,
        segments: Mapping[str, str] | None = None,
        computed: Mapping[str, Any] | None = None,
    ) -> None:
        """Write one request and the items that it showed.

        `user` and each of `items` map features by name; an item may also have `served_score_LABEL` and
        `segment_NAME`. `shown_wall_ms` defaults to now, `served_version` to none, and the user's `segments` to empty.
        `computed` says how computed columns came about, as `FilledRequest.of_impression` returns it.

        Raises:
            BadRecord: A value is missing or invalid; nothing was taken.
            Oversize: The event is larger than a record may be; nothing was taken.
            UsageError: The producer is closed, or this process is a fork of the one that made it.
        """
        given = {
            "request_id": request_id,
            "event_time_ms": event_time_ms,
            "shown_wall_ms": shown_wall_ms or self._clock.wall_ms(),
            "served_version": served_version,
            "segments": segments,
            "computed": computed,
            "user": user,
            "items": items,
        }
        event = self._encoder.impression(given)
        self._require_near(self._impressions, event_time_ms, f"impression {request_id!r}")
        self._impressions.give(event, len(items), (request_id, event_time_ms))

    def action(
        self, request_id: str, event_time_ms: int, item_id: int | str, action: str, *,
        weight: float = 1.0, value: float | None = None,
    ) -> None:  # fmt: skip
        """Write an action on one item of an impression; raises as `impression` does.

        `weight` is the weight in training of the positive that this action makes; a number always weighs 1. `value` is
        the number for a label that is a number, such as the stars of a rating.
        """
        given = {
            "request_id": request_id,
            "event_time_ms": event_time_ms,
            "item_id": item_id,
            "action": action,
            "weight": weight,
            "value": value,
        }
        event = self._encoder.action(given)
        self._require_near(self._actions, event_time_ms, f"action on {request_id!r}")
        self._note_action(action)
        self._actions.give(event, 0, (request_id, event_time_ms))

    def item(self, item_id: int | str, event_time_ms: int, features: Mapping[str, Any]) -> None:
        """Write an item of the library, as it is from `event_time_ms` on; `features` maps its other features by name.

        Of an item that is also shown, the newer features count. Columns that are computed are left out.

        Raises:
            BadRecord: A value is missing or invalid; nothing was taken.
            Oversize: The item is larger than a record may be; nothing was taken.
            UsageError: The application declares no retrieval, or the producer is closed.
            TopicMissing: The topic of items does not exist.
        """
        _require_features(item_id, features)
        self._give_item(item_id, event_time_ms, features)

    def remove_item(self, item_id: int | str, event_time_ms: int) -> None:
        """Remove an item from the library; raises as `item` does.

        Only `item`, with a later time, brings it back: being shown does not.
        """
        self._give_item(item_id, event_time_ms, None)

    def impressions(self, columns: Columns, rows: int) -> None:
        """Write impressions, as `EventEncoder.impressions` takes them; raises as `impression` does."""
        encoded = self._encoder.impressions(columns, rows)
        self._require_all_near(self._impressions, encoded, "impression")
        self._impressions.give_columns(encoded)

    def actions(self, columns: Columns, rows: int) -> None:
        """Write actions, as `EventEncoder.actions` takes them; raises as `impression` does."""
        encoded = self._encoder.actions(columns, rows)
        self._require_all_near(self._actions, encoded, "action")
        self._actions.give_columns(encoded)

    def heartbeat(self, event_time_ms: int) -> None:
        """State on every partition of both topics that no earlier event will follow."""
        self._control("HEARTBEAT", event_time_ms)

    def end(self, event_time_ms: int) -> None:
        """State on every partition of both topics that no event will follow."""
        self._control("END", event_time_ms)

    def flush(self) -> None:
        """Wait until all events passed before are acknowledged.

        Raises:
            NotDelivered: Some of those since the last flush were not; the message states which, and why.
            UsageError: This process is a fork of the one that made the producer.
        """
        outlets = [outlet for outlet in (self._impressions, self._actions, self._items) if outlet is not None]
        # Wait for both before taking any failure: a flush that Ctrl-C ends must not lose failures.
        for outlet, wanted in [(outlet, outlet.press()) for outlet in outlets]:
            outlet.settle(wanted)
        failures = [failure for outlet in outlets for failure in outlet.failures()]
        if len(failures) == 1:
            raise failures[0]
        if failures:
            message = "; ".join(failure.message for failure in failures)
            raise NotDelivered(message, help=failures[0].help) from failures[0]

    def close(self) -> None:
        """Flush, then close everything, even if the flush fails."""
        with self._items_lock:
            self._is_closed = True
        with self._resources:
            self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _give_item(self, item_id: int | str, event_time_ms: int, features: Mapping[str, Any] | None) -> None:
        given = {"item_id": item_id, "event_time_ms": event_time_ms, "features": features}
        key, record = self._encoder.item(given)
        outlet = self._items or self._open_items()
        self._require_near(outlet, event_time_ms, f"item {item_id!r}")
        outlet.give(record, 0, (key.decode(), event_time_ms))

    def _open_items(self) -> Outlet:
        # In a compacted topic each record has the key of its item, so none is packed with others.
        settings = structs.replace(self._folder.settings.events, record_events_max=1)
        with self._items_lock:
            if self._is_closed:
                message = "the producer is closed"
                raise UsageError(message, help="it would never send this item; make another Producer")
            if self._items is None:
                topic = self._resources.enter_context(self._folder.open_topic("items"))
                self._items = Outlet(topic, self._writer_settings, settings, self._clock, noun="item")
                self._resources.callback(self._items.close)
            return self._items

    def _control(self, kind: str, event_time_ms: int) -> None:
        if event_time_ms < 0:
            message = f"event_time_ms {event_time_ms} is before 1970"
            raise BadRecord(message, help="milliseconds since 1970 UTC")
        record = self._encoder.control(kind, event_time_ms, self._clock.wall_ms(), "producer")
        for outlet in (self._impressions, self._actions):
            outlet.give_everywhere(record, event_time_ms)

    def _require_all_near(self, outlet: Outlet, encoded: EncodedEvents, noun: str) -> None:
        times = encoded.event_time_ms
        if len(times):
            for row in (int(times.argmax()), int(times.argmin())):
                self._require_near(outlet, int(times[row]), f"{noun} {row} of the columns")

    def _require_near(self, outlet: Outlet, event_time_ms: int, event: str) -> None:
        """Refuse an event with a time for which a broker would refuse its record, or delete it at once."""
        if self._ahead_ms_max is None:
            return
        ahead_ms, retention_ms = event_time_ms - self._clock.wall_ms(), outlet.retention_ms
        if ahead_ms > self._ahead_ms_max:
            message = f"{event}: event_time_ms {event_time_ms} is {ahead_ms / 1000:.0f} s ahead of this machine"
            raise BadRecord(message, help="correct the clock that set this time")
        if retention_ms != -1 and -ahead_ms > retention_ms:
            message = f"{event}: event_time_ms {event_time_ms} is older than the {retention_ms} ms its topic keeps"
            hint = (
                "the topic would delete it at once; check that the time is in milliseconds, or use a topic "
                "without retention by age"
            )
            raise BadRecord(message, help=hint)

    def _note_action(self, action: str) -> None:
        """Warn once about each action that makes no label: it is usually a typing error."""
        if action not in self._actions_known and len(self._actions_known) < ACTIONS_NOTED_MAX:
            self._actions_known.add(action)
            message = "action %r gives no label of app %r; the actions of its labels are %s"
            _LOG.warning(message, action, *self._app_facts)


def _require_features(item_id: int | str, features: Any) -> None:
    if features is None:
        message = f"item {item_id!r:.80} has no features"
        raise BadRecord(message, help="give a mapping by name; `remove_item` removes an item")


def _require_same_partitions(impressions: Topic, actions: Topic) -> None:
    if impressions.partitions != actions.partitions:
        message = f"{impressions.url} has {impressions.partitions} partitions, {actions.url} has {actions.partitions}"
        help = "create both with the same number: a request and its actions must be in the same partition"
        raise ConfigError(message, help=help)
