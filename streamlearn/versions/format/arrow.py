"""Arrow files: columns of plain numbers and bytes, written batch by batch, read as views, and checked before that.

It does not know what the columns mean, nor where the bytes are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamlearn.versions.store.defect import defective

__all__ = ["Batch", "column", "fixed_lists", "plain", "read_batches", "schema_of", "values", "write_batch"]

Array = npt.NDArray[Any]

_MAGIC = b"ARROW1\0\0"
# Where flatbuffers keep what is looked at: the header of a message, and the compression of a record batch.
_HEADER, _COMPRESSION = 2, 3
_DIGEST = b"keys_sha256"


class Batch:
    """Some records of a file.

    Attributes:
        rows: How many.
        keys_sha256: The digest of their keys, where those are in another file; empty otherwise.
    """

    def __init__(self, found: pa.RecordBatch, keys_sha256: str) -> None:
        self._found = found
        self.rows: int = found.num_rows
        self.keys_sha256 = keys_sha256

    def __contains__(self, name: str) -> bool:
        return name in self._found.schema.names

    def numbers(self, name: str) -> Array:
        """A column as a view of the file's bytes: (rows,), or (rows, width) for lists."""
        return values(self._found.column(name))

    def texts(self, name: str) -> list[str]:
        """A column of texts."""
        found: list[str] = self._found.column(name).to_pylist()
        return found

    def spans(self, name: str) -> list[memoryview]:
        """A column of bytes, as views."""
        return [memoryview(one.as_buffer()) for one in self._found.column(name)]


def plain(name: str, kind: pa.DataType) -> pa.Field:
    """A column of plain values, none of them missing."""
    return pa.field(name, kind, nullable=False)


def fixed_lists(name: str, kind: pa.DataType, width: int) -> pa.Field:
    """A column of lists, all of one length."""
    return pa.field(name, pa.list_(pa.field("item", kind, nullable=False), width), nullable=False)


def schema_of(fields: Sequence[pa.Field], said: Mapping[str, str]) -> pa.Schema:
    """The schema of a file.

    Args:
        fields: Its columns.
        said: What the file says of itself.
    """
    return pa.schema(fields, metadata=dict(said))


def column(field: pa.Field, numbers: Array) -> pa.Array:
    """Numbers as a column, without a copy where they lie end to end."""
    flat = pa.array(np.ascontiguousarray(numbers).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, type=field.type) if numbers.ndim > 1 else flat


def values(found: pa.Array) -> Array:
    """A column as a view."""
    if not pa.types.is_fixed_size_list(found.type):
        return np.asarray(found.to_numpy(zero_copy_only=True))
    return np.asarray(found.flatten().to_numpy(zero_copy_only=True)).reshape(len(found), found.type.list_size)


def write_batch(writer: Any, schema: pa.Schema, columns: Sequence[pa.Array], keys_sha256: str = "") -> None:
    """Write some records.

    Args:
        writer: Of an Arrow file.
        schema: Its schema.
        columns: In the order of the schema.
        keys_sha256: The digest of their keys, when those are in another file.
    """
    said = {_DIGEST: keys_sha256.encode()} if keys_sha256 else None
    writer.write_batch(pa.record_batch(list(columns), schema=schema), custom_metadata=said)


def read_batches(data: memoryview, expected: pa.Schema, rows: int, path: str) -> list[Batch]:
    """Read a file whose digest is right, and which may be wrong all the same.

    Args:
        data: Its bytes.
        expected: Its schema, with what it says of itself.
        rows: How many records it is to have.
        path: Where it is from, for the error.

    Raises:
        VersionDefect: "corrupted": it is not a file of that schema, is compressed, has nulls, or other records.
    """
    try:
        if bytes(data[: len(_MAGIC)]) != _MAGIC:
            raise defective(path, "corrupted", f"it begins with {bytes(data[: len(_MAGIC)])!r}, not {_MAGIC!r}")
        stream = pa.py_buffer(data).slice(len(_MAGIC))
        _refuse_compressed(stream, path)
        reader = pa.ipc.open_stream(stream)
        _check_schema(reader.schema, expected, path)
        found = [_checked(batch, said, path) for batch, said in reader.iter_batches_with_custom_metadata()]
    except (pa.ArrowException, OSError, MemoryError, struct.error, ValueError, UnicodeDecodeError) as error:
        raise defective(path, "corrupted", f"not an Arrow file: {error}") from None
    total = sum(batch.rows for batch in found)
    if total != rows:
        raise defective(path, "corrupted", f"it has {total} records, but the manifest says {rows}")
    return found


def _check_schema(found: pa.Schema, expected: pa.Schema, path: str) -> None:
    if not found.equals(expected, check_metadata=False):
        said, wanted = (str(one.remove_metadata()).replace("\n", ", ")[:500] for one in (found, expected))
        raise defective(path, "corrupted", f"its columns are {said}; expected {wanted}")
    if found.metadata != expected.metadata:
        raise defective(path, "corrupted", f"its metadata are {found.metadata}, expected {expected.metadata}")


def _checked(found: pa.RecordBatch, said: Any, path: str) -> Batch:
    found.validate(full=True)
    for field, one in zip(found.schema, found.columns, strict=True):
        inner = one.flatten() if pa.types.is_fixed_size_list(field.type) else one[:0]
        if one.null_count or inner.null_count:
            raise defective(path, "corrupted", f"column {field.name!r} has {one.null_count + inner.null_count} nulls")
    digest = dict(said or {}).get(_DIGEST, b"")
    return Batch(found, digest.decode())


def _refuse_compressed(stream: pa.Buffer, path: str) -> None:
    """A compressed batch says itself how large it becomes, so it is refused before anything is made of it."""
    reader = pa.ipc.MessageReader.open_stream(stream)
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if message.type == "record batch" and _slot(message.metadata, _COMPRESSION):
            raise defective(path, "corrupted", "it is compressed; files of versions must not be")


def _slot(metadata: pa.Buffer, slot: int) -> bool:
    """Whether the table that a message's header is has a field in this place of its flatbuffer."""
    raw = metadata.to_pybytes()
    root = struct.unpack_from("<I", raw, 0)[0]
    at = root + _offset(raw, root, _HEADER)
    header = at + struct.unpack_from("<I", raw, at)[0]
    return bool(_offset(raw, header, slot))


def _offset(raw: bytes, table: int, slot: int) -> int:
    """Where a field of a flatbuffer's table is from the table on; 0 when it is not there."""
    vtable = table - struct.unpack_from("<i", raw, table)[0]
    place = 4 + 2 * slot
    found: int = struct.unpack_from("<H", raw, vtable + place)[0] if place < _vtable_bytes(raw, vtable) else 0
    return found


def _vtable_bytes(raw: bytes, vtable: int) -> int:
    if vtable < 0:
        message = "a table is placed before its buffer"
        raise ValueError(message)
    return int(struct.unpack_from("<H", raw, vtable)[0])
