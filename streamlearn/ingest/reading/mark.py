"""Mark: where a reader of both topics of a partition stands, as plain data and as bytes."""

from __future__ import annotations

import msgspec

from streamlearn.errors import BadRecord
from streamlearn.ingest.reading.watermark import BEFORE_ALL, TopicClock
from streamlearn.struct_decoder import Decoder, packed_decoder_of
from streamlearn.topics import Position

__all__ = ["PairMark", "decode_marks", "encode_marks"]


class PairMark(msgspec.Struct, frozen=True):
    """From where two topics of one partition are read on, and what time it is there.

    Attributes:
        impressions: The first offset that was not given away.
        actions: The same of the other topic.
        clocks: Of both.
        watermark_ms: What was said last.
        opened: Whether the opening blob was given away.
        closed: Whether the closing blob was.
    """

    impressions: Position
    actions: Position
    clocks: tuple[TopicClock, TopicClock] = (TopicClock(), TopicClock())
    watermark_ms: int = BEFORE_ALL
    opened: bool = False
    closed: bool = False


_ENCODER = msgspec.msgpack.Encoder()
_DECODER: Decoder[tuple[PairMark, ...]] = packed_decoder_of(tuple[PairMark, ...])


def encode_marks(marks: tuple[PairMark, ...]) -> bytes:
    """Marks of several partitions as bytes, equal for equal marks."""
    return _ENCODER.encode(marks)


def decode_marks(data: bytes) -> tuple[PairMark, ...]:
    """Marks from bytes.

    Raises:
        BadRecord: They are none.
    """
    try:
        return _DECODER.decode(data)
    except msgspec.DecodeError as error:
        message = f"cannot decode the marks of a reader ({len(data)} bytes): {error}"
        raise BadRecord(
            message, help="the checkpoint is from another release; start without it, from what is acknowledged"
        ) from error
