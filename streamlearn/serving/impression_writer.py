"""WrittenBack: what a node's callers were shown, on its way to the impressions topic. Replies never wait for it."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import Any

import msgspec

from streamlearn.apps import App, AppFolder
from streamlearn.errors import ConfigError, NotDelivered, StreamlearnError
from streamlearn.events.encoder import EncodedEvents
from streamlearn.events.pack import Pack
from streamlearn.events.record_packer import Packed, pack_columns
from streamlearn.events.rules import REQUEST_ID_BYTES_MAX
from streamlearn.native import native
from streamlearn.schemas import impression_schema
from streamlearn.telemetry import counter, gauge
from streamlearn.topics import Topic, Writer

__all__ = ["WrittenBack"]

# Events made and written at once; while they are, others wait.
_BATCH_EVENTS = 2_000
# How long its thread waits for events before it looks whether it is to end.
_TAKE_S = 0.25
# How long until a topic that could not be opened is tried again, and between two lines that say what is lost.
_AGAIN_S, _SAY_S = 2.0, 30.0
_LOG = logging.getLogger(__name__)


class WrittenBack:
    """Impressions of answered requests, written by one thread.

    What waits is bounded; at the bound a request is answered as ever, and its impression is dropped and counted. A
    topic that is away, or not there yet, is tried again and again.

    Args:
        folder: The application; `impressions`, `events` and `topics` are its settings.
        front: The native front whose requests they are.

    Attributes:
        native: What a native node notes answered requests with.

    Raises:
        ConfigError: The topics' clock is that of a replay.
    """

    def __init__(self, folder: AppFolder, front: Any) -> None:
        settings = folder.settings.impressions
        if folder.settings.topics.time != "wall":
            message = "impressions.write_back is on, and topics.time is 'event'"
            raise ConfigError(
                message, help="impressions of live requests do not fit into a replay: turn one of the two off"
            )
        self._folder, self._settings, self._events = folder, settings, folder.settings.events
        bounds = (folder.settings.join.logged_share, settings.waiting_events_max, settings.waiting_bytes_max)
        self.native = native.Shown(folder.app.name, front, _described(folder.app, self._events.items_max), bounds)
        self._written = counter(
            "serving", "impressions_written", "Impressions of answered requests written to the topic"
        )
        what = "Impressions that were not written to the topic, by reason"
        self._lost = counter("serving", "impressions_lost", what, ["reason"])
        self._waiting = gauge(
            "serving", "impressions_waiting", "ratio", "Waiting impressions as a share of their limit"
        )
        self._counted = {"full": 0, "refused": 0}
        self._unsaid, self._said_s = 0, -_SAY_S
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="impressions", daemon=True)

    def start(self, node: Any) -> None:
        """Write what a native node answers from now on."""
        self._thread.start()
        node.write_back(self.native)

    def measure(self) -> None:
        """Set metrics, and say what was lost now and then."""
        waiting, waiting_bytes, _, dropped, refused, said = self.native.figures()
        settings = self._settings
        full = max(waiting / settings.waiting_events_max, waiting_bytes / settings.waiting_bytes_max)
        self._waiting.set(full)
        for reason, count in (("full", dropped), ("refused", refused)):
            more = count - self._counted[reason]
            self._lost.labels(reason).inc(more)
            self._counted[reason], self._unsaid = count, self._unsaid + more
        if self._unsaid and time.monotonic() - self._said_s >= _SAY_S:
            why = f"; the last one refused: {said}" if said else ""
            _LOG.warning("%d impressions were dropped because the queue was full%s", self._unsaid, why)
            self._unsaid, self._said_s = 0, time.monotonic()

    def close(self) -> None:
        """Write what waits, `flush_s` at most; call it when nothing is answered any more."""
        self._ended.set()
        self.native.close()
        self._thread.join(self._settings.flush_s)
        self.measure()
        left = self.native.figures()[0]
        if self._thread.is_alive():
            _LOG.warning("shutdown took too long: %d waiting impressions, and those being sent, are lost", left)
        self._lost.labels("ended").inc(left)

    def _run(self) -> None:
        said, is_over = "", False
        while not is_over:
            try:
                with self._folder.open_topic("impressions") as topic:
                    said = ""
                    is_over = self._write_to(topic)
            except StreamlearnError as error:
                if str(error) != said:
                    _LOG.warning("impressions are not written: %s", error)
                said, is_over = str(error), self._ended.wait(_AGAIN_S)

    def _write_to(self, topic: Topic) -> bool:
        """Write until there is nothing more to come; false when the topic is to be opened anew."""
        record_bytes_max = min(self._events.record_bytes_max, topic.settings().record_bytes_max) - REQUEST_ID_BYTES_MAX
        linger_s = self._events.linger_ms / 1_000
        event_bytes_max = record_bytes_max - Pack.COST_BYTES - Pack.EVENT_COST_BYTES
        writer = topic.writer(self._folder.writer_settings)
        try:
            while True:
                is_last = self._ended.is_set()
                taken = self.native.take(_TAKE_S, linger_s, (_BATCH_EVENTS, event_bytes_max))
                if taken is None and is_last:
                    return True
                if taken is not None and len(taken[2]):
                    limits = (self._events.record_events_max, record_bytes_max)
                    records = pack_columns(EncodedEvents(*taken), topic.partitions, *limits)
                    if not self._write(writer, records):
                        return self._ended.is_set()
        finally:
            # What was collected was flushed, and what that said was told.
            with suppress(StreamlearnError):
                writer.close()

    def _write(self, writer: Writer, records: list[Packed]) -> bool:
        """Write records; whether all are in the topic."""
        events, error = sum(record.events for record in records), None
        try:
            for record in records:
                writer.send(record.partition, record.value, record.key, record.time_ms)
        except StreamlearnError as refused:
            error = refused
        lost = 0
        try:
            writer.flush()
        except NotDelivered as failed:
            error, parts = failed, {partition for partition, _, _ in failed.failures}
            lost = sum(record.events for record in records if record.partition in parts)
        if error is None:
            self._written.inc(events)
            return True
        lost = lost or events
        self._written.inc(events - lost)
        self._lost.labels("unacknowledged").inc(lost)
        _LOG.error("up to %d impressions were not acknowledged: %s", lost, error.message)
        return False


def _described(app: App, items_max: int) -> str:
    """How impressions of an application are written, as text."""
    features = app.features
    whole = {
        "prefix": list(impression_schema(app).prefix),
        "user_segments": len(features.segments_of("user")),
        "item_segments": len(features.segments_of("item")),
        "items_max": items_max,
        "defaults": {slot.name: slot.default for slot in features.slots if slot.default is not None},
    }
    return msgspec.json.encode(whole).decode()
