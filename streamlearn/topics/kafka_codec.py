"""The decompressor of Kafka record batches, within a budget of bytes. It does not parse the records."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

from streamlearn.errors import BadRecord, Oversize, ServiceError

__all__ = ["Decompressor"]

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES = 16
_HELP = "let producers write smaller batches, or read on from a later position"


class _BudgetExceeded(Exception):
    pass


class Decompressor:
    """Decompresses the batches of one fetch to at most `bytes_max` in total.

    It stops a codec at the end of the budget, so that a few bytes cannot become gigabytes.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = self._left_bytes = bytes_max

    def __call__(self, codec: int, data: bytes) -> bytes:
        """Return the records of a compressed batch.

        Raises Oversize beyond the rest of the budget, BadRecord for bytes that are invalid for the codec, and
        ServiceError if the codec's package is not installed.
        """
        name, decode = _CODECS.get(codec, (str(codec), _unknown))
        exceeded = False
        try:
            plain = decode(bytes(data), self._left_bytes + 1)
        except _BudgetExceeded:
            plain, exceeded = b"", True
        except ImportError:
            message = f"records are compressed with {name}, which is not installed here"
            raise ServiceError(message, help=f"`pip install kafka-python[{name}]`, or let producers use gzip") from None
        except Exception as error:
            message = f"records compressed with {name} cannot be decompressed: {error}"
            raise BadRecord(message, help="the topic holds damaged records; read on from a later position") from error
        if exceeded or len(plain) > self._left_bytes:
            message = f"{len(data)} bytes compressed with {name} expand to more than {self._bytes_max} bytes"
            raise Oversize(message, help=_HELP)
        self._left_bytes -= len(plain)
        return plain

    def charge(self, size: int) -> None:
        """Take bytes that records need beyond their declared size from the budget; raises Oversize if it is spent."""
        if size > self._left_bytes:
            left = f"{self._left_bytes} of {self._bytes_max} bytes are left"
            message = f"compressed records take {size} bytes more than they declare, but {left}"
            raise Oversize(message, help=_HELP)
        self._left_bytes -= size


def _gunzip(data: bytes, limit: int) -> bytes:
    decoder = zlib.decompressobj(wbits=31)
    return _complete(decoder.decompress(data, limit), decoder.eof, limit)


def _unsnappy(data: bytes, limit: int) -> bytes:
    snappy: Any = import_module("snappy")
    blocks = _xerial_blocks(data) if data.startswith(_XERIAL_MAGIC) else [data]
    size = sum(_snappy_bytes(block) for block in blocks)
    if size >= limit:  # blocks declare their size, and the codec refuses a wrong one
        raise _BudgetExceeded
    return b"".join(snappy.decompress(block) for block in blocks)


def _xerial_blocks(data: bytes) -> list[bytes]:
    blocks, at = [], _XERIAL_HEAD_BYTES
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        blocks.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return blocks


def _snappy_bytes(block: bytes) -> int:
    """Return the decompressed size that a block declares in a varint at its begin."""
    size = 0
    for at, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return size
    message = "a block without a length"
    raise ValueError(message)


def _unlz4(data: bytes, limit: int) -> bytes:
    frames: Any = import_module("lz4.frame")
    decoder = frames.LZ4FrameDecompressor()
    return _complete(decoder.decompress(data, max_length=limit), decoder.eof, limit)


def _unzstd(data: bytes, limit: int) -> bytes:
    zstandard: Any = import_module("zstandard")
    parts, size = [], 0
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as stream:
        while size < limit and (part := stream.read(min(limit - size, 1_048_576))):
            parts.append(part)
            size += len(part)
    return b"".join(parts)


def _complete(plain: bytes, ended: bool, limit: int) -> bytes:
    if not ended and len(plain) < limit:
        message = "incomplete"
        raise ValueError(message)
    return plain


def _unknown(data: bytes, limit: int) -> bytes:
    raise ImportError


_CODECS: dict[int, tuple[str, Callable[[bytes, int], bytes]]] = {
    1: ("gzip", _gunzip),
    2: ("snappy", _unsnappy),
    3: ("lz4", _unlz4),
    4: ("zstd", _unzstd),
}
