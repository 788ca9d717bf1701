"""Record: a JSON document in the store that checks itself. It does not know what is said in one.

The last field of its bytes, `check`, is the sha256 of all before it: nothing else names the newest record of a log, so
that a flipped bit in one would be another truth.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from streamlearn.struct_decoder import from_json
from streamlearn.versions.store.defect import defective

__all__ = ["Digest", "Record", "VersionRef", "decode_record", "encode_record"]

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

_CHECK = b',"check":"'
_CHECK_BYTES = len(_CHECK) + 64 + len(b'"}')


class VersionRef(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A version, so that no other can stand in its place.

    Attributes:
        version: Its number.
        run: The run that wrote it.
        sha256: Of its manifest.
    """

    version: Annotated[int, Meta(ge=1, le=10**12 - 1)]
    run: Annotated[int, Meta(ge=0, le=10**8 - 1)]
    sha256: Digest

    def __str__(self) -> str:
        return f"{self.version} of run {self.run}"


class Record(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every record has; its last field in the file is the check.

    Attributes:
        format: Of the record; another one is refused.
        check: The sha256 of all bytes before this field.
    """

    format: Annotated[int, Meta(ge=1, le=1)] = 1
    check: Digest | UnsetType = UNSET


class _Format(Struct):
    """All that is asked of a record before its format is known."""

    format: int


Kind = TypeVar("Kind", bound=Struct)


def encode_record(record: Struct) -> bytes:
    """The bytes of a record, whose field `check` is not looked at."""
    body = msgspec.json.encode(msgspec.structs.replace(record, check=UNSET))[: -len(b"}")]
    return body + _CHECK + hashlib.sha256(body).hexdigest().encode() + b'"}'


def decode_record(data: bytes | memoryview, kind: type[Kind], path: str, *, format: int = 1, help: str = "") -> Kind:
    """Read a record.

    Args:
        data: Its bytes.
        kind: What it is to be.
        path: Where they are from, for the error.
        format: The format that is read.
        help: What to do about one that is damaged.

    Raises:
        VersionDefect: They are damaged, of another format, or no such record.
    """
    raw = bytes(data)
    body, check = raw[:-_CHECK_BYTES], raw[-_CHECK_BYTES:]
    name = kind.__name__.lstrip("_").lower()
    try:
        found = from_json(raw, _Format).format
    except msgspec.DecodeError as error:
        raise defective(path, "corrupted", f"cannot decode {name} ({len(raw)} bytes): {error}", help=help) from None
    if found != format:
        raise defective(path, "unreadable_format", f"its format is {found}, but this release reads {format}")
    expected = hashlib.sha256(body).hexdigest()
    if check != _CHECK + expected.encode() + b'"}':
        said = check[len(_CHECK) : -len(b'"}')].decode(errors="replace")
        raise defective(path, "corrupted", f"its checksum is {said}, expected {expected} for its bytes", help=help)
    try:
        read = from_json(raw, kind)
    except msgspec.DecodeError as error:
        raise defective(path, "corrupted", f"not a {name} of format {format}: {error}", help=help) from None
    # It has done its work: a record that was read equals the one that was written.
    return msgspec.structs.replace(read, check=UNSET)
