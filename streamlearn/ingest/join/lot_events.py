"""LotEvents: the events of one lot out of one blob, as columns that a join takes as they are, and as bytes.

It does not know how events become samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.errors import BadRecord
from streamlearn.ingest.join.columns import ActionColumns, ImpressionColumns
from streamlearn.struct_decoder import Decoder, packed_decoder_of

__all__ = ["DTYPES", "LotEvents", "decode_lot", "encode_lot"]


@dataclass(frozen=True, eq=False)
class LotEvents:
    """What one blob has for one lot.

    Attributes:
        lot: Which lot.
        partition: The partition they came from.
        closes: Whether nothing follows from that partition.
        watermark_ms: Event time: nothing that follows from this partition's reader is before it, but for what is late.
        impressions: Of the lot.
        actions: Of the lot.
        after_ms: The reader's watermark behind these events; `AFTER_ALL` once both topics have ended.
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
        columns = (*vars(self.impressions).values(), *vars(self.actions).values())
        return sum(one.nbytes for one in columns)


class _WholeLot(msgspec.Struct, array_like=True, frozen=True):
    """Columns as little-endian bytes, in the order of the fields above."""

    lot: int
    partition: int
    closes: bool
    watermark_ms: int
    impressions: list[bytes]
    actions: list[bytes]
    after_ms: int


# In the order of the fields above.
DTYPES = {
    ImpressionColumns: ("u1", "<i8", "<i8", "<i4", "<i8", "<i4", "<u8", "<i8", "u1", "<i8"),
    ActionColumns: ("u1", "<i8", "<i8", "<i4", "<i8", "<i4", "<u8", "u1", "<f4"),
}
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: Decoder[_WholeLot] = packed_decoder_of(_WholeLot)


def encode_lot(events: LotEvents) -> bytes:
    """A lot's events as bytes."""
    impressions, actions = (list(_bytes_of(one)) for one in (events.impressions, events.actions))
    return _ENCODER.encode(
        _WholeLot(
            events.lot, events.partition, events.closes, events.watermark_ms, impressions, actions, events.after_ms
        )
    )


def decode_lot(data: bytes) -> LotEvents:
    """A lot's events from bytes, as views of them.

    Raises:
        BadRecord: They are none.
    """
    try:
        whole = _DECODER.decode(data)
        impressions = ImpressionColumns(*_views(ImpressionColumns, whole.impressions))
        actions = ActionColumns(*_views(ActionColumns, whole.actions))
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        message = f"cannot decode the events of a lot ({len(data)} bytes): {error}"
        raise BadRecord(message, help="workers run different releases; run the same one everywhere") from error
    return LotEvents(whole.lot, whole.partition, whole.closes, whole.watermark_ms, impressions, actions, whole.after_ms)


def _bytes_of(columns: ImpressionColumns | ActionColumns) -> Iterator[bytes]:
    for field, dtype in zip(fields(columns), DTYPES[type(columns)], strict=True):
        yield np.ascontiguousarray(getattr(columns, field.name), dtype).tobytes()


def _views(kind: type, columns: list[bytes]) -> Iterator[npt.NDArray[Any]]:
    for dtype, column in zip(DTYPES[kind], columns, strict=True):
        yield np.frombuffer(column, dtype)
