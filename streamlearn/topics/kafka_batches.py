"""The decoder of fetched record batches, within a bound of memory for all partitions of a reader.

Compressed batches may expand a thousandfold. One that is too large to hold is decompressed piece by piece and comes in
parts, each from one read. The decoder does not know the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamlearn.errors import Oversize
from streamlearn.native import native
from streamlearn.topics.kafka_codec import Decompressor, pieces_of
from streamlearn.topics.kafka_link import Fetched
from streamlearn.topics.settings import AccessSettings

__all__ = ["BatchDecoder", "Decoded"]

_HEAD_BYTES, _PREFIX_BYTES, _CHECKED_FROM = 61, 12, 21
_CODEC_AT, _LAST_DELTA_AT, _COUNT_AT = 22, 23, 57
_CODEC_BITS = 7
_FRAME_BYTES = 72
"""Memory of a record beside its bytes."""
_FIELDS_BYTES = 64
"""More than the fields of a record take beside key and value."""
_VARINT_BYTES_MAX = 10
_KEY_BYTES_MAX = 4_096
_RATIO = 16
"""Batches that expand up to this factor are held whole, unless others take the memory."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Records of one partition."""

    columns: tuple[NDArray[np.int64], NDArray[np.int64], list[bytes | None], list[bytes | None]]
    next_offset: int
    leader_epochs: list[tuple[int, int]]
    held_bytes: int  # memory of records that were compressed
    lost_from: int = -1  # the first offset that is skipped, if the batch expands to more than a batch may


@dataclass(frozen=True, slots=True)
class _Part:
    """Records of a batch as an uncompressed batch."""

    batch: bytes
    next_offset: int
    is_last: bool
    lost_from: int = -1


class BatchDecoder:
    """Decodes what a reader fetches. Compressed records take at most twice `record_bytes_max`, and 16 times the answer.

    Guaranteed: a compressed record beyond `record_bytes_max` may come cut, and one empty record, with the offset of
    a batch's last, stands for what expands beyond `decompressed_bytes_max`.
    """

    def __init__(self, access: AccessSettings) -> None:
        self._access = access
        self._bytes_max = 2 * (access.record_bytes_max + _KEY_BYTES_MAX)  # and `_RATIO` times what was fetched
        self._rest: tuple[int, int, Iterator[_Part]] | None = None  # partition, offset, parts from there on

    def decode(self, partition: int, offset: int, fetched: Fetched, held_bytes: int) -> Decoded | None:
        """Return records from an offset on, or None if they do not fit beside `held_bytes` of others.

        Raises BadRecord or ValueError for damaged bytes, and ServiceError if a codec is not installed.
        """
        if self._rest is not None and self._rest[:2] == (partition, offset):
            if held_bytes:
                return None
            parts = self._rest[2]
        else:
            bytes_max = self._bytes_max + _RATIO * len(fetched.data)
            unpack = Decompressor(max(0, bytes_max - held_bytes))
            try:
                return _scan(fetched.data, offset, fetched, unpack)
            except Oversize:
                before = _before(fetched.data, unpack.batches)
            if before:
                return _scan(before, offset, fetched, Decompressor(bytes_max))
            if held_bytes:
                return None
            first = fetched.data[: _batch_bytes(fetched.data, 0)]
            parts = _parts_of(first, offset, self._access)
        self._rest = None
        part = next(parts)
        if not part.is_last:
            self._rest = (partition, part.next_offset, parts)
        columns, _, epochs = native.scan_kafka_batches(part.batch, offset, fetched.aborted, Decompressor(0))
        held_bytes = len(part.batch) + _FRAME_BYTES * len(columns[0])
        return Decoded(columns, part.next_offset, epochs, held_bytes, part.lost_from)


def _scan(data: bytes, offset: int, fetched: Fetched, unpack: Decompressor) -> Decoded:
    columns, next_offset, epochs = native.scan_kafka_batches(data, offset, fetched.aborted, unpack)
    return Decoded(columns, next_offset, epochs, unpack.spent_bytes)


def _before(data: bytes, count: int) -> bytes:
    """Return the batches before the one that follows `count` compressed ones and is compressed too."""
    at = 0
    while not (is_compressed := data[at + _CODEC_AT] & _CODEC_BITS) or count:
        count -= bool(is_compressed)
        at += _batch_bytes(data, at)
    return data[:at]


def _batch_bytes(data: bytes, at: int) -> int:
    return _PREFIX_BYTES + _int(data, at + 8)


def _parts_of(batch: bytes, offset: int, access: AccessSettings) -> Iterator[_Part]:
    """Yield the records of a compressed batch from an offset on; what is suspended between parts takes little memory.

    `spent` counts what the records would take at once, decompressed or not.
    """
    base, last = _int(batch, 0, 8), _int(batch, 0, 8) + _int(batch, _LAST_DELTA_AT)
    stream = _Stream(pieces_of(batch[_CODEC_AT] & _CODEC_BITS, batch[_HEAD_BYTES:]))
    body, records, spent, lost_from = bytearray(), 0, 0, -1
    for _ in range(_int(batch, _COUNT_AT)):
        size = stream.varint()
        spent += size + _FRAME_BYTES
        if size < 0:
            message = f"a record of {size} bytes"
            raise ValueError(message)
        if spent > access.decompressed_bytes_max and offset <= last:
            lost_from = offset
            break
        kept = min(size, access.record_bytes_max + _FIELDS_BYTES)
        if records and len(body) + kept + _FRAME_BYTES * records > access.record_bytes_max:
            plain, records = _plain(batch, body, records), 0
            body.clear()
            yield _Part(plain, offset, is_last=False)
            del plain
        record = stream.take(kept)
        stream.skip(size - kept)
        _, at = _varint(record, 1)
        delta, _ = _varint(record, at)
        if base + delta >= offset:
            record = record if kept == size else _cut(record, access.record_bytes_max)
            body += _put_varint(len(record)) + record
            records, offset = records + 1, base + delta + 1
        del record
    if lost_from >= 0:
        stand_in = b"\0\0" + _put_varint(last - base) + b"\1\0\0"  # no key, an empty value
        body += _put_varint(len(stand_in)) + stand_in
        records += 1
    yield _Part(_plain(batch, body, records), last + 1, is_last=True, lost_from=lost_from)


def _cut(record: bytes, bytes_max: int) -> bytes:
    """Return the beginning of a record as a record, with a value just beyond the limit if there was one."""
    _, at = _varint(record, 1)
    _, at = _varint(record, at)
    fields = record[:at]
    size, at = _varint(record, at)
    key = None if size < 0 else record[at : at + min(size, _KEY_BYTES_MAX)]
    at += max(size, 0)
    value: bytes | None = b""
    if at + _VARINT_BYTES_MAX < len(record):
        size, at = _varint(record, at)
        value = None if size < 0 else record[at : at + min(size, bytes_max + 1)]
    return b"".join((fields, *_part(key), *_part(value), b"\0"))


def _plain(batch: bytes, body: bytearray, records: int) -> bytes:
    """Return the batch with other records, uncompressed."""
    attributes = batch[_CODEC_AT] & ~_CODEC_BITS
    head = batch[_CHECKED_FROM:_CODEC_AT] + bytes([attributes]) + batch[_CODEC_AT + 1 : _COUNT_AT]
    tail = b"".join((head, records.to_bytes(4, "big"), body))
    length = (len(tail) + _CHECKED_FROM - _PREFIX_BYTES).to_bytes(4, "big")
    checksum = native.crc32c(tail).to_bytes(4, "big")
    return b"".join((batch[:8], length, batch[_PREFIX_BYTES : _CHECKED_FROM - 4], checksum, tail))


class _Stream:
    """Reads decompressed pieces as one run of bytes, and keeps only the current piece."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._piece, self._at = pieces, b"", 0

    def varint(self) -> int:
        while len(self._piece) - self._at < _VARINT_BYTES_MAX and (more := next(self._pieces, b"")):
            self._piece, self._at = self._piece[self._at :] + more, 0
        value, self._at = _varint(self._piece, self._at)
        return value

    def take(self, size: int) -> bytes:
        begin, end = self._at, self._at + size
        if end > len(self._piece):
            return b"".join(self._runs(size))
        self._at = end
        return self._piece[begin:end]

    def skip(self, size: int) -> None:
        for _ in self._runs(size):
            pass

    def _runs(self, size: int) -> Iterator[bytes]:
        while size:
            if self._at == len(self._piece):
                self._piece, self._at = next(self._pieces, b"") or _ended(), 0
            run = self._piece[self._at : self._at + size]
            self._at, size = self._at + len(run), size - len(run)
            yield run


def _ended() -> bytes:
    message = "a batch that ends within a record"
    raise ValueError(message)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = data[at]
        at, raw, shift = at + 1, raw | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80 or shift == 7 * _VARINT_BYTES_MAX:
            return (raw >> 1) ^ -(raw & 1), at


def _put_varint(value: int) -> bytes:
    raw, out = 2 * value, bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def _part(data: bytes | None) -> tuple[bytes, bytes]:
    return (b"\1", b"") if data is None else (_put_varint(len(data)), data)


def _int(data: bytes, at: int, size: int = 4) -> int:
    return int.from_bytes(data[at : at + size], "big", signed=True)
