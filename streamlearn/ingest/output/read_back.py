"""ReadBack: impressions read again by where they came from, through a cache of bounded bytes.

It does not know why they are needed again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import PositionLost, TopicUnreachable
from streamlearn.events import EventDecoder
from streamlearn.events.span import Spans
from streamlearn.ingest.reading.meters import ReadBackMeter
from streamlearn.topics import AccessSettings, Reader, Records, Topic, open_topic
from streamlearn.topics.topic import replaced

__all__ = ["ReadBack", "ReadBackLimits"]

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

# What a piece and each of its events cost beside the events' bytes.
_PIECE_BYTES, _EVENT_BYTES = 4_096, 64
_RECORDS_MAX = 100_000


@dataclass(frozen=True)
class ReadBackLimits:
    """The bounds of reading again.

    Attributes:
        held_bytes: Kept for later; at the bound what was used longest ago is let go of.
        read_bytes: Of one read; a single larger record comes whole.
        wait_ms: Of one read without records.
    """

    held_bytes: int
    read_bytes: int
    wait_ms: int


@dataclass(frozen=True, eq=False)
class _Piece:
    """Records that one read gave, told apart into events.

    Attributes:
        begin: The offset that was read from.
        end: The offset that a next read would go on from.
        offsets: Of its records.
        spans: Its events, and for each of them `record << 32 | first item`, which grows.
        size_bytes: What it costs to keep.
    """

    begin: int
    end: int
    offsets: Int64s
    spans: tuple[tuple[Spans, Int64s], ...]
    size_bytes: int


class ReadBack:
    """Reads impressions of one topic again.

    Guaranteed: an impression that is found is the one that stands there, for a topic that was made anew is refused.
    Not guaranteed: that one is found, for topics let go of old records.
    The classic mistake is to ask for one at a time: ask for all that are due, so that one read serves many.

    Args:
        url: The impressions topic.
        topic_id: Its id when the impressions were first read.
        decoder: Tells the events of a record apart.
        access: How the topic is reached.
        limits: Bounds.
        clock: For how long a broker has given nothing.
    """

    def __init__(
        self,
        url: str,
        topic_id: str,
        decoder: EventDecoder,
        access: AccessSettings,
        *,
        limits: ReadBackLimits,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._url, self._topic_id, self._decoder = url, topic_id, decoder
        self._access, self._limits, self._clock = access, limits, clock
        self._topic: Topic | None = None
        self._reader: Reader | None = None
        self._pieces: OrderedDict[tuple[int, int], _Piece] = OrderedDict()
        self._meter = ReadBackMeter(limits.held_bytes)
        self.held_bytes = 0

    def find(self, partition: Int32s, offset: Int64s, first_item: Int32s) -> list[Spans]:
        """Where the bytes of some impressions lie; what is not there any more is left out.

        Args:
            partition: Of each one's origin.
            offset: Of each one's record.
            first_item: The index, within its record, of each one's first item.

        Returns:
            Spans whose `record_index` is the place of each impression among those asked for.

        Raises:
            TopicReplaced: The topic was deleted and created again.
            TopicMissing: The topic was deleted.
            TopicUnreachable: It gave nothing for longer than `topics.reach_s`.
            PositionLost: The topic has lost its end.
        """
        found: list[Spans] = []
        order = np.lexsort((first_item, offset, partition))
        cuts = np.flatnonzero(np.diff(partition[order])) + 1
        for places in np.split(order, cuts):
            if len(places):
                number, wanted = int(partition[places[0]]), offset[places]
                for piece, begin, end in self._pieces_of(number, wanted):
                    found += _chosen(piece, places[begin:end], wanted[begin:end], first_item[places[begin:end]])
        return found

    def close(self) -> None:
        """Let go of the topic and of what is kept."""
        reader, topic = self._reader, self._topic
        self._reader = self._topic = None
        self._pieces.clear()
        self.held_bytes = 0
        try:
            if reader is not None:
                reader.close()
        finally:
            if topic is not None:
                topic.close()

    def _pieces_of(self, partition: int, offsets: Int64s) -> Iterator[tuple[_Piece, int, int]]:
        """The piece that each of some growing offsets lies in, with the stretch of them that it serves."""
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
        if len(piece.offsets) and piece.size_bytes <= self._limits.held_bytes:
            old = self._pieces.pop((partition, offset), None)
            self._pieces[partition, offset] = piece
            self.held_bytes += piece.size_bytes - (old.size_bytes if old else 0)
            while self.held_bytes > self._limits.held_bytes:
                self.held_bytes -= self._pieces.popitem(last=False)[1].size_bytes
            self._meter.hold(self.held_bytes)
        return piece

    def _fetch(self, partition: int, offset: int) -> _Piece:
        reader, limits = self._open(), self._limits
        until_s = self._clock.monotonic_s() + self._access.unreachable_after_ms / 1_000
        while True:
            try:
                records = reader.read(
                    partition, offset, max_records=_RECORDS_MAX, max_bytes=limits.read_bytes, wait_ms=limits.wait_ms
                )
            except PositionLost:
                earliest = reader.earliest(partition)
                if offset >= earliest:
                    raise
                return _Piece(offset, earliest, np.empty(0, np.int64), (), 0)
            if records.next_offset > offset:
                self._meter.fetches.inc()
                return self._piece_of(offset, records)
            # Its position was read once: there is something, unless the topic has lost its end.
            reader.check_offset(partition, offset + 1, offset, None)
            if self._clock.monotonic_s() > until_s:
                message = f"{self._url} partition {partition} returns no records from offset {offset} on"
                raise TopicUnreachable(message, help="check the broker; due samples are made when it answers")

    def _piece_of(self, begin: int, records: Records) -> _Piece:
        # What cannot be told apart here could not when it was first read, and is asked for by nobody.
        spans, _ = self._decoder.tell_apart(records.values)
        told = []
        for one in spans:
            shown = one.take(np.flatnonzero(one.items != 0))  # actions show none, and would stand at another's place
            told.append((shown, _place(shown.record_index, shown.item_base)))
        size_bytes = sum(one.buffer.nbytes + _EVENT_BYTES * len(one) for one in spans) + _PIECE_BYTES
        return _Piece(begin, records.next_offset, records.offsets, tuple(told), size_bytes)

    def _open(self) -> Reader:
        if self._reader is None:
            topic = open_topic(self._url, self._access, clock=self._clock)
            if topic.topic_id != self._topic_id:
                topic.close()
                raise replaced(self._url, self._topic_id, topic.topic_id)
            self._topic, self._reader = topic, topic.reader()
        return self._reader


def _place(record: Int32s | Int64s, first_item: Int32s) -> Int64s:
    return record.astype(np.int64) << 32 | first_item


def _chosen(piece: _Piece, places: Int64s, offsets: Int64s, first_item: Int32s) -> list[Spans]:
    """The spans of those impressions of a piece that are asked for, each told by its place among all asked for."""
    if not len(piece.offsets):
        return []
    record = np.minimum(np.searchsorted(piece.offsets, offsets), len(piece.offsets) - 1)
    there = piece.offsets[record] == offsets
    wanted = _place(record, first_item)
    found = []
    for spans, standing in piece.spans:
        if len(standing):
            at = np.minimum(np.searchsorted(standing, wanted), len(standing) - 1)
            hits = np.flatnonzero(there & (standing[at] == wanted))
            if len(hits):
                found.append(replace(spans.take(at[hits]), record_index=places[hits].astype(np.int32)))
    return found
