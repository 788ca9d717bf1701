"""LotEvents: the events of one lot out of one blob, as arrays that a join takes as they are, and as bytes.

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

__all__ = ["DTYPES", "LotActions", "LotEvents", "LotImpressions", "decode_lot", "encode_lot"]

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Uint64s = npt.NDArray[np.uint64]
Uint8s = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class LotImpressions:
    """Impressions of one lot: n of them, with N items in all.

    Attributes:
        request_ids: uint8. Request ids, end to end.
        request_at: int64[n+1]. Where each begins.
        event_time_ms: int64[n]. Event times.
        partition: int32[n]. Identity: the partition.
        offset: int64[n]. Identity: the offset of its record.
        first_item: int32[n]. Identity: the index, within its record, of its first item.
        items: uint64[N]. Keys of the items shown.
        items_at: int64[n+1]. Where each impression's begin.
        payload: uint8. The impressions themselves, in today's schema with their framing, end to end.
        payload_at: int64[n+1]. Where each begins.
    """

    request_ids: Uint8s
    request_at: Int64s
    event_time_ms: Int64s
    partition: Int32s
    offset: Int64s
    first_item: Int32s
    items: Uint64s
    items_at: Int64s
    payload: Uint8s
    payload_at: Int64s

    def __len__(self) -> int:
        return len(self.event_time_ms)


@dataclass(frozen=True, eq=False)
class LotActions:
    """Actions of one lot: n of them.

    Attributes:
        request_ids: uint8. Request ids, end to end.
        request_at: int64[n+1]. Where each begins.
        event_time_ms: int64[n]. Event times.
        partition: int32[n]. Where each came from: the partition.
        offset: int64[n]. The offset of its record.
        event_index: int32[n]. Which event of its record.
        items: uint64[n]. Key of the item acted on.
        codes: uint8[n]. What was done: the place in `App.actions`.
        weights: float32[n]. How much the positive weighs.
    """

    request_ids: Uint8s
    request_at: Int64s
    event_time_ms: Int64s
    partition: Int32s
    offset: Int64s
    event_index: Int32s
    items: Uint64s
    codes: Uint8s
    weights: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.event_time_ms)


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
    """

    lot: int
    partition: int
    closes: bool
    watermark_ms: int
    impressions: LotImpressions
    actions: LotActions

    def __len__(self) -> int:
        return len(self.impressions) + len(self.actions)


class _Whole(msgspec.Struct, array_like=True, frozen=True):
    """Columns as little-endian bytes, in the order of the fields above."""

    lot: int
    partition: int
    closes: bool
    watermark_ms: int
    impressions: list[bytes]
    actions: list[bytes]


# In the order of the fields above.
DTYPES = {
    LotImpressions: ("u1", "<i8", "<i8", "<i4", "<i8", "<i4", "<u8", "<i8", "u1", "<i8"),
    LotActions: ("u1", "<i8", "<i8", "<i4", "<i8", "<i4", "<u8", "u1", "<f4"),
}
_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(_Whole)


def encode_lot(events: LotEvents) -> bytes:
    """A lot's events as bytes."""
    impressions, actions = (list(_bytes_of(one)) for one in (events.impressions, events.actions))
    return _ENCODER.encode(
        _Whole(events.lot, events.partition, events.closes, events.watermark_ms, impressions, actions)
    )


def decode_lot(data: bytes) -> LotEvents:
    """A lot's events from bytes, as views of them.

    Raises:
        BadRecord: They are none.
    """
    try:
        whole = _DECODER.decode(data)
        impressions = LotImpressions(*_views(LotImpressions, whole.impressions))
        actions = LotActions(*_views(LotActions, whole.actions))
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        message = f"{len(data)} bytes are no events of a lot: {error}"
        raise BadRecord(message, help="workers run different releases; run one everywhere") from error
    return LotEvents(whole.lot, whole.partition, whole.closes, whole.watermark_ms, impressions, actions)


def _bytes_of(columns: LotImpressions | LotActions) -> Iterator[bytes]:
    for field, dtype in zip(fields(columns), DTYPES[type(columns)], strict=True):
        yield np.ascontiguousarray(getattr(columns, field.name), dtype).tobytes()


def _views(kind: type, columns: list[bytes]) -> Iterator[npt.NDArray[Any]]:
    for dtype, column in zip(DTYPES[kind], columns, strict=True):
        yield np.frombuffer(column, dtype)
