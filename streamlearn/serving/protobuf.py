"""Fields of protobuf messages, written and read by hand: a few messages need no generated code. It knows no message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from streamlearn.errors import BadRecord

__all__ = ["double", "fields_of", "integer", "integers", "integers_of", "nested", "varint"]

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_WIDTHS = {_EIGHT: 8, _FOUR: 4}
_UINT64 = (1 << 64) - 1


def varint(value: int) -> bytes:
    """A whole number in as few bytes as it needs; negative ones as int64 has them.

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
    """A field that holds a whole number."""
    return varint(number << 3 | _VARINT) + varint(value)


def double(number: int, packed: bytes) -> bytes:
    """A field that holds the eight bytes of a float."""
    return varint(number << 3 | _EIGHT) + packed


def nested(number: int, value: bytes) -> bytes:
    """A field that holds a text's bytes, or another message."""
    return varint(number << 3 | _BYTES) + varint(len(value)) + value


def integers(number: int, values: Iterable[int]) -> bytes:
    """A field that holds several whole numbers, packed."""
    return nested(number, b"".join(map(varint, values)))


def fields_of(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The number and the value of each field: an int where it is a varint, else its bytes.

    Raises:
        BadRecord: The message ends within a field, or holds what none has.
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
            found = f"field {number} has the unknown wire type {kind}"
            raise _bad(found)
        if at + width > len(message):
            found = f"field {number} declares {width} bytes; {len(message) - at} are left"
            raise _bad(found)
        yield number, message[at : at + width]
        at += width


def integers_of(value: int | bytes) -> list[int]:
    """The whole numbers of a field, packed or alone, as int64.

    Raises:
        BadRecord: They end within one.
    """
    if isinstance(value, int):
        return [_signed(value)]
    found, at = [], 0
    while at < len(value):
        one, at = _varint(value, at)
        found.append(_signed(one))
    return found


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(message[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & _UINT64, at + place + 1
    found = f"the number at byte {at} does not end"
    raise _bad(found)


def _bad(found: str) -> BadRecord:
    return BadRecord(f"not a protobuf message: {found}", help="check that the other side speaks this protocol")
