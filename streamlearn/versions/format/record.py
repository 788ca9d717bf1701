"""Record: a JSON document in the store that carries its own checksum. It does not know the content.

The last field of its bytes, `check`, is the sha256 of all bytes before it. No other file refers to the newest record of
a log by its digest, so without the check a flipped bit would go unnoticed.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from streamlearn.errors import Oversize
from streamlearn.struct_decoder import from_json
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store

__all__ = ["Digest", "Record", "VersionRef", "decode_record", "encode_record", "read_signed"]

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

_CHECK = b',"check":"'
_CHECK_BYTES = len(_CHECK) + 64 + len(b'"}')


class VersionRef(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An unambiguous reference to a version: its number, its run and the sha256 of its manifest."""

    version: Annotated[int, Meta(ge=1, le=10**12 - 1)]
    run: Annotated[int, Meta(ge=0, le=10**8 - 1)]
    sha256: Digest

    def __str__(self) -> str:
        return f"{self.version} of run {self.run}"


class Record(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of every record; records of another format are refused."""

    format: Annotated[int, Meta(ge=1, le=1)] = 1
    check: Digest | UnsetType = UNSET


class _Format(Struct):
    """The only field read before the format is known."""

    format: int


Kind = TypeVar("Kind", bound=Struct)


def encode_record(record: Struct) -> bytes:
    """Encode a record; its field `check` is ignored and computed."""
    body = msgspec.json.encode(msgspec.structs.replace(record, check=UNSET))[: -len(b"}")]
    return body + _CHECK + hashlib.sha256(body).hexdigest().encode() + b'"}'


def decode_record(data: bytes | memoryview, kind: type[Kind], path: str, *, format: int = 1, help: str = "") -> Kind:
    """Decode a record of a kind and format.

    `path` is for errors; `help` is the advice for a damaged record.

    Raises:
        VersionDefect: The bytes are damaged, of another format, or not such a record.
    """
    raw = bytes(data)
    body, check = raw[:-_CHECK_BYTES], raw[-_CHECK_BYTES:]
    name = kind.__name__.lstrip("_").lower()
    try:
        actual_format = from_json(raw, _Format).format
    except msgspec.DecodeError as error:
        raise defective(path, "corrupted", f"cannot decode {name} ({len(raw)} bytes): {error}", help=help) from None
    if actual_format != format:
        raise defective(path, "unreadable_format", f"its format is {actual_format}, but this release reads {format}")
    expected = hashlib.sha256(body).hexdigest()
    if check != _CHECK + expected.encode() + b'"}':
        actual = check[len(_CHECK) : -len(b'"}')].decode(errors="replace")
        raise defective(path, "corrupted", f"its checksum is {actual}, expected {expected} for its bytes", help=help)
    try:
        record = from_json(raw, kind)
    except msgspec.DecodeError as error:
        raise defective(path, "corrupted", f"not a {name} of format {format}: {error}", help=help) from None
    # Without the check, a decoded record equals the one that was encoded.
    return msgspec.structs.replace(record, check=UNSET)


def read_signed(store: Store, path: str, kind: type[Kind]) -> tuple[Kind, str]:
    """Read a manifest as a kind of record, and return it with its sha256.

    Raises:
        FileMissing: It does not exist.
        VersionDefect: It is too large, damaged or unsigned.
    """
    try:
        data = store.read(path, bytes_max=store.loading.manifest_bytes_max)
    except Oversize as error:
        raise defective(path, "corrupted", error.message) from None
    record = decode_record(data, kind, path)
    store.signatures.check(data, path)
    return record, hashlib.sha256(data).hexdigest()
