"""One topic's side of the Producer: events become packs, packs become acknowledged records.

Callers only hand events over, under a short lock; one thread of its own owns the writer and waits for the topic.
"""

from __future__ import annotations

import atexit
import logging
import threading
import warnings
from collections import deque
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.clock import Clock
from streamlearn.errors import NotDelivered, Oversize, StreamlearnError, UsageError
from streamlearn.events.encoder import EncodedEvents
from streamlearn.events.event import Columns
from streamlearn.events.pack import PACK_PLAN, Pack
from streamlearn.events.rules import REQUEST_ID_BYTES_MAX
from streamlearn.native import native
from streamlearn.schemas import EVENT_PACK
from streamlearn.settings import EventSettings
from streamlearn.telemetry import counter, gauge
from streamlearn.topics import Topic, WriterSettings, partition_of

__all__ = ["Outlet"]

_LOG = logging.getLogger(__name__)
_SEND_BYTES = 1 << 20


class _Sealed(NamedTuple):
    """A record on its way."""

    partition: int
    value: bytes
    key: bytes | None
    time_ms: int
    events: int
    held_bytes: int


class Outlet:
    """Takes events of any thread and writes them to one topic.

    At `unsent_bytes_max` a caller blocks until the topic has taken some. What the topic refuses, or does not take
    within its writer's delivery timeout, is lost: logged, counted, and raised by the next `flush`.

    Args:
        topic: Where to.
        writer: How its writer writes.
        settings: The bounds of a record, and how long a pack may wait to be filled.
        clock: What a pack's age is measured by.

    Attributes:
        retention_ms: How long the topic keeps a record; -1 for ever.
    """

    def __init__(self, topic: Topic, writer: WriterSettings, settings: EventSettings, clock: Clock) -> None:
        self._url = topic.url
        self._partitions = topic.partitions
        self._writer = topic.writer(writer)
        self._settings = settings
        topic_settings = topic.settings()
        self.retention_ms = topic_settings.retention_ms
        # A topic counts the key too.
        self._bytes_max = min(settings.record_bytes_max, topic_settings.record_bytes_max) - REQUEST_ID_BYTES_MAX
        self._clock = clock
        self._changed = threading.Condition()
        self._packs: dict[int, Pack] = {}
        self._sealed: deque[_Sealed] = deque()
        self._held_bytes = 0
        # Records sealed and records settled, ever: whoever waits knows which ones it waits for.
        self._sealed_count = 0
        self._settled_count = 0
        self._wanted_count = 0
        self._sealed_bytes = 0
        self._sealed_since_s = 0.0
        self._closed = False
        self._failures: list[NotDelivered] = []
        name = self._url.rpartition("/")[2]
        self._events_total = counter("events", "produced", "Events given to the Producer.", ["topic"]).labels(name)
        self._lost_total = counter("events", "lost", "Events no topic acknowledged.", ["topic"]).labels(name)
        self._unsent_bytes = gauge("events", "unsent", "bytes", "Held until acknowledged.", ["topic"]).labels(name)
        self._thread = threading.Thread(target=self._run, name=f"producer-{name}", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)

    def give(self, event: bytes, items: int, when: tuple[str, int]) -> None:
        """Take one event.

        Args:
            event: The event with its framing.
            items: How many items it shows.
            when: Its request id and event time.

        Raises:
            Oversize: It is larger than a record may be.
            UsageError: The outlet is closed.
        """
        request_id, time_ms = when
        key = request_id.encode()
        self._require_fitting(len(event), f"the event of request {request_id!r}")
        partition = partition_of(key, self._partitions)
        with self._changed:
            self._take_room(len(event))
            pack = self._packs.get(partition)
            if pack is not None and not pack.fits(len(event), self._settings.record_events_max, self._bytes_max):
                self._seal(partition)
                pack = None
            if pack is None:
                pack = self._packs[partition] = Pack(key=key, begun_s=self._clock.monotonic_s())
                self._changed.notify_all()
            pack.add(event, items, time_ms)
            self._events_total.inc()

    def give_columns(self, encoded: EncodedEvents) -> None:
        """Take many events, after those given before; raises as `give` does, and has then taken none."""
        sizes = np.diff(encoded.offsets)
        if not len(sizes):
            return
        self._require_fitting(int(sizes.max()), f"event {int(sizes.argmax())} of the columns")
        partition_of_row = native.partitions_of(encoded.request_at, encoded.request_ids, self._partitions)
        order = np.argsort(partition_of_row, kind="stable")
        bounds = np.searchsorted(partition_of_row[order], np.arange(self._partitions + 1))
        spans = [order[begin:end] for begin, end in pairwise(bounds) if end > begin]
        records = [record for rows in spans for record in self._records(encoded, rows, partition_of_row[rows[0]])]
        with self._changed:
            self._require_open()
            self._seal_all()
            for record in records:
                self._take_room(record.held_bytes)
                self._put(record, self._clock.monotonic_s())
                self._events_total.inc(record.events)

    def give_everywhere(self, record: bytes, time_ms: int) -> None:
        """Write one record to every partition, after what was given before; raises as `give` does."""
        with self._changed:
            self._require_open()
            self._seal_all()
            for partition in range(self._partitions):
                self._take_room(len(record))
                self._put(_Sealed(partition, record, None, time_ms, 0, len(record)), self._clock.monotonic_s())

    def press(self) -> None:
        """Have everything given so far sent without waiting for fuller packs; `settle` waits for it."""
        with self._changed:
            self._want_all()

    def settle(self) -> list[NotDelivered]:
        """Wait until everything given is acknowledged or lost; what was lost since the last time."""
        with self._changed:
            self._want_all()
            wanted = self._sealed_count
            while self._settled_count < wanted:
                self._changed.wait()
            failures, self._failures = self._failures, []
            return failures

    def close(self) -> None:
        """Send what is left, then end the thread and let go of the writer; settle first to hear of failures."""
        with self._changed:
            self._closed = True
            self._want_all()
        atexit.unregister(self._at_exit)
        self._thread.join()
        self._writer.close()

    def _at_exit(self) -> None:
        """The process ends and nobody closed: send what is held after all, and say that this was luck."""
        with self._changed:
            held = bool(self._packs or self._settled_count < self._sealed_count)
        if held:
            message = f"events for {self._url} were never flushed; use the Producer in a with statement, or close it"
            warnings.warn(message, ResourceWarning, stacklevel=2)
            _LOG.warning("%s", message)
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            message = "the producer is closed"
            raise UsageError(message, help="what is given to it now would never be sent; make another one")

    def _require_fitting(self, event_bytes: int, what: str) -> None:
        if not Pack().fits(event_bytes, 1, self._bytes_max):
            message = f"{what} has {event_bytes} bytes"
            setting = f"events.record_bytes_max ({self._settings.record_bytes_max})"
            hint = f"a record has at most {self._bytes_max}, by {setting} and by what {self._url} takes"
            raise Oversize(message, help=hint)

    def _take_room(self, more_bytes: int) -> None:
        """Wait until so much may be held; one event is always let in."""
        self._require_open()
        while self._held_bytes and self._held_bytes + more_bytes > self._settings.unsent_bytes_max:
            self._seal_all()
            self._changed.notify_all()
            self._changed.wait()
            self._require_open()
        self._held_bytes += more_bytes
        self._unsent_bytes.set(self._held_bytes)

    def _records(self, encoded: EncodedEvents, rows: npt.NDArray[np.int64], partition: int) -> list[_Sealed]:
        """Events of one partition as the records they become."""
        data, at = native.take_spans(encoded.buffer, encoded.offsets, rows)
        cuts = self._cuts(at)
        times = np.maximum.reduceat(encoded.event_time_ms[rows], cuts[:-1]).tolist()
        if self._settings.record_events_max == 1:
            values, bounds = data, at.astype(np.int64)
        else:
            items = np.ascontiguousarray(encoded.items[rows])
            columns: Columns = {"events[]": cuts, "events": data, "events$": at, "items[]": cuts, "items": items}
            values, bounds = PACK_PLAN.encode(columns, len(cuts) - 1, EVENT_PACK.prefix)
        whole, ends, events = values.tobytes(), bounds.tolist(), np.diff(cuts).tolist()
        records = []
        for index, time_ms in enumerate(times):
            row = int(rows[cuts[index]])
            key = encoded.request_ids[encoded.request_at[row] : encoded.request_at[row + 1]].tobytes()
            value = whole[ends[index] : ends[index + 1]]
            records.append(_Sealed(int(partition), value, key, time_ms, events[index], len(value)))
        return records

    def _cuts(self, at: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Where each record's events begin, as many to a record as its bounds allow."""
        events, cuts = len(at) - 1, [0]
        # Each event costs its bytes and what a pack adds to it, so that a cut is one search.
        cost = at.astype(np.int64) + np.arange(events + 1) * Pack.EVENT_COST_BYTES
        room = self._bytes_max - Pack.COST_BYTES
        while cuts[-1] < events:
            fit = int(np.searchsorted(cost, cost[cuts[-1]] + room, side="right")) - 1
            cuts.append(max(cuts[-1] + 1, min(fit, cuts[-1] + self._settings.record_events_max)))
        return np.asarray(cuts, np.int32)

    def _seal(self, partition: int) -> None:
        pack = self._packs.pop(partition)
        held_bytes = sum(map(len, pack.events))
        record = pack.record()
        sealed = _Sealed(partition, record, pack.key, pack.time_ms, len(pack.events), held_bytes)
        self._put(sealed, pack.begun_s)

    def _put(self, record: _Sealed, begun_s: float) -> None:
        if not self._sealed:
            self._sealed_since_s = begun_s
            self._changed.notify_all()
        self._sealed_since_s = min(self._sealed_since_s, begun_s)
        self._sealed.append(record)
        self._sealed_count += 1
        self._sealed_bytes += len(record.value)
        if self._sealed_bytes >= _SEND_BYTES:
            self._changed.notify_all()

    def _want_all(self) -> None:
        """Have everything there is sent now."""
        self._seal_all()
        self._wanted_count = self._sealed_count
        self._changed.notify_all()

    def _seal_all(self) -> None:
        for partition in list(self._packs):
            self._seal(partition)

    def _run(self) -> None:
        while records := self._next():
            try:
                self._deliver(records)
            finally:
                with self._changed:
                    self._settled_count += len(records)
                    self._held_bytes -= sum(record.held_bytes for record in records)
                    self._unsent_bytes.set(self._held_bytes)
                    self._changed.notify_all()

    def _next(self) -> list[_Sealed]:
        """What to send next, once it is due; nothing when the outlet is closed and empty."""
        with self._changed:
            while (wait_s := self._due_in_s()) != 0:
                if self._closed and not self._sealed:
                    return []
                self._changed.wait(wait_s)
            records, size = [], 0
            while self._sealed and size < _SEND_BYTES:
                records.append(self._sealed.popleft())
                size += len(records[-1].value)
            self._sealed_bytes -= size
            return records

    def _due_in_s(self) -> float | None:
        """How long until records are to be sent: 0 now, None not before something changes."""
        linger_s, now_s = self._settings.linger_ms / 1000, self._clock.monotonic_s()
        for partition in [one for one, pack in self._packs.items() if now_s - pack.begun_s >= linger_s]:
            self._seal(partition)
        wanted = self._settled_count < self._wanted_count or self._sealed_bytes >= _SEND_BYTES
        if self._sealed and (wanted or now_s - self._sealed_since_s >= linger_s):
            return 0
        # Half of it, for the clock may be another than the one that waits.
        return max(linger_s / 2, 0.001) if self._sealed or self._packs else None

    def _deliver(self, records: list[_Sealed]) -> None:
        try:
            for record in records:
                self._writer.send(record.partition, record.value, record.key, record.time_ms)
            self._writer.flush()
        # Whatever it was, the events are named as lost and the thread goes on: later ones may fare better.
        except Exception as error:
            if not isinstance(error, NotDelivered):
                with suppress(StreamlearnError):
                    self._writer.flush()  # has told everything by this error; the next flush begins anew
            self._note_lost(records, error)

    def _note_lost(self, records: list[_Sealed], error: Exception) -> None:
        events = sum(record.events for record in records)
        reason = error.message if isinstance(error, StreamlearnError) else f"{type(error).__name__}: {error}"
        message = f"up to {events} events in {len(records)} records of {self._url} were not acknowledged: {reason}"
        help = error.help if isinstance(error, StreamlearnError) else "this is a defect: please report it"
        failure = NotDelivered(message, help=help)
        failure.__cause__ = error
        self._lost_total.inc(events)
        _LOG.error("%s", message)
        with self._changed:
            self._failures.append(failure)
