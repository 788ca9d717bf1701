"""LotEvents: the events of one lot out of one blob, as columns for a join, and as bytes.

It does not know how events become samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.errors import BadRecord
from streamlearn.ingest.join.columns import ActionColumns, ImpressionColumns
from streamlearn.struct_decoder import Decoder, packed_decoder_of

__all__ = ["DTYPES", "LotEvents", "decode_lot", "encode_lot"]


@dataclass(frozen=True, eq=False)
class LotEvents:
    """The events of one blob for one lot.

    Attributes:
        closes: Whether nothing more comes from that partition.
        watermark_ms: Event time: later events of this partition's reader are not before it, unless they are late.
        after_ms: The reader's watermark after these events; `AFTER_ALL` once both topics have ended.
    """

    lot: int
    partition: int
    closes: bool
    watermark_ms: int
    impressions: ImpressionColumns
    actions: ActionColumns
    after_ms: int

    def __len__(self) -> int:
        return len(self.impressions) + len(self.actions)

    @property
    def bytes(self) -> int:
        """Bytes of the columns."""
        return sum(column.nbytes for part in (self.impressions, self.actions) for column in vars(part).values())


_PackedLot: TypeAlias = tuple[int, int, bool, int, list[bytes], list[bytes], int]
"""The fields of `LotEvents` in their order, with columns as little-endian bytes."""
# In the order of the columns' fields.
DTYPES = {
    ImpressionColumns: ("u1", "<i8", "<i8", "<i4", "<i8", "<i4", "<u8", "<i8", "u1", "<i8"),
    ActionColumns: ("u1", "<i8", "<i8", "<i4", "<i8", "<i4", "<u8", "u1", "<f4", "<f4"),
}
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: Decoder[_PackedLot] = packed_decoder_of(_PackedLot)


def encode_lot(events: LotEvents) -> bytes:
    """Encode a lot's events."""
    columns = list(_bytes_of(events.impressions)), list(_bytes_of(events.actions))
    return _ENCODER.encode(
        (events.lot, events.partition, events.closes, events.watermark_ms, *columns, events.after_ms)
    )


def decode_lot(data: bytes) -> LotEvents:
    """Decode a lot's events as views of the bytes. Raises `BadRecord` for other bytes."""
    try:
        lot, partition, closes, watermark_ms, shown, done, after_ms = _DECODER.decode(data)
        impressions = ImpressionColumns(*_views(ImpressionColumns, shown))
        actions = ActionColumns(*_views(ActionColumns, done))
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        message = f"cannot decode the events of a lot ({len(data)} bytes): {error}"
        raise BadRecord(message, help="workers run different releases; run the same one everywhere") from error
    return LotEvents(lot, partition, closes, watermark_ms, impressions, actions, after_ms)


def _bytes_of(columns: ImpressionColumns | ActionColumns) -> Iterator[bytes]:
    for field, dtype in zip(fields(columns), DTYPES[type(columns)], strict=True):
        yield np.ascontiguousarray(getattr(columns, field.name), dtype).tobytes()


def _views(kind: type, columns: list[bytes]) -> Iterator[npt.NDArray[Any]]:
    for dtype, column in zip(DTYPES[kind], columns, strict=True):
        yield np.frombuffer(column, dtype)
