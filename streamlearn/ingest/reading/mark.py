"""Mark: the position of a reader of both topics of a partition, as plain data and as bytes."""

from __future__ import annotations

import msgspec

from streamlearn.errors import BadRecord
from streamlearn.ingest.reading.watermark import AFTER_ALL, BEFORE_ALL, TopicClock
from streamlearn.struct_decoder import Decoder, packed_decoder_of
from streamlearn.topics import Position

__all__ = ["PairMark", "decode_marks", "encode_marks"]


class PairMark(msgspec.Struct, frozen=True):
    """The position from which a reader of both topics of one partition continues.

    Attributes:
        impressions: The first offset that was not emitted.
        actions: The first offset that was not emitted.
        watermark_ms: The last emitted watermark.
        latest_ms: The latest timestamp of the records before either position; `AFTER_ALL` if unknown.
        opened: Whether the opening blob was emitted.
        closed: Whether the closing blob was emitted.
    """

    impressions: Position
    actions: Position
    clocks: tuple[TopicClock, TopicClock] = (TopicClock(), TopicClock())
    watermark_ms: int = BEFORE_ALL
    opened: bool = False
    closed: bool = False
    latest_ms: tuple[int, int] = (AFTER_ALL, AFTER_ALL)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER: Decoder[tuple[PairMark, ...]] = packed_decoder_of(tuple[PairMark, ...])


def encode_marks(marks: tuple[PairMark, ...]) -> bytes:
    """Encode the marks of several partitions. Equal marks have equal bytes."""
    return _ENCODER.encode(marks)


def decode_marks(data: bytes) -> tuple[PairMark, ...]:
    """Decode marks. Raises `BadRecord` for other bytes."""
    try:
        return _DECODER.decode(data)
    except msgspec.DecodeError as error:
        message = f"cannot decode the marks of a reader ({len(data)} bytes): {error}"
        hint = "the checkpoint is from another release; start without it: the run continues from acknowledged progress"
        raise BadRecord(message, help=hint) from error
