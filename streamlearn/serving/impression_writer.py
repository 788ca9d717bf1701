"""WrittenBack: impressions of answered requests on their way to the impressions topic. Replies never wait for it."""

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

# The most events encoded and written at once; others wait meanwhile.
_BATCH_EVENTS = 2_000
# How long the thread waits for events before it checks whether it must end.
_TAKE_S = 0.25
# How long to wait before opening a topic again, and the least time between two warnings about dropped impressions.
_RETRY_S, _WARN_S = 2.0, 30.0
_LOG = logging.getLogger(__name__)


class WrittenBack:
    """Impressions of answered requests, written by one thread.

    The queue is bounded. When it is full, requests are still answered; their impressions are dropped and counted. A
    topic that is missing or unreachable is opened again until it is there. `native` is the queue into which a native
    node puts answered requests.
    """

    def __init__(self, folder: AppFolder, front: Any) -> None:
        settings = folder.settings.impressions
        if folder.settings.topics.time != "wall":
            message = "impressions.write_back is on, and topics.time is 'event'"
            raise ConfigError(
                message, help="impressions of live requests do not fit into a replay: turn one of the two off"
            )
        self._folder, self._settings, self._events = folder, settings, folder.settings.events
        self.native = native.Shown(
            folder.app.name, front, _schema(folder.app, self._events.items_max),
            share=folder.settings.join.logged_share, events_max=settings.waiting_events_max,
            bytes_max=settings.waiting_bytes_max,
        )  # fmt: skip
        self._written = counter(
            "serving", "impressions_written", "Impressions of answered requests written to the topic"
        )
        help = "Impressions that were not written to the topic, by reason"
        self._lost = counter("serving", "impressions_lost", help, ["reason"])
        self._waiting = gauge(
            "serving", "impressions_waiting", "ratio", "Waiting impressions as a share of their limit"
        )
        self._counted = {"full": 0, "refused": 0}
        self._unreported, self._reported_s = 0, -_WARN_S
        self._ended, self._sending = threading.Event(), 0
        self._thread = threading.Thread(target=self._run, name="impressions", daemon=True)

    def start(self, node: Any) -> None:
        """Write what a native node answers from now on."""
        self._thread.start()
        node.write_back(self.native)

    def measure(self) -> None:
        """Set the metrics, and log dropped impressions from time to time."""
        figures, settings = self.native.figures(), self._settings
        full = figures.waiting / settings.waiting_events_max, figures.waiting_bytes / settings.waiting_bytes_max
        self._waiting.set(max(full))
        for cause, count in (("full", figures.dropped), ("refused", figures.refused)):
            new = count - self._counted[cause]
            self._lost.labels(cause).inc(new)
            self._counted[cause], self._unreported = count, self._unreported + new
        if self._unreported and time.monotonic() - self._reported_s >= _WARN_S:
            why = f"; the last one refused: {figures.reason}" if figures.reason else ""
            _LOG.warning("%d impressions were dropped because the queue was full%s", self._unreported, why)
            self._unreported, self._reported_s = 0, time.monotonic()

    def close(self) -> None:
        """Write what waits, for at most `flush_s`. Call it when the node answers no more requests."""
        self._ended.set()
        self.native.close()
        self._thread.join(self._settings.flush_s)
        self.measure()
        lost = self.native.figures().waiting + self._sending
        if self._thread.is_alive():
            _LOG.warning("shutdown took too long: %d impressions that wait or are being sent are lost", lost)
        self._lost.labels("ended").inc(lost)

    def _run(self) -> None:
        logged, is_over = "", False
        while not is_over:
            try:
                with self._folder.open_topic("impressions") as topic:
                    logged = ""
                    is_over = self._write_to(topic)
            except StreamlearnError as error:
                if str(error) != logged:
                    _LOG.warning("impressions are not written: %s", error)
                logged, is_over = str(error), self._ended.wait(_RETRY_S)

    def _write_to(self, topic: Topic) -> bool:
        """Write until the queue has ended. Return false if the topic must be opened again."""
        record_bytes_max = min(self._events.record_bytes_max, topic.settings().record_bytes_max) - REQUEST_ID_BYTES_MAX
        linger_s = self._events.linger_ms / 1_000
        event_bytes_max = record_bytes_max - Pack.COST_BYTES - Pack.EVENT_COST_BYTES
        writer = topic.writer(self._folder.writer_settings)
        try:
            while True:
                is_last = self._ended.is_set()
                taken = self.native.take(_TAKE_S, linger_s, _BATCH_EVENTS, event_bytes_max)
                if taken is None and is_last:
                    return True
                if taken is not None and len(taken["items"]):
                    self._sending = len(taken["items"])
                    limits = (self._events.record_events_max, record_bytes_max)
                    records = pack_columns(EncodedEvents(**taken), topic.partitions, *limits)
                    is_written = self._write(writer, records)
                    self._sending = 0
                    if not is_written:
                        return self._ended.is_set()
        finally:
            # `_write` flushed everything and reported errors.
            with suppress(StreamlearnError):
                writer.close()

    def _write(self, writer: Writer, records: list[Packed]) -> bool:
        """Write records and return whether the topic acknowledged all of them."""
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
            error, partitions = failed, {partition for partition, _, _ in failed.failures}
            lost = sum(record.events for record in records if record.partition in partitions)
        if error is None:
            self._written.inc(events)
            return True
        lost = lost or events
        self._written.inc(events - lost)
        self._lost.labels("unacknowledged").inc(lost)
        _LOG.error("up to %d impressions were not acknowledged: %s", lost, error.message)
        return False


def _schema(app: App, items_max: int) -> str:
    """Return how impressions of an application are encoded, as JSON for the native queue."""
    features = app.features
    schema = {
        "prefix": list(impression_schema(app).prefix),
        "item_segments": len(features.segments_of("item")),
        "items_max": items_max,
        "has_features": bool(features.entities),
        "defaults": {slot.name: slot.default for slot in features.slots if slot.default is not None},
    }
    return msgspec.json.encode(schema).decode()
