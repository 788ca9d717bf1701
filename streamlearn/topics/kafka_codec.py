"""The decompressor of Kafka record batches, within a budget of bytes. It does not parse the records."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from streamlearn.errors import BadRecord, Oversize, ServiceError

__all__ = ["Decompressor", "pieces_of"]

_PIECE_BYTES = 1_048_576

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES = 16
_SNAPPY_RATIO_MAX = 32
"""More than snappy can reach: a copy of 64 bytes takes 3."""
_HELP = "let producers write smaller batches, or read on from a later position"


class _BudgetExceeded(Exception):
    pass


class Decompressor:
    """Decompresses the batches of one scan to at most `bytes_max` in total.

    It stops a codec at the end of the budget, so that a few bytes cannot become gigabytes.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = self._left_bytes = bytes_max
        self.batches = 0  # how many have fitted

    @property
    def spent_bytes(self) -> int:
        """The bytes taken from the budget."""
        return self._bytes_max - self._left_bytes

    def __call__(self, codec: int, data: bytes) -> bytes:
        """Return the records of a compressed batch.

        Raises Oversize beyond the rest of the budget, BadRecord for bytes that are invalid for the codec, and
        ServiceError if the codec's package is not installed.
        """
        parts, size = [], 0
        try:
            for piece in pieces_of(codec, data, self._left_bytes):
                size += len(piece)
                if size > self._left_bytes:
                    raise _BudgetExceeded
                parts.append(piece)
        except _BudgetExceeded:
            name = _CODECS[codec][0]
            message = f"{len(data)} bytes compressed with {name} expand to more than {self._bytes_max} bytes"
            raise Oversize(message, help=_HELP) from None
        self._left_bytes -= size
        return b"".join(parts)

    def charge(self, size: int) -> None:
        """Take bytes that records need beyond their declared size from the budget; raises Oversize if it is spent."""
        if size > self._left_bytes:
            left = f"{self._left_bytes} of {self._bytes_max} bytes are left"
            message = f"compressed records take {size} bytes more than they declare, but {left}"
            raise Oversize(message, help=_HELP)
        self._left_bytes -= size
        self.batches += 1


def pieces_of(codec: int, data: bytes, limit: float = math.inf) -> Iterator[bytes]:
    """Decompress a batch piece by piece; a codec that does not work in pieces refuses more than `limit` bytes.

    Raises BadRecord and ServiceError, as Decompressor does.
    """
    name, pieces = _CODECS.get(codec, (str(codec), _unknown))
    try:
        yield from filter(None, pieces(bytes(data), limit))
    except _BudgetExceeded:
        raise
    except ImportError:
        message = f"records are compressed with {name}, which is not installed here"
        raise ServiceError(message, help=f"`pip install kafka-python[{name}]`, or let producers use gzip") from None
    except Exception as error:
        message = f"records compressed with {name} cannot be decompressed: {error}"
        raise BadRecord(message, help="the topic holds damaged records; read on from a later position") from error


def _gunzip(data: bytes, limit: float) -> Iterator[bytes]:
    decoder = zlib.decompressobj(wbits=31)
    while not decoder.eof:
        piece = decoder.decompress(data, _PIECE_BYTES)
        data = decoder.unconsumed_tail
        yield _complete(piece, decoder.eof)


def _unsnappy(data: bytes, limit: float) -> Iterator[bytes]:
    snappy: Any = import_module("snappy")
    blocks = _xerial_blocks(data) if data.startswith(_XERIAL_MAGIC) else [data]
    if sum(map(_snappy_bytes, blocks)) > limit:  # blocks declare their size, and the codec refuses a wrong one
        raise _BudgetExceeded
    for block in blocks:
        if _snappy_bytes(block) > len(block) * _SNAPPY_RATIO_MAX:
            message = "a block that declares more than it can hold"
            raise ValueError(message)
        yield snappy.decompress(block)


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


def _unlz4(data: bytes, limit: float) -> Iterator[bytes]:
    frames: Any = import_module("lz4.frame")
    decoder = frames.LZ4FrameDecompressor()
    while not decoder.eof:
        piece = decoder.decompress(data, max_length=_PIECE_BYTES)
        data = b""  # the decoder keeps the rest
        yield _complete(piece, decoder.eof)


def _unzstd(data: bytes, limit: float) -> Iterator[bytes]:
    zstandard: Any = import_module("zstandard")
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as stream:
        while piece := stream.read(_PIECE_BYTES):
            yield piece


def _complete(piece: bytes, ended: bool) -> bytes:
    if not piece and not ended:
        message = "incomplete"
        raise ValueError(message)
    return piece


def _unknown(data: bytes, limit: float) -> Iterator[bytes]:
    raise ImportError


_CODECS: dict[int, tuple[str, Callable[[bytes, float], Iterator[bytes]]]] = {
    1: ("gzip", _gunzip),
    2: ("snappy", _unsnappy),
    3: ("lz4", _unlz4),
    4: ("zstd", _unzstd),
}
