"""Protobuf fields, encoded and decoded by hand: a few messages need no generated code. It knows no message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from streamlearn.errors import BadRecord

__all__ = ["double", "fields_of", "integer", "integers", "integers_of", "nested", "varint"]

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_WIDTHS = {_EIGHT: 8, _FOUR: 4}
_UINT64 = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Encode an integer as a varint; negative ones as int64.

    Examples:
        >>> varint(300).hex(), len(varint(-1))
        ('ac02', 10)
    """
    value &= _UINT64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer(number: int, value: int) -> bytes:
    """Encode a varint field."""
    return varint(number << 3 | _VARINT) + varint(value)


def double(number: int, packed: bytes) -> bytes:
    """Encode a field with the eight bytes of a float."""
    return varint(number << 3 | _EIGHT) + packed


def nested(number: int, value: bytes) -> bytes:
    """Encode a field with the bytes of a string or of a nested message."""
    return varint(number << 3 | _BYTES) + varint(len(value)) + value


def integers(number: int, values: Iterable[int]) -> bytes:
    """Encode a packed repeated field of varints."""
    return nested(number, b"".join(map(varint, values)))


def fields_of(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field: an int for a varint, else its bytes.

    Raises:
        BadRecord: The message ends inside a field, or has an unknown wire type.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            width, at = _varint(message, at)
        elif kind in _WIDTHS:
            width = _WIDTHS[kind]
        else:
            reason = f"field {number} has the unknown wire type {kind}"
            raise _bad(reason)
        if at + width > len(message):
            reason = f"field {number} declares {width} bytes; {len(message) - at} are left"
            raise _bad(reason)
        yield number, message[at : at + width]
        at += width


def integers_of(value: int | bytes) -> list[int]:
    """Decode the integers of a field, packed or single, as int64."""
    if isinstance(value, int):
        return [_signed(value)]
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(_signed(number))
    return numbers


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(message[at : at + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & _UINT64, at + index + 1
    reason = f"the number at byte {at} does not end"
    raise _bad(reason)


def _bad(reason: str) -> BadRecord:
    return BadRecord(f"not a protobuf message: {reason}", help="check that the other side speaks this protocol")
