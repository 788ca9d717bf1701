"""Registry codec: what a registry keeps, as bytes and back. It does not know where they are kept."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from streamlearn.errors import RegistryDefect, VersionDefect
from streamlearn.struct_decoder import from_json
from streamlearn.versions.format.record import decode_record, encode_record
from streamlearn.versions.pointer.moves import Pointer
from streamlearn.versions.pointer.registry import Ack, Node, Note

__all__ = ["REBUILD_HELP", "by_name", "decode", "decode_pointer", "encode", "note_order"]

REBUILD_HELP = "the registry only holds copies: rebuild it from the store"

Kind = TypeVar("Kind", bound=Struct)
Named = TypeVar("Named", Node, Ack)


def encode(what: Struct) -> bytes:
    """The bytes of anything a registry keeps; a pointer's check themselves."""
    return encode_record(what) if isinstance(what, Pointer) else msgspec.json.encode(what)


def decode(data: bytes, kind: type[Kind], where: str) -> Kind:
    """Read what a registry kept.

    Raises:
        RegistryDefect: It is no such thing.
    """
    try:
        return from_json(data, kind)
    except msgspec.DecodeError as error:
        raise _defect(where, f"cannot decode {kind.__name__.lower()} ({len(data)} bytes): {error}") from None


def decode_pointer(data: bytes, where: str) -> Pointer:
    """Read the copy of the pointer.

    Raises:
        RegistryDefect: It is damaged, or no pointer.
    """
    try:
        return decode_record(data, Pointer, "the copy of the pointer")
    except VersionDefect as error:
        raise _defect(where, error.message) from None


def by_name(found: list[Named]) -> list[Named]:
    """Nodes or acks in the order they are given in."""
    return sorted(found, key=lambda one: (one.name, one.boot_id))


def note_order(note: Note) -> tuple[int, int, bytes]:
    """Where a line of the audit log stands."""
    return note.wall_ms, note.seq, encode(note)


def _defect(where: str, what: str) -> RegistryDefect:
    message = f"the registry at {where} holds {what[:500]}"
    return RegistryDefect(message, help=REBUILD_HELP)
