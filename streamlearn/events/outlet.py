"""The outlet to one topic of the Producer: it turns events into packs, and packs into acknowledged records.

Callers only append events, under a short lock. The outlet's thread owns the writer and waits for the topic.
"""

from __future__ import annotations

import atexit
import logging
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from streamlearn.clock import Clock
from streamlearn.errors import NotDelivered, Oversize, StreamlearnError, UsageError
from streamlearn.events.encoder import EncodedEvents
from streamlearn.events.pack import Pack
from streamlearn.events.record_packer import pack_columns
from streamlearn.events.rules import REQUEST_ID_BYTES_MAX
from streamlearn.settings import EventSettings
from streamlearn.telemetry import counter, gauge
from streamlearn.topics import Topic, WriterSettings, partition_of

__all__ = ["Outlet"]

_LOG = logging.getLogger(__name__)
_SEND_BYTES = 1 << 20
_SEND_RECORDS = 1_024
ALIVE_CHECK_S = 5.0
FAILURES_KEPT = 100


@dataclass(frozen=True)
class _Ready:
    """A complete pack, or a finished record, ready to be sent."""

    partition: int
    content: Pack | bytes
    key: bytes
    time_ms: int
    events: int
    held_bytes: int
    begun_s: float

    def record(self) -> bytes:
        return self.content.record() if isinstance(self.content, Pack) else self.content


class Outlet:
    """Takes events from any thread and writes them to one topic.

    At `unsent_bytes_max` a caller blocks until the topic has taken some. What the topic refuses, or does not take
    within its writer's delivery timeout, is lost: logged, counted, and reported to every thread that flushes.

    Callers only append. The outlet's own thread, which Ctrl-C never interrupts, makes and sends the records.
    `clock` measures the age of a pack. `noun` says for errors whose the events are.
    """

    def __init__(
        self, topic: Topic, writer: WriterSettings, settings: EventSettings, clock: Clock, *, noun: str = "request"
    ) -> None:
        self._url, self._noun = topic.url, noun
        self._partitions = topic.partitions
        topic_settings = topic.settings()
        self.retention_ms = topic_settings.retention_ms  # -1 keeps records forever
        # A topic counts the key too.
        self._bytes_max = min(settings.record_bytes_max, topic_settings.record_bytes_max) - REQUEST_ID_BYTES_MAX
        self._settings = settings
        self._delivery_s = writer.delivery_timeout_ms / 1000
        self._clock = clock
        self._changed = threading.Condition()
        self._packs: dict[int, Pack] = {}
        self._ready: deque[_Ready] = deque()
        self._sending: list[_Ready] = []
        self._held_bytes = 0  # approximate; recounted before it decides anything
        self._settled_count = 0  # records acknowledged or lost since the begin
        self._wanted_count = 0  # the number of settled records for which some thread waits
        self._callers = 0
        self._closed = False
        self._failures: deque[NotDelivered] = deque(maxlen=FAILURES_KEPT)
        self._failures_count = 0
        self._reported = threading.local()
        name = self._url.rpartition("/")[2]
        self._events_total = counter("events", "produced", "Events passed to the Producer.", ["topic"]).labels(name)
        self._lost_total = counter("events", "lost", "Events that no topic acknowledged.", ["topic"]).labels(name)
        unsent = gauge("events", "unsent", "bytes", "Events held until they are acknowledged.", ["topic"])
        self._unsent_bytes = unsent.labels(name)
        self._writer = topic.writer(writer)
        self._thread = threading.Thread(target=self._run, name=f"producer-{name}", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)

    def give(self, event: bytes, items: int, origin: tuple[str, int]) -> None:
        """Take one framed event, with its number of items, its request id (or other key) and its event time.

        Raises:
            Oversize: It is larger than a record may be.
            UsageError: The outlet is closed, or this process is a fork of its own.
        """
        request_id, time_ms = origin
        key = request_id.encode()
        self._require_fitting(len(event), f"the event of {self._noun} {request_id!r}")
        partition = partition_of(key, self._partitions)
        with self._calling():
            self._wait_for_room(len(event))
            pack = self._packs.get(partition)
            if pack is not None and not pack.fits(len(event), items, self._settings.record_events_max, self._bytes_max):
                self._make_ready(partition)
                pack = None
            if pack is None:
                pack = self._packs[partition] = Pack(key=key, begun_s=self._clock.monotonic_s())
                self._changed.notify_all()
            pack.add(event, items, time_ms)
            self._note_held(len(event))
            self._events_total.inc()

    def give_columns(self, encoded: EncodedEvents) -> None:
        """Take many events, which follow earlier ones; raises as `give` does, and then takes none."""
        sizes = np.diff(encoded.offsets)
        if not len(sizes):
            return
        self._require_fitting(int(sizes.max()), f"event {int(sizes.argmax())} of the columns")
        now_s = self._clock.monotonic_s()
        packed = pack_columns(encoded, self._partitions, self._settings.record_events_max, self._bytes_max)
        records = [_Ready(*record, held_bytes=len(record.value), begun_s=now_s) for record in packed]
        with self._calling():
            self._make_all_ready()
            for record in records:
                self._admit(record)

    def give_everywhere(self, record: bytes, time_ms: int) -> None:
        """Write one record to every partition, after all earlier events; raises as `give` does."""
        with self._calling():
            self._make_all_ready()
            now_s = self._clock.monotonic_s()
            for partition in range(self._partitions):
                self._admit(_Ready(partition, record, b"", time_ms, 0, len(record), now_s))

    def _admit(self, record: _Ready) -> None:
        self._wait_for_room(record.held_bytes)
        self._put(record)
        self._note_held(record.held_bytes)
        self._events_total.inc(record.events)

    def press(self) -> int:
        """Send everything so far without waiting for fuller packs, and return the count for `settle`.

        Raises:
            UsageError: This process is a fork of the outlet's own.
        """
        self._require_own_process()
        with self._changed:
            return self._want_all()

    def settle(self, wanted: int) -> None:
        """Wait until everything up to a `press` is acknowledged or lost."""
        with self._changed:
            while self._settled_count < wanted:
                self._wait_for_change()

    def failures(self) -> list[NotDelivered]:
        """Return the losses since the calling thread's last call; each thread gets all of them."""
        with self._changed:
            new_count = self._failures_count - getattr(self._reported, "count", 0)
            self._reported.count = self._failures_count
            return list(self._failures)[-new_count:] if new_count else []

    def close(self) -> None:
        """Send the remaining events, end the thread and close the writer; call `failures` first."""
        if not self._thread.is_alive():
            return  # closed before, or in a fork, which must not send the events of its parent
        with self._changed:
            self._closed = True
            self._want_all()
        atexit.unregister(self._at_exit)
        self._thread.join()
        self._writer.close()

    def _at_exit(self) -> None:
        """Send the held events of an outlet that was not closed when the process ends, and warn about it."""
        if not self._thread.is_alive():
            return
        try:
            with self._changed:
                held = bool(self._packs or self._ready or self._sending)
            if held:
                message = f"events for {self._url} were never flushed; use the Producer in a with statement"
                _LOG.warning("%s, or close it", message)
                warnings.warn(message, ResourceWarning, stacklevel=2)
        finally:
            self.close()

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Hold the lock for a call, which may finish even if another thread closes the outlet meanwhile."""
        self._require_own_process()
        with self._changed:
            if self._closed:
                message = "the producer is closed"
                raise UsageError(message, help="it would never send this event; make another Producer")
            self._callers += 1
            try:
                yield
            finally:
                self._leave()

    def _leave(self) -> None:
        self._callers -= 1
        if self._closed:  # the thread may be waiting for the last caller
            self._changed.notify_all()

    def _require_own_process(self) -> None:
        """Refuse a fork, which has no thread to send and may have a lock that nothing releases."""
        if not self._closed and not self._thread.is_alive():
            raise self._no_thread()

    def _wait_for_change(self) -> None:
        if not self._thread.is_alive():
            raise self._no_thread()
        self._changed.wait(ALIVE_CHECK_S)

    def _no_thread(self) -> UsageError:
        message = f"the thread that sends to {self._url} does not run in this process"
        return UsageError(message, help="create the Producer after forking, one in each process")

    def _require_fitting(self, event_bytes: int, event: str) -> None:
        if not Pack().fits(event_bytes, 0, 1, self._bytes_max):
            message = f"{event} has {event_bytes} bytes"
            setting = f"events.record_bytes_max ({self._settings.record_bytes_max})"
            hint = f"the largest record allowed is {self._bytes_max} bytes, by {setting} and the limit of {self._url}"
            raise Oversize(message, help=hint)

    def _wait_for_room(self, more_bytes: int) -> None:
        """Wait until the outlet may hold more bytes; it always takes one event."""
        while self._held_bytes and self._held_bytes + more_bytes > self._settings.unsent_bytes_max:
            self._recount()
            if not self._held_bytes or self._held_bytes + more_bytes <= self._settings.unsent_bytes_max:
                return
            self._want_all()
            self._wait_for_change()

    def _recount(self) -> None:
        """Recount the held bytes, since an interrupted call may have left the running number wrong."""
        packs = sum(pack.bytes_at_most - Pack.COST_BYTES for pack in self._packs.values())
        ready = sum(record.held_bytes for record in (*self._ready, *self._sending))
        self._held_bytes = packs + ready

    def _note_held(self, more_bytes: int) -> None:
        self._held_bytes += more_bytes
        self._unsent_bytes.set(self._held_bytes)

    def _make_ready(self, partition: int) -> None:
        """Complete a pack. It is added before it is removed: Ctrl-C in between duplicates and never loses it."""
        pack = self._packs[partition]
        held_bytes = pack.bytes_at_most - Pack.COST_BYTES
        self._put(_Ready(partition, pack, pack.key, pack.time_ms, len(pack.events), held_bytes, pack.begun_s))
        del self._packs[partition]

    def _make_all_ready(self) -> None:
        for partition in list(self._packs):
            self._make_ready(partition)

    def _put(self, record: _Ready) -> None:
        self._ready.append(record)
        if len(self._ready) == 1 or self._fills_request():
            self._changed.notify_all()

    def _fills_request(self) -> bool:
        """Return whether the ready records fill a request, so that they need not linger."""
        return len(self._ready) >= _SEND_RECORDS or self._held_bytes >= _SEND_BYTES

    def _want_all(self) -> int:
        """Request that everything is sent now, and return the count of settled records to wait for."""
        self._make_all_ready()
        self._wanted_count = self._settled_count + len(self._sending) + len(self._ready)
        self._changed.notify_all()
        return self._wanted_count

    def _run(self) -> None:
        while records := self._next():
            lost = self._deliver(records)
            with self._changed:
                self._settled_count += len(records)
                self._sending = []
                if lost:
                    self._give_up_old()
                self._recount()
                self._unsent_bytes.set(self._held_bytes)
                self._changed.notify_all()

    def _next(self) -> list[_Ready]:
        """Wait for the next records to send and return them; none once the outlet is closed and empty."""
        with self._changed:
            while (wait_s := self._due_in_s()) != 0:
                if self._closed and not self._ready and not self._callers:
                    return []
                self._changed.wait(wait_s)
            size = 0
            while self._ready and size < _SEND_BYTES:
                size += self._ready[0].held_bytes
                self._sending.append(self._ready.popleft())
            return self._sending

    def _due_in_s(self) -> float | None:
        """Return the seconds until records are due: 0 for now, None until something changes."""
        linger_s, now_s = self._settings.linger_ms / 1000, self._clock.monotonic_s()
        for partition in [key for key, pack in self._packs.items() if now_s - pack.begun_s >= linger_s]:
            self._make_ready(partition)
        if self._ready:
            is_wanted = self._settled_count < self._wanted_count or self._fills_request()
            if is_wanted or now_s - self._ready[0].begun_s >= linger_s:
                return 0
        # Half of it, since `clock` may differ from the clock of the wait.
        return max(linger_s / 2, 0.001) if self._ready or self._packs else None

    def _deliver(self, records: list[_Ready]) -> bool:
        """Send records, wait for them, and return whether some were lost. No error ends the thread."""
        lost = False
        for record in records:
            try:
                self._writer.send(record.partition, record.record(), record.key or None, record.time_ms)
            except Exception as error:  # only this one is refused; send the others
                self._note_lost([record], error)
                lost = True
        try:
            self._writer.flush()
        except Exception as error:
            self._note_lost(records, error)
            lost = True
            if not isinstance(error, NotDelivered):
                with suppress(Exception):
                    self._writer.flush()  # drop the writer's own report of the same failure
        return lost

    def _give_up_old(self) -> None:
        """After a loss, give up records older than the delivery timeout, which would only wait for it again."""
        oldest_s = self._clock.monotonic_s() - self._delivery_s
        old = []
        # Only from the front: `settle` waits by the count of the records before its own.
        while self._ready and self._ready[0].begun_s < oldest_s:
            old.append(self._ready.popleft())
        if old:
            self._settled_count += len(old)
            self._note_lost(old, self._failures[-1])

    def _note_lost(self, records: list[_Ready], error: Exception) -> None:
        events = sum(record.events for record in records)
        reason = error.message if isinstance(error, StreamlearnError) else f"{type(error).__name__}: {error}"
        message = f"up to {events} events in {len(records)} records of {self._url} were not acknowledged: {reason}"
        help = error.help if isinstance(error, StreamlearnError) else "this is a bug: please report it"
        failure = NotDelivered(message, help=help)
        failure.__cause__ = error
        self._lost_total.inc(events)
        _LOG.error("%s", message)
        with self._changed:
            self._failures.append(failure)
            self._failures_count += 1
