"""Pieces: named values of any size as files of bounded size. It knows tensors and bytes, and not what they are for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Meta, Struct

from streamlearn.errors import UsageError
from streamlearn.versions.arrow import plain, read_batches, schema_of
from streamlearn.versions.defect import defective
from streamlearn.versions.manifest import FORMAT, FileEntry
from streamlearn.versions.split import ArrowFile, Place

__all__ = ["Tensors", "read_bytes", "read_tensors", "write_bytes", "write_tensors"]

Tensors: TypeAlias = Mapping[str, npt.NDArray[Any]]

_NAME_CHARS_MAX = 400
# Room for what stands beside the bytes of a value in its batch.
_BESIDE_BYTES = 4_096
_KINDS = "biufc"


class _Note(Struct, frozen=True, forbid_unknown_fields=True):
    """What a value is: a tensor's type and shape; nothing for bytes."""

    dtype: Annotated[str, Meta(pattern=r"^[<>|=][biufc][0-9]{1,2}$")] | None = None
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=1 << 40)], ...], Meta(max_length=32)] = ()


def write_tensors(place: Place, entry: FileEntry, tensors: Tensors) -> list[FileEntry]:
    """Write named tensors, bit by bit as they are.

    Args:
        place: Where they go.
        entry: What is the same of all files; `path` is the name before number and digest.
        tensors: Of any numeric type and shape.

    Raises:
        UsageError: One is of another type.
    """
    found = {}
    for name, tensor in tensors.items():
        if tensor.dtype.kind not in _KINDS:
            message = f"tensor {name!r} is {tensor.dtype}"
            raise UsageError(message, help="give numbers; other types as a view of unsigned ones, such as uint16")
        note = _Note(tensor.dtype.str, tensor.shape)
        raw = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
        found[name] = (note, raw.data)
    return _write(place, entry, found)


def write_bytes(place: Place, entry: FileEntry, named: Mapping[str, bytes | memoryview]) -> list[FileEntry]:
    """Write named bytes."""
    return _write(place, entry, {name: (_Note(), memoryview(data).cast("B")) for name, data in named.items()})


def read_tensors(files: Iterable[tuple[FileEntry, memoryview]], path: str) -> dict[str, npt.NDArray[Any]]:
    """Named tensors; those of one piece are views that cannot be written to.

    Args:
        files: All files of the kind with their bytes, verified, in the order of their numbers.
        path: The version's folder, for errors.

    Raises:
        VersionDefect: They do not make whole tensors.
    """
    tensors = {}
    for name, (note, data) in _read(files, path).items():
        dtype = np.dtype(note.dtype) if note.dtype is not None else None
        if dtype is None or dtype.itemsize * int(np.prod(note.shape, dtype=object)) != len(data):
            raise defective(path, "corrupted", f"{name!r} of {len(data)} bytes is no tensor {note.dtype} {note.shape}")
        found = np.frombuffer(data, dtype).reshape(note.shape)
        tensors[name] = found if found.flags.aligned else found.copy()
    return tensors


def read_bytes(files: Iterable[tuple[FileEntry, memoryview]], path: str) -> dict[str, memoryview]:
    """Named bytes; see `read_tensors`."""
    return {name: data for name, (_, data) in _read(files, path).items()}


def _schema(entry: FileEntry) -> pa.Schema:
    said = {"format": str(FORMAT), "kind": entry.kind, "table": entry.table or ""}
    texts, numbers = (
        [plain(name, pa.large_utf8()) for name in ("name", "note")],
        [plain(name, pa.int64()) for name in ("begin", "total")],
    )
    return schema_of([*texts, *numbers, plain("data", pa.large_binary())], said)


def _write(place: Place, entry: FileEntry, named: Mapping[str, tuple[_Note, memoryview]]) -> list[FileEntry]:
    schema, entries = _schema(entry), list[FileEntry]()
    file, left = _begin(place, entry, schema, 0), place.free_bytes
    try:
        for name, (note, data) in named.items():
            if not 0 < len(name) <= _NAME_CHARS_MAX:
                message = f"a value has a name of {len(name)} characters"
                raise UsageError(message, help=f"names have 1 to {_NAME_CHARS_MAX}")
            begin = 0
            while begin < len(data) or not begin:
                if left <= _BESIDE_BYTES:
                    entries.append(file.finish())
                    file, left = _begin(place, entry, schema, len(entries)), place.free_bytes
                piece = data[begin : begin + left - _BESIDE_BYTES]
                file.write(_record(name, note, (begin, len(data)), piece))
                left -= len(piece) + _BESIDE_BYTES
                begin += len(piece)
                if not len(piece):
                    break
        entries.append(file.finish())
    finally:
        file.abandon()
    return [msgspec.structs.replace(one, count=len(entries)) for one in entries]


def _begin(place: Place, entry: FileEntry, schema: pa.Schema, number: int) -> ArrowFile:
    return ArrowFile(place, msgspec.structs.replace(entry, path=f"{entry.path}-{number}", number=number), schema)


def _record(name: str, note: _Note, span: tuple[int, int], piece: memoryview) -> list[pa.Array]:
    texts = [pa.array([text], pa.large_utf8()) for text in (name, msgspec.json.encode(note).decode())]
    offsets = pa.py_buffer(np.array([0, len(piece)], np.int64))
    data = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(piece)])
    return [*texts, *(pa.array([number], pa.int64()) for number in span), data]


def _read(files: Iterable[tuple[FileEntry, memoryview]], path: str) -> dict[str, tuple[_Note, memoryview]]:
    pieces: dict[str, tuple[str, int, list[memoryview]]] = {}
    for entry, data in files:
        where = f"{path}/{entry.path}"
        for batch in read_batches(data, _schema(entry), entry.rows, where):
            begins, totals = batch.numbers("begin").tolist(), batch.numbers("total").tolist()
            spans = batch.spans("data")
            for at, (name, note) in enumerate(zip(batch.texts("name"), batch.texts("note"), strict=True)):
                known = pieces.setdefault(name, (note, totals[at], []))
                have = sum(len(one) for one in known[2])
                if known[:2] != (note, totals[at]) or begins[at] != have or (known[2] and not len(spans[at])):
                    said = f"a piece of {name!r} begins at {begins[at]} of {totals[at]}, {have} of {known[1]} are there"
                    raise defective(where, "corrupted", said)
                known[2].append(spans[at])
    return {name: (_noted(one[0], path), _joined(name, one, path)) for name, one in pieces.items()}


def _noted(note: str, path: str) -> _Note:
    try:
        return msgspec.json.decode(note, type=_Note)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise defective(path, "corrupted", f"a value is {note[:100]!r}: {error}") from None


def _joined(name: str, found: tuple[str, int, list[memoryview]], path: str) -> memoryview:
    _, total, spans = found
    whole = spans[0] if len(spans) == 1 else memoryview(b"".join(spans))
    if len(whole) != total:
        raise defective(path, "truncated", f"{name!r} has {len(whole)} bytes of {total}")
    return whole
