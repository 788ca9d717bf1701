"""Blob: many records of one partition of both topics, with their origins: the element of the pipeline.

One event per element would cost a runner more than joining it. This module does not know what the records hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.errors import BadRecord
from streamlearn.struct_decoder import Decoder, packed_decoder_of

__all__ = ["Blob", "Section", "decode_blob", "encode_blob", "lengths_of"]

Int64s = npt.NDArray[np.int64]
Bytes = Sequence[bytes | None]
_NONE = -1


@dataclass(frozen=True, eq=False)
class Section:
    """Records of one topic's partition, as columns of equal length n, in the order of their offsets.

    Attributes:
        offsets: int64[n].
        timestamps_ms: int64[n], event time.
        limits_ms: int64[n]. Events of a record with a later event time are impossible.
        keys: n keys, None where a record has none.
        values: n values.
    """

    offsets: Int64s
    timestamps_ms: Int64s
    limits_ms: Int64s
    keys: Bytes
    values: Bytes

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, eq=False)
class Blob:
    """Records of both topics.

    Attributes:
        opens: Whether this is a reader's first blob, or one with a jump of its watermark; it may be empty. Every lot
            receives it, so that lots without events report their progress too.
        closes: Whether this is a reader's last blob, which may be empty. Every lot receives it, and so learns that
            event time will not advance further.
        watermark_ms: The reader's watermark before these records.
        after_ms: The reader's watermark after these records; `AFTER_ALL` once both topics have ended. A closing blob
            with a lower value comes from a reader that was stopped.
    """

    partition: int
    opens: bool
    closes: bool
    watermark_ms: int
    impressions: Section
    actions: Section
    after_ms: int

    def __len__(self) -> int:
        return len(self.impressions) + len(self.actions)


class _Packed(msgspec.Struct, array_like=True, frozen=True):
    """Columns as bytes: offsets, timestamps and limits as int64, lengths as int32 (-1: None)."""

    offsets: bytes
    timestamps_ms: bytes
    limits_ms: bytes
    key_lengths: bytes
    keys: bytes
    value_lengths: bytes
    values: bytes


_PackedBlob: TypeAlias = tuple[int, bool, bool, int, _Packed, _Packed, int]
"""The fields of a blob, in their order."""
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: Decoder[_PackedBlob] = packed_decoder_of(_PackedBlob)


def lengths_of(texts: Bytes) -> Int64s:
    """Return the length of each text, -1 for None.

    Examples:
        >>> lengths_of([b"abc", None, b""]).tolist()
        [3, -1, 0]
    """
    try:
        return np.fromiter(map(len, texts), np.int64, len(texts))  # type: ignore[arg-type]  # usually no text is None
    except TypeError:
        return np.fromiter((_NONE if text is None else len(text) for text in texts), np.int64, len(texts))


def encode_blob(blob: Blob) -> bytes:
    """Encode a blob."""
    sections = (_packed_section(blob.impressions), _packed_section(blob.actions))
    return _ENCODER.encode((blob.partition, blob.opens, blob.closes, blob.watermark_ms, *sections, blob.after_ms))


def decode_blob(data: bytes) -> Blob:
    """Decode a blob. Raises `BadRecord` for other bytes."""
    try:
        partition, opens, closes, watermark_ms, impressions, actions, after_ms = _DECODER.decode(data)
        sections = (_unpacked_section(impressions), _unpacked_section(actions))
    except (msgspec.DecodeError, ValueError) as error:
        message = f"cannot decode a blob of events ({len(data)} bytes): {error}"
        hint = "the runner and its workers run different releases; run the same one everywhere"
        raise BadRecord(message, help=hint) from error
    return Blob(partition, opens, closes, watermark_ms, *sections, after_ms)


def _packed_section(section: Section) -> _Packed:
    return _Packed(
        section.offsets.astype("<i8").tobytes(),
        section.timestamps_ms.astype("<i8").tobytes(),
        section.limits_ms.astype("<i8").tobytes(),
        *_joined_texts(section.keys),
        *_joined_texts(section.values),
    )


def _joined_texts(texts: Bytes) -> tuple[bytes, bytes]:
    lengths = lengths_of(texts)
    present = texts if (lengths >= 0).all() else [text for text in texts if text is not None]
    return lengths.astype("<i4").tobytes(), b"".join(present)  # type: ignore[arg-type]  # None is filtered out


def _unpacked_section(packed: _Packed) -> Section:
    offsets, times, limits = (
        np.frombuffer(column, "<i8") for column in (packed.offsets, packed.timestamps_ms, packed.limits_ms)
    )
    keys, values = _split_texts(packed.key_lengths, packed.keys), _split_texts(packed.value_lengths, packed.values)
    if {len(times), len(limits), len(keys), len(values)} != {len(offsets)}:
        message = f"columns of {len(offsets)}, {len(times)}, {len(limits)}, {len(keys)}, {len(values)} values"
        raise ValueError(message)
    return Section(offsets, times, limits, keys, values)


def _split_texts(lengths: bytes, data: bytes) -> list[bytes | None]:
    sizes = np.frombuffer(lengths, "<i4")
    ends = np.cumsum(np.maximum(sizes, 0), dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    if total != len(data):
        message = f"the lengths add up to {total}, but the blob has {len(data)} bytes"
        raise ValueError(message)
    cuts = zip(sizes.tolist(), ends.tolist(), strict=True)
    return [None if size < 0 else data[stop - size : stop] for size, stop in cuts]
