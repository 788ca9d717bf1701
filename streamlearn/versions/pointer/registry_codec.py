"""Registry codec: the contents of a registry as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from streamlearn.errors import RegistryDefect, VersionDefect
from streamlearn.struct_decoder import from_json
from streamlearn.versions.format.record import decode_record, encode_record
from streamlearn.versions.pointer.moves import Pointer
from streamlearn.versions.pointer.registry import Ack, Node, Note

__all__ = [
    "NODES_MAX", "REBUILD_HELP", "by_name", "decode", "decode_nodes", "decode_pointer", "encode", "note_order"
]  # fmt: skip

# Most nodes that are listed.
NODES_MAX = 10_000
REBUILD_HELP = "the registry only holds copies: rebuild it from the store"

Kind = TypeVar("Kind", bound=Struct)
Named = TypeVar("Named", Node, Ack)


def encode(content: Struct) -> bytes:
    """Encode any content of a registry; a pointer carries its checksum."""
    return encode_record(content) if isinstance(content, Pointer) else msgspec.json.encode(content)


def decode(data: bytes, kind: type[Kind], url: str) -> Kind:
    """Decode content of a registry; raises `RegistryDefect`."""
    try:
        return from_json(data, kind)
    except msgspec.DecodeError as error:
        raise _defect(url, f"cannot decode {kind.__name__.lower()} ({len(data)} bytes): {error}") from None


def decode_pointer(data: bytes, url: str) -> Pointer:
    """Decode the copy of the pointer; raises `RegistryDefect`."""
    try:
        return decode_record(data, Pointer, "the copy of the pointer")
    except VersionDefect as error:
        raise _defect(url, error.message) from None


def decode_nodes(rows: Sequence[bytes], url: str) -> list[Node]:
    """Decode and sort nodes; raises `RegistryDefect` if there are too many, because some of them would mislead."""
    if len(rows) > NODES_MAX:
        message = f"the registry at {url} lists more than {NODES_MAX:,} nodes"
        raise RegistryDefect(message, help=REBUILD_HELP)
    return by_name([decode(data, Node, url) for data in rows])


def by_name(contents: list[Named]) -> list[Named]:
    """Sort nodes or acks by name and boot id."""
    return sorted(contents, key=lambda content: (content.name, content.boot_id))


def note_order(note: Note) -> tuple[int, int, bytes]:
    """Return the sort key of a line of the audit log."""
    return note.wall_ms, note.seq, encode(note)


def _defect(url: str, what: str) -> RegistryDefect:
    message = f"a record in the registry at {url} is damaged: {what[:500]}"
    return RegistryDefect(message, help=REBUILD_HELP)
