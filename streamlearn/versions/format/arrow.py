"""Arrow files: columns of plain numbers and bytes, written in batches, and checked before they are read as views.

It does not know the meaning of the columns, nor where the bytes are stored.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamlearn.versions.store.defect import defective

__all__ = ["Batch", "column", "fixed_lists", "plain", "read_batches", "values", "write_batch"]

Array = npt.NDArray[Any]

_MAGIC = b"ARROW1\0\0"
# Slots of the flatbuffers that are inspected: the header of a message, and the compression of a record batch.
_HEADER, _COMPRESSION = 2, 3
_DIGEST = b"keys_sha256"


class Batch:
    """A batch of a file's records.

    Attributes:
        rows: Number of records.
        keys_sha256: The digest of their keys, if those are in another file; empty otherwise.
    """

    def __init__(self, batch: pa.RecordBatch, keys_sha256: str) -> None:
        self._batch = batch
        self.rows: int = batch.num_rows
        self.keys_sha256 = keys_sha256

    def __contains__(self, name: str) -> bool:
        return name in self._batch.schema.names

    def numbers(self, name: str) -> Array:
        """Return a column as a view of the file's bytes: (rows,), or (rows, width) for lists."""
        return values(self._batch.column(name))

    def texts(self, name: str) -> list[str]:
        """Return a column of texts."""
        texts: list[str] = self._batch.column(name).to_pylist()
        return texts

    def spans(self, name: str) -> list[memoryview]:
        """Return a column of bytes, as views."""
        return [memoryview(value.as_buffer()) for value in self._batch.column(name)]


def plain(name: str, kind: pa.DataType) -> pa.Field:
    """Declare a column of plain values without nulls."""
    return pa.field(name, kind, nullable=False)


def fixed_lists(name: str, kind: pa.DataType, width: int) -> pa.Field:
    """Declare a column of lists of one length."""
    return pa.field(name, pa.list_(pa.field("item", kind, nullable=False), width), nullable=False)


def column(field: pa.Field, numbers: Array) -> pa.Array:
    """Make a column of numbers, without a copy if they are contiguous."""
    flat = pa.array(np.ascontiguousarray(numbers).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, type=field.type) if numbers.ndim > 1 else flat


def values(array: pa.Array) -> Array:
    """Return a column as a view."""
    if not pa.types.is_fixed_size_list(array.type):
        return np.asarray(array.to_numpy(zero_copy_only=True))
    return np.asarray(array.flatten().to_numpy(zero_copy_only=True)).reshape(len(array), array.type.list_size)


def write_batch(writer: Any, schema: pa.Schema, columns: Sequence[pa.Array], keys_sha256: str = "") -> None:
    """Write records with an Arrow file writer; the columns are in the order of the schema."""
    metadata = {_DIGEST: keys_sha256.encode()} if keys_sha256 else None
    writer.write_batch(pa.record_batch(list(columns), schema=schema), custom_metadata=metadata)


def read_batches(data: memoryview, expected: pa.Schema, rows: int, path: str) -> list[Batch]:
    """Read a file and check it, although its digest was right already.

    `expected` includes the metadata, `rows` is the count in the manifest, and `path` is for errors.

    Raises:
        VersionDefect: "corrupted": its schema or row count differs, it is compressed, or it has nulls.
    """
    try:
        if bytes(data[: len(_MAGIC)]) != _MAGIC:
            raise defective(path, "corrupted", f"it begins with {bytes(data[: len(_MAGIC)])!r}, not {_MAGIC!r}")
        stream = pa.py_buffer(data).slice(len(_MAGIC))
        _refuse_compressed(stream, path)
        reader = pa.ipc.open_stream(stream)
        _check_schema(reader.schema, expected, path)
        batches = [_checked(batch, metadata, path) for batch, metadata in reader.iter_batches_with_custom_metadata()]
    except (pa.ArrowException, OSError, MemoryError, struct.error, ValueError, UnicodeDecodeError) as error:
        raise defective(path, "corrupted", f"not an Arrow file: {error}") from None
    total = sum(batch.rows for batch in batches)
    if total != rows:
        raise defective(path, "corrupted", f"it has {total} records, but the manifest says {rows}")
    return batches


def _check_schema(schema: pa.Schema, expected: pa.Schema, path: str) -> None:
    if not schema.equals(expected, check_metadata=False):
        actual, wanted = (str(each.remove_metadata()).replace("\n", ", ")[:500] for each in (schema, expected))
        raise defective(path, "corrupted", f"its columns are {actual}; expected {wanted}")
    if schema.metadata != expected.metadata:
        raise defective(path, "corrupted", f"its metadata are {schema.metadata}, expected {expected.metadata}")


def _checked(batch: pa.RecordBatch, metadata: Any, path: str) -> Batch:
    batch.validate(full=True)
    for field, array in zip(batch.schema, batch.columns, strict=True):
        inner = array.flatten() if pa.types.is_fixed_size_list(field.type) else array[:0]
        nulls = array.null_count + inner.null_count
        if nulls:
            raise defective(path, "corrupted", f"column {field.name!r} has {nulls} nulls")
    return Batch(batch, dict(metadata or {}).get(_DIGEST, b"").decode())


def _refuse_compressed(stream: pa.Buffer, path: str) -> None:
    """Refuse compressed batches before they are decoded: the batch itself states its uncompressed size."""
    reader = pa.ipc.MessageReader.open_stream(stream)
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if message.type == "record batch" and _has_slot(message.metadata, _COMPRESSION):
            raise defective(path, "corrupted", "it is compressed; files of versions must not be")


def _has_slot(metadata: pa.Buffer, slot: int) -> bool:
    """Return whether the header table of a message has a field in this slot."""
    raw = metadata.to_pybytes()
    root = struct.unpack_from("<I", raw, 0)[0]
    pointer = root + _offset(raw, root, _HEADER)
    header = pointer + struct.unpack_from("<I", raw, pointer)[0]
    return bool(_offset(raw, header, slot))


def _offset(raw: bytes, table: int, slot: int) -> int:
    """Return the offset of a field within a flatbuffer's table; 0 if it is absent."""
    vtable = table - struct.unpack_from("<i", raw, table)[0]
    if vtable < 0:
        message = "the vtable lies before the buffer"
        raise ValueError(message)
    position = 4 + 2 * slot
    vtable_bytes: int = struct.unpack_from("<H", raw, vtable)[0]
    return int(struct.unpack_from("<H", raw, vtable + position)[0]) if position < vtable_bytes else 0
