"""One Avro record of columns as bytes, each copied once: records, arrays, texts, bytes and integers; no unions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamlearn.errors import BadRecord
from streamlearn.schemas.schema import Schema

__all__ = ["write_columns"]


def write_columns(schema: Schema, value: Mapping[str, Any]) -> bytes:
    """Encode one record with its framing, as `Schema.write` does; arrays stand for their bytes.

    Raises:
        BadRecord: The value does not fit the schema.
    """
    pieces: list[Any] = [schema.prefix]
    try:
        _put(schema.json, value, pieces)
        return b"".join(pieces)
    except (ValueError, TypeError, KeyError, AttributeError, BufferError) as error:
        message = f"cannot encode the value as {schema.name}: {error}"
        raise BadRecord(message, help=f"see the schema of {schema.name}") from error


def _put(kind: Any, value: Any, pieces: list[Any]) -> None:
    name = kind["type"] if isinstance(kind, dict) else kind
    if name == "bytes":
        pieces += (_varint(memoryview(value).nbytes), value)
    elif name == "string":
        text = value.encode()
        pieces += (_varint(len(text)), text)
    elif name in ("int", "long"):
        pieces.append(_varint(value))
    elif name == "array":
        pieces += [_varint(len(value))] if value else []
        for item in value:
            _put(kind["items"], item, pieces)
        pieces.append(b"\0")
    elif name == "record" and value.keys() == {field["name"] for field in kind["fields"]}:
        for field in kind["fields"]:
            _put(field["type"], value[field["name"]], pieces)
    else:
        message = f"a {name} cannot be made of {list(value) if isinstance(value, dict) else type(value)}"
        raise ValueError(message)


def _varint(value: int) -> bytes:
    """Return a number as Avro writes it.

    Examples:
        >>> [_varint(value).hex() for value in (0, -1, 1, 64, 2**40)]
        ['00', '01', '02', '8001', '808080808040']
    """
    left, out = value << 1 if value >= 0 else ~(value << 1), bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)
