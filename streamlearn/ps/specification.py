"""Specification: the table options that trainer and shards must share, and the first difference between two."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from streamlearn.struct_decoder import from_json
from streamlearn.table import TableOptions

__all__ = ["difference", "fingerprint_of", "specification_of"]

_NAMES_MAX = 8
_VALUE_CHARS_MAX = 80


def specification_of(options: Sequence[TableOptions]) -> bytes:
    """All options of tables, as JSON."""
    return msgspec.json.encode(list(options))


def fingerprint_of(options: Sequence[TableOptions]) -> bytes:
    """The digest of a specification."""
    return hashlib.sha256(specification_of(options)).digest()


def difference(local: Sequence[TableOptions], remote: bytes) -> str:
    """The first field in which tables here differ from a specification of the other side, which may be any bytes.

    Empty if the two are equal, or if the bytes are not a specification.

    Examples:
        >>> from streamlearn.features import TableSpec
        >>> here, there = ([TableOptions(TableSpec("videos", dim, 0.05), rows_max=10)] for dim in (16, 8))
        >>> difference(here, specification_of(there))
        "table 'videos': dim is 16 here, but 8 there"
    """
    try:
        there = {str(table["spec"]["name"]): table for table in from_json(remote, list[dict[str, Any]])}
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
    here: dict[str, Any] = {table.spec.name: msgspec.to_builtins(table) for table in local}
    if list(here) != list(there):
        return f"tables are {_names(here)} here, but {_names(there)} there"
    for name, table in here.items():
        for field, (is_here, is_there) in _fields(table, there[name]):
            if is_here != is_there:
                return f"table {name!r}: {field} is {_shown(is_here)} here, but {_shown(is_there)} there"
    return ""


def _fields(here: Any, there: Any, path: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the path and both values of every plain field."""
    if not (isinstance(here, Mapping) and isinstance(there, Mapping)):
        yield path.removeprefix("spec."), (here, there)
        return
    for name in (*here, *(name for name in there if name not in here)):
        yield from _fields(here.get(name), there.get(name), f"{path}.{name}" if path else str(name))


def _shown(value: object) -> str:
    try:
        return repr(value)[:_VALUE_CHARS_MAX]
    except RecursionError:  # bytes of the other side may decode to very deep nesting
        return "nested too deeply"


def _names(tables: Mapping[str, Any]) -> str:
    shown = ", ".join(repr(name)[:_VALUE_CHARS_MAX] for name in list(tables)[:_NAMES_MAX])
    return shown if len(tables) <= _NAMES_MAX else f"{shown} and {len(tables) - _NAMES_MAX} more"
