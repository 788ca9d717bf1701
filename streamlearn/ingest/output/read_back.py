"""ReadBack: impressions read again by their origin, through a cache with a byte limit.

It does not know why they are needed again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import PositionLost, TopicUnreachable
from streamlearn.events import EventDecoder
from streamlearn.events.span import Spans
from streamlearn.ingest.reading.meters import ReadBackMeter
from streamlearn.settings.ingest import IngestSettings
from streamlearn.topics import AccessSettings, Reader, Records, open_topic
from streamlearn.topics.topic import replaced

__all__ = ["ReadBack"]

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

# The size of a piece, and of each event, besides the events' bytes.
_PIECE_BYTES, _EVENT_BYTES = 4_096, 64
_RECORDS_MAX = 100_000


@dataclass(frozen=True, eq=False)
class _Piece:
    """The records of one read, with the spans of their events.

    Attributes:
        begin: The offset that was read from.
        end: The offset that the next read would continue from.
        offsets: Of its records.
        spans: Its events, each with an ascending `record << 32 | first item`.
        size_bytes: Its size in the cache.
    """

    begin: int
    end: int
    offsets: Int64s
    spans: tuple[tuple[Spans, Int64s], ...]
    size_bytes: int


class ReadBack:
    """Reads impressions of one topic again; `topic_id` is its id when they were first read.

    The cache evicts the least recently used piece. One read has at most `ingest.blob_bytes`; a single larger record
    comes whole.

    Guaranteed: a returned impression is the one with that origin: a topic that was created again is refused. Not
    guaranteed: that it is returned: topics delete old records. The classic mistake is to request one at a time: request
    all that are due, so that one read serves many.
    """

    def __init__(
        self,
        url: str,
        topic_id: str,
        decoder: EventDecoder,
        access: AccessSettings,
        *,
        settings: IngestSettings,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._url, self._topic_id, self._decoder = url, topic_id, decoder
        self._access, self._settings, self._clock = access, settings, clock
        self._opened = ExitStack()
        self._reader: Reader | None = None
        self._pieces: OrderedDict[tuple[int, int], _Piece] = OrderedDict()
        self._meter = ReadBackMeter(settings.read_back_bytes)
        self.held_bytes = 0

    def find(self, partition: Int32s, offset: Int64s, first_item: Int32s) -> list[Spans]:
        """Return the spans of some impressions, given by their origins; deleted ones are left out.

        The spans' `record_index` is the index of each impression in the arguments.

        Raises:
            TopicReplaced: The topic was deleted and created again.
            TopicMissing: The topic was deleted.
            TopicUnreachable: It returned nothing for longer than `topics.reach_s`.
            PositionLost: The topic has lost its end.
        """
        spans: list[Spans] = []
        order = np.lexsort((first_item, offset, partition))
        cuts = np.flatnonzero(np.diff(partition[order])) + 1
        for places in np.split(order, cuts):
            if len(places):
                number, wanted = int(partition[places[0]]), offset[places]
                for piece, begin, end in self._pieces_of(number, wanted):
                    spans += _chosen(piece, places[begin:end], wanted[begin:end], first_item[places[begin:end]])
        return spans

    def close(self) -> None:
        """Close the topic, and drop the cache."""
        self._reader = None
        self._pieces.clear()
        self.held_bytes = 0
        self._opened.close()

    def _pieces_of(self, partition: int, offsets: Int64s) -> Iterator[tuple[_Piece, int, int]]:
        """Yield the pieces for ascending offsets, each with the range of offsets that it serves."""
        begin = 0
        while begin < len(offsets):
            piece = self._piece(partition, int(offsets[begin]))
            end = int(np.searchsorted(offsets, piece.end))
            yield piece, begin, end
            begin = end

    def _piece(self, partition: int, offset: int) -> _Piece:
        for key, piece in self._pieces.items():
            if key[0] == partition and piece.begin <= offset < piece.end:
                self._pieces.move_to_end(key)
                self._meter.hits.inc()
                return piece
        piece = self._fetch(partition, offset)
        if len(piece.offsets) and piece.size_bytes <= self._settings.read_back_bytes:
            old = self._pieces.pop((partition, offset), None)
            self._pieces[partition, offset] = piece
            self.held_bytes += piece.size_bytes - (old.size_bytes if old else 0)
            while self.held_bytes > self._settings.read_back_bytes:
                self.held_bytes -= self._pieces.popitem(last=False)[1].size_bytes
            self._meter.hold(self.held_bytes)
        return piece

    def _fetch(self, partition: int, offset: int) -> _Piece:
        reader, settings = self._open(), self._settings
        wait_ms = max(1, round(settings.fetch_wait_s * 1_000))
        until_s = self._clock.monotonic_s() + self._access.unreachable_after_ms / 1_000
        while True:
            try:
                records = reader.read(
                    partition, offset, max_records=_RECORDS_MAX, max_bytes=settings.blob_bytes, wait_ms=wait_ms
                )
            except PositionLost:
                earliest = reader.earliest(partition)
                if offset >= earliest:
                    raise
                return _Piece(offset, earliest, np.empty(0, np.int64), (), 0)
            if records.next_offset > offset:
                self._meter.fetches.inc()
                return self._piece_of(offset, records)
            # The position was read before: it has a record, unless the topic has lost its end.
            reader.check_offset(partition, offset + 1, offset, None)
            if self._clock.monotonic_s() > until_s:
                message = f"{self._url} partition {partition} returns no records from offset {offset} on"
                raise TopicUnreachable(message, help="check the broker; due samples are made when it answers")

    def _piece_of(self, begin: int, records: Records) -> _Piece:
        # Records that cannot be split here could not be split when they were first read, so none of them is wanted.
        spans, _ = self._decoder.tell_apart(records.values)
        placed = []
        for part in spans:
            shown = part.take(np.flatnonzero(part.items != 0))  # actions have no items, and would have another's place
            placed.append((shown, _place(shown.record_index, shown.item_base)))
        size_bytes = sum(part.buffer.nbytes + _EVENT_BYTES * len(part) for part in spans) + _PIECE_BYTES
        return _Piece(begin, records.next_offset, records.offsets, tuple(placed), size_bytes)

    def _open(self) -> Reader:
        if self._reader is None:
            topic = self._opened.enter_context(open_topic(self._url, self._access, clock=self._clock))
            if topic.topic_id != self._topic_id:
                self._opened.close()
                raise replaced(self._url, self._topic_id, topic.topic_id)
            self._reader = self._opened.enter_context(topic.reader())
        return self._reader


def _place(record: Int32s | Int64s, first_item: Int32s) -> Int64s:
    return record.astype(np.int64) << 32 | first_item


def _chosen(piece: _Piece, places: Int64s, offsets: Int64s, first_item: Int32s) -> list[Spans]:
    """Return the spans of the wanted impressions of a piece, with their indexes among all wanted ones."""
    if not len(piece.offsets):
        return []
    record = np.minimum(np.searchsorted(piece.offsets, offsets), len(piece.offsets) - 1)
    has_record = piece.offsets[record] == offsets
    wanted = _place(record, first_item)
    chosen = []
    for spans, known in piece.spans:
        if len(known):
            at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
            hits = np.flatnonzero(has_record & (known[at] == wanted))
            if len(hits):
                chosen.append(replace(spans.take(at[hits]), record_index=places[hits].astype(np.int32)))
    return chosen
