"""Decoding: JSON and plain values as what they are declared to be, in any thread. It knows no record.

msgspec makes what it knows of a struct when the struct is first decoded, and shows it to other threads before it is
whole: two threads that are first at once end the process (seen with 0.22). Here one thread makes it, the others wait.

Bytes come from outside. msgspec raises three kinds of errors for bad ones, and a struct's own checks raise a fourth;
here all of them become `msgspec.DecodeError`, so that a caller catches one and misses none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from streamlearn.errors import StreamlearnError

__all__ = ["Decoder", "decoder_of", "from_json", "from_plain", "packed_decoder_of"]

T = TypeVar("T")
_made: set[Any] = set()
_lock = threading.Lock()


def from_json(data: bytes | str | memoryview, kind: type[T]) -> T:
    """What JSON says.

    Raises:
        msgspec.DecodeError: It is no JSON, or no such thing.
    """
    decoder: Decoder[T] = decoder_of(kind)
    return decoder.decode(data)


def from_plain(value: object, kind: type[T]) -> T:
    """What dictionaries, lists and numbers say.

    Raises:
        msgspec.ValidationError: It is no such thing.
    """
    _make(kind)
    return msgspec.convert(value, kind)


class Decoder(Generic[T]):
    """Reads bytes of one kind again and again.

    Args:
        decode: Of msgspec.
    """

    def __init__(self, decode: Callable[[Any], T]) -> None:
        self._decode = decode

    def decode(self, data: bytes | str | memoryview) -> T:
        """What the bytes say.

        Raises:
            msgspec.DecodeError: They are damaged, nested too deeply, or no such thing.
        """
        try:
            return self._decode(data)
        except (UnicodeError, RecursionError, StreamlearnError) as error:
            raise msgspec.DecodeError(str(error)) from error


def decoder_of(kind: Any) -> Decoder[Any]:
    """What reads JSON again and again."""
    _make(kind)
    return Decoder(msgspec.json.Decoder(kind).decode)


def packed_decoder_of(kind: Any) -> Decoder[Any]:
    """What reads MessagePack again and again."""
    _make(kind)
    return Decoder(msgspec.msgpack.Decoder(kind).decode)


def _make(kind: Any) -> None:
    if kind not in _made:
        with _lock:
            msgspec.json.Decoder(kind)
            _made.add(kind)
