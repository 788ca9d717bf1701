"""Pieces: named values of any size in files of bounded size. It knows tensors and bytes, but not their purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Meta, Struct

from streamlearn.errors import UsageError
from streamlearn.struct_decoder import from_json
from streamlearn.versions.format.arrow import plain, read_batches
from streamlearn.versions.format.manifest import FORMAT, FileEntry
from streamlearn.versions.format.split import ArrowFile, Place
from streamlearn.versions.store.defect import defective

__all__ = ["Tensors", "check_pieces", "read_bytes", "read_tensors", "write_bytes", "write_tensors"]

Tensors: TypeAlias = Mapping[str, npt.NDArray[Any]]
_Files: TypeAlias = Iterable[tuple[FileEntry, memoryview]]
"""All files of one kind with their verified bytes, in the order of their numbers."""

_NAME_CHARS_MAX = 400
# Room in a batch for the columns other than the bytes of a value.
_OVERHEAD_BYTES = 4_096
_KINDS = "biufc"


class _Note(Struct, frozen=True, forbid_unknown_fields=True):
    """The type and shape of a tensor; the defaults stand for bytes."""

    dtype: Annotated[str, Meta(pattern=r"^[<>|=][biufc][0-9]{1,2}\Z")] | None = None
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=1 << 40)], ...], Meta(max_length=32)] = ()


@dataclass(frozen=True)
class _Piece:
    """Bytes of the value `name`, which has `total` bytes, from `begin` on."""

    name: str
    note: str
    begin: int
    total: int
    data: memoryview


def write_tensors(place: Place, entry: FileEntry, tensors: Tensors) -> list[FileEntry]:
    """Write named tensors bit by bit, of any numeric type and shape.

    `entry` has the fields that all files share; its `path` is the name before number and digest.

    Raises:
        UsageError: A tensor is not numeric.
    """
    named = {}
    for name, tensor in tensors.items():
        if tensor.dtype.kind not in _KINDS:
            message = f"tensor {name!r} is {tensor.dtype}"
            raise UsageError(message, help="give numbers; view other types as unsigned ones, such as uint16")
        raw = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
        named[name] = (_Note(tensor.dtype.str, tensor.shape), raw.data)
    return _write(place, entry, named)


def write_bytes(place: Place, entry: FileEntry, named: Mapping[str, bytes | memoryview]) -> list[FileEntry]:
    """Write named bytes."""
    return _write(place, entry, {name: (_Note(), memoryview(data).cast("B")) for name, data in named.items()})


def read_tensors(files: _Files, path: str) -> dict[str, npt.NDArray[Any]]:
    """Return named tensors; a tensor of one piece is a read-only view. `path` is the version's folder, for errors.

    Raises:
        VersionDefect: The files do not contain whole tensors.
    """
    tensors = {}
    for name, (note, data) in _read(files, path).items():
        _check_size(name, note, len(data), path)
        tensor = np.frombuffer(data, np.dtype(note.dtype)).reshape(note.shape)
        tensors[name] = tensor if tensor.flags.aligned else tensor.copy()
    return tensors


def read_bytes(files: _Files, path: str) -> dict[str, memoryview]:
    """Return named bytes; see `read_tensors`."""
    return {name: data for name, (_, data) in _read(files, path).items()}


def check_pieces(files: _Files, path: str, on_numbers: Callable[[str, npt.NDArray[Any]], None] | None = None) -> None:
    """Check that files contain whole values, one file at a time, without keeping them.

    `on_numbers` gets the name of each tensor and its numbers, flat, one part at a time.

    Raises:
        VersionDefect: They do not.
    """
    values: dict[str, tuple[_Note, int]] = {}
    partial: dict[str, bytes] = {}
    for piece in _pieces(files, path):
        if piece.name not in values:
            values[piece.name] = (_decoded(piece.note, path), piece.total)
        dtype = values[piece.name][0].dtype
        if on_numbers is not None and dtype is not None:
            numbers, partial[piece.name] = _numbers(dtype, partial.get(piece.name, b""), piece.data)
            on_numbers(piece.name, numbers)
    for name, (note, total) in values.items():
        if note.dtype is not None:
            _check_size(name, note, total, path)


def _numbers(dtype: str, partial: bytes, data: memoryview) -> tuple[npt.NDArray[Any], bytes]:
    """Return the whole numbers of a piece, preceded by a partial one, and the bytes of the last partial number."""
    data = memoryview(partial + bytes(data)) if partial else data
    whole = len(data) - len(data) % np.dtype(dtype).itemsize
    return np.frombuffer(data[:whole], np.dtype(dtype)), bytes(data[whole:])


def _schema(entry: FileEntry) -> pa.Schema:
    texts = [plain(name, pa.large_utf8()) for name in ("name", "note")]
    numbers = [plain(name, pa.int64()) for name in ("begin", "total")]
    metadata = {"format": str(FORMAT), "kind": entry.kind, "table": entry.table or ""}
    return pa.schema([*texts, *numbers, plain("data", pa.large_binary())], metadata)


def _write(place: Place, entry: FileEntry, named: Mapping[str, tuple[_Note, memoryview]]) -> list[FileEntry]:
    schema, entries = _schema(entry), list[FileEntry]()
    file, free_bytes = ArrowFile(place, entry, schema, 0), place.free_bytes
    try:
        for name, (note, data) in named.items():
            if not 0 < len(name) <= _NAME_CHARS_MAX:
                message = f"a value has a name of {len(name)} characters"
                raise UsageError(message, help=f"names must have 1 to {_NAME_CHARS_MAX} characters")
            begin = 0
            while begin < len(data) or not begin:
                if free_bytes <= _OVERHEAD_BYTES:
                    entries.append(file.finish())
                    file, free_bytes = ArrowFile(place, entry, schema, len(entries)), place.free_bytes
                piece = data[begin : begin + free_bytes - _OVERHEAD_BYTES]
                file.write(_record(name, note, (begin, len(data)), piece))
                free_bytes -= len(piece) + _OVERHEAD_BYTES
                begin += len(piece)
                if not len(piece):
                    break
        entries.append(file.finish())
    finally:
        file.abandon()
    return [msgspec.structs.replace(written, count=len(entries)) for written in entries]


def _record(name: str, note: _Note, span: tuple[int, int], piece: memoryview) -> list[pa.Array]:
    texts = [pa.array([text], pa.large_utf8()) for text in (name, msgspec.json.encode(note).decode())]
    offsets = pa.py_buffer(np.array([0, len(piece)], np.int64))
    data = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(piece)])
    return [*texts, *(pa.array([number], pa.int64()) for number in span), data]


def _read(files: _Files, path: str) -> dict[str, tuple[_Note, memoryview]]:
    notes: dict[str, str] = {}
    spans: dict[str, list[memoryview]] = {}
    for piece in _pieces(files, path):
        notes[piece.name] = piece.note
        spans.setdefault(piece.name, []).append(piece.data)
    whole = {name: data[0] if len(data) == 1 else memoryview(b"".join(data)) for name, data in spans.items()}
    return {name: (_decoded(notes[name], path), data) for name, data in whole.items()}


def _pieces(files: _Files, path: str) -> Iterator[_Piece]:
    """Yield all pieces, and check that each continues its value and that all values are complete."""
    values: dict[str, tuple[str, int, int]] = {}  # note, bytes, bytes read
    for entry, data in files:
        file_path = f"{path}/{entry.path}"
        for batch in read_batches(data, _schema(entry), entry.rows, file_path):
            spans = (batch.numbers(name).tolist() for name in ("begin", "total"))
            columns = (batch.texts("name"), batch.texts("note"), *spans, batch.spans("data"))
            for piece in map(_Piece, *columns):
                is_first = piece.name not in values
                note, total, have = values.get(piece.name, (piece.note, piece.total, 0))
                is_next = piece.begin == have and (is_first or len(piece.data) > 0)
                if not is_next or (piece.note, piece.total) != (note, total):
                    what = f"a piece of {piece.name!r} begins at {piece.begin} of {piece.total}, "
                    what += f"but {have} of {total} have arrived"
                    raise defective(file_path, "corrupted", what)
                values[piece.name] = (note, total, have + len(piece.data))
                yield piece
    for name, (_, total, have) in values.items():
        if have != total:
            raise defective(path, "truncated", f"{name!r} has {have} bytes of {total}")


def _decoded(note: str, path: str) -> _Note:
    try:
        decoded = from_json(note, _Note)
        if decoded.dtype is not None and not np.dtype(decoded.dtype).itemsize:  # or NumPy raises for an unknown type
            raise TypeError(decoded.dtype)
        return decoded
    except (msgspec.DecodeError, TypeError) as error:
        raise defective(path, "corrupted", f"a value is {note[:100]!r}: {error}") from None


def _check_size(name: str, note: _Note, size: int, path: str) -> None:
    if note.dtype is None or np.dtype(note.dtype).itemsize * int(np.prod(note.shape, dtype=object)) != size:
        raise defective(path, "corrupted", f"{name!r} of {size} bytes does not fit a tensor {note.dtype} {note.shape}")
