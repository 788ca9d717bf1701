"""Decoding of JSON, MessagePack and plain values into declared types, safe in any thread.

msgspec builds its data about a struct at the first decode, and other threads see it before it is complete: two threads
that decode first at the same time crash the process (seen with 0.22). Here one thread builds it and the others wait.

For bad bytes from outside, msgspec raises three kinds of errors, and a struct's own checks raise a fourth. Here all of
them become `msgspec.DecodeError`, so that a caller can catch one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from streamlearn.errors import StreamlearnError

__all__ = ["Decoder", "decoder_of", "from_json", "from_plain", "packed_decoder_of"]

T = TypeVar("T")
_prepared: set[Any] = set()
_lock = threading.Lock()


def from_json(data: bytes | str | memoryview, kind: type[T]) -> T:
    """Decode JSON; raises msgspec.DecodeError if it is invalid or not of this type."""
    decoder: Decoder[T] = decoder_of(kind)
    return decoder.decode(data)


def from_plain(value: object, kind: type[T]) -> T:
    """Convert dictionaries, lists and numbers; raises msgspec.ValidationError if they are not of this type."""
    _prepare(kind)
    return msgspec.convert(value, kind)


class Decoder(Generic[T]):
    """Decodes bytes of one type, again and again, with a decode method of msgspec."""

    def __init__(self, decode: Callable[[Any], T]) -> None:
        self._decode = decode

    def decode(self, data: bytes | str | memoryview) -> T:
        """Decode bytes; raises msgspec.DecodeError if they are damaged, nested too deeply, or not of the type."""
        try:
            return self._decode(data)
        except (UnicodeError, RecursionError, StreamlearnError) as error:
            raise msgspec.DecodeError(str(error)) from error


def decoder_of(kind: Any) -> Decoder[Any]:
    """Return a reusable decoder of JSON."""
    _prepare(kind)
    return Decoder(msgspec.json.Decoder(kind).decode)


def packed_decoder_of(kind: Any) -> Decoder[Any]:
    """Return a reusable decoder of MessagePack."""
    _prepare(kind)
    return Decoder(msgspec.msgpack.Decoder(kind).decode)


def _prepare(kind: Any) -> None:
    if kind not in _prepared:
        with _lock:
            msgspec.json.Decoder(kind)
            _prepared.add(kind)
