"""Decoding: JSON and plain values as what they are declared to be, in any thread. It knows no record.

msgspec makes what it knows of a struct when the struct is first decoded, and shows it to other threads before it is
whole: two threads that are first at once end the process (seen with 0.22). Here one thread makes it, the others wait.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

__all__ = ["decoder_of", "from_json", "from_plain", "packed_decoder_of"]

T = TypeVar("T")
_made: set[Any] = set()
_lock = threading.Lock()


def from_json(data: bytes | str | memoryview, kind: type[T]) -> T:
    """What JSON says.

    Raises:
        msgspec.DecodeError: It is no JSON, or no such thing.
    """
    _make(kind)
    return msgspec.json.decode(data, type=kind)


def from_plain(value: object, kind: type[T]) -> T:
    """What dictionaries, lists and numbers say.

    Raises:
        msgspec.ValidationError: It is no such thing.
    """
    _make(kind)
    return msgspec.convert(value, kind)


def decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    """What reads JSON again and again."""
    _make(kind)
    return msgspec.json.Decoder(kind)


def packed_decoder_of(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """What reads MessagePack again and again."""
    _make(kind)
    return msgspec.msgpack.Decoder(kind)


def _make(kind: Any) -> None:
    if kind not in _made:
        with _lock:
            msgspec.json.Decoder(kind)
            _made.add(kind)
