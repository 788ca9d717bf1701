"""One topic's side of the Producer: a pack being filled for each partition, and the writer behind them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamlearn.errors import Oversize
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


class Outlet:
    """Packs events by partition and writes the packs. For one thread at a time.

    Args:
        topic: Where to.
        writer: How its writer writes.
        settings: The bounds of a record.
    """

    def __init__(self, topic: Topic, writer: WriterSettings, settings: EventSettings) -> None:
        self._partitions = topic.partitions
        self._writer = topic.writer(writer)
        self._events_max = settings.record_events_max
        # A topic counts the key too.
        self._bytes_max = min(settings.record_bytes_max, topic.settings().record_bytes_max) - REQUEST_ID_BYTES_MAX
        self._unsent_bytes_max = settings.unsent_bytes_max
        self._packs: dict[int, Pack] = {}
        self._packs_bytes = 0
        self._written_since_flush = False
        name = topic.url.rpartition("/")[2]
        self._events_total = counter("events", "produced", "Events given to the Producer.", ["topic"]).labels(name)
        self._records_total = counter("events", "produced_records", "Records they became.", ["topic"]).labels(name)
        self._unsent_bytes = gauge("events", "unsent", "bytes", "Held until a topic acknowledges.", ["topic"]).labels(
            name
        )

    def send(self, event: bytes, items: int, when: tuple[str, int], now_s: float) -> None:
        """Take one event.

        Args:
            event: The event with its framing.
            items: How many items it shows.
            when: Its request id and event time.
            now_s: Now, on the monotonic clock.

        Raises:
            Oversize: It is larger than a record may be.
        """
        request_id, time_ms = when
        key = request_id.encode()
        if not Pack().fits(len(event), 1, self._bytes_max):
            message = f"the event of request {request_id!r} has {len(event)} bytes"
            raise Oversize(message, help=f"a record has at most {self._bytes_max}; see events.record_bytes_max")
        partition = partition_of(key, self._partitions)
        pack = self._packs.get(partition)
        if pack is not None and not pack.fits(len(event), self._events_max, self._bytes_max):
            self._seal(partition)
            pack = None
        if pack is None:
            pack = self._packs[partition] = Pack(key=key, begun_s=now_s)
        before_bytes = pack.bytes_at_most
        pack.add(event, items, time_ms)
        self._packs_bytes += pack.bytes_at_most - before_bytes
        self._events_total.inc()
        self._note_unsent()

    def send_columns(self, encoded: EncodedEvents) -> None:
        """Take many events; those given before are written first.

        Raises:
            Oversize: One is larger than a record may be; nothing was taken.
        """
        self._seal_all()
        sizes = np.diff(encoded.offsets)
        if len(sizes) and not Pack().fits(int(sizes.max()), 1, self._bytes_max):
            message = f"event {int(sizes.argmax())} of the columns has {int(sizes.max())} bytes"
            raise Oversize(message, help=f"a record has at most {self._bytes_max}; see events.record_bytes_max")
        partition_of_row = native.partitions_of(encoded.request_at, encoded.request_ids, self._partitions)
        self._events_total.inc(len(sizes))
        order = np.argsort(partition_of_row, kind="stable")
        bounds = np.searchsorted(partition_of_row[order], np.arange(self._partitions + 1))
        for partition in range(self._partitions):
            rows = order[bounds[partition] : bounds[partition + 1]]
            if len(rows):
                self._send_rows(partition, encoded, rows)

    def send_everywhere(self, record: bytes, time_ms: int) -> None:
        """Write one record to every partition, after what was given before."""
        self._seal_all()
        for partition in range(self._partitions):
            self._write(partition, record, b"", time_ms)

    def flush(self) -> None:
        """Write every pack and wait for the acknowledgements.

        Raises:
            NotDelivered: Some were not acknowledged.
        """
        self._seal_all()
        if self._written_since_flush:
            self._written_since_flush = False
            self._writer.flush()
            self._unsent_bytes.set(0)

    def flush_older(self, begun_s: float) -> None:
        """Flush if a pack was begun at or before that moment; raises as `flush` does."""
        if self._written_since_flush or any(pack.begun_s <= begun_s for pack in self._packs.values()):
            self.flush()

    def close(self) -> None:
        """Let go of the writer; flush first."""
        self._writer.close()

    def _send_rows(self, partition: int, encoded: EncodedEvents, rows: npt.NDArray[np.int64]) -> None:
        data, at = native.take_spans(encoded.buffer, encoded.offsets, rows)
        cuts = self._cuts(at)
        times = np.maximum.reduceat(encoded.event_time_ms[rows], cuts[:-1]).tolist()
        if self._events_max == 1:
            values, bounds = data, at.astype(np.int64)
        else:
            items = np.ascontiguousarray(encoded.items[rows])
            columns: Columns = {"events[]": cuts, "events": data, "events$": at, "items[]": cuts, "items": items}
            values, bounds = PACK_PLAN.encode(columns, len(cuts) - 1, EVENT_PACK.prefix)
        whole, ends = values.tobytes(), bounds.tolist()
        for index, time_ms in enumerate(times):
            row = int(rows[cuts[index]])
            key = encoded.request_ids[encoded.request_at[row] : encoded.request_at[row + 1]].tobytes()
            self._write(partition, whole[ends[index] : ends[index + 1]], key, time_ms)

    def _cuts(self, at: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Where each record's events begin, as many to a record as its bounds allow."""
        events, cuts = len(at) - 1, [0]
        # Each event costs its bytes and what a pack adds to it, so that a cut is one search.
        cost = at.astype(np.int64) + np.arange(events + 1) * Pack.EVENT_COST_BYTES
        room = self._bytes_max - Pack.COST_BYTES
        while cuts[-1] < events:
            fit = int(np.searchsorted(cost, cost[cuts[-1]] + room, side="right")) - 1
            cuts.append(max(cuts[-1] + 1, min(fit, cuts[-1] + self._events_max)))
        return np.asarray(cuts, np.int32)

    def _seal(self, partition: int) -> None:
        pack = self._packs.pop(partition)
        self._packs_bytes -= pack.bytes_at_most - Pack.COST_BYTES
        self._write(partition, pack.record(), pack.key, pack.time_ms)

    def _seal_all(self) -> None:
        for partition in list(self._packs):
            self._seal(partition)

    def _write(self, partition: int, record: bytes, key: bytes, time_ms: int) -> None:
        self._writer.send(partition, record, key or None, time_ms)
        self._written_since_flush = True
        self._records_total.inc()

    def _note_unsent(self) -> None:
        """Say how much is held, and wait for acknowledgements when it is as much as may be."""
        held_bytes = self._packs_bytes + self._writer.unsent_bytes
        if held_bytes > self._unsent_bytes_max:
            self.flush()
            held_bytes = 0
        self._unsent_bytes.set(held_bytes)
