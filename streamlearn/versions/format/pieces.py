"""Pieces: named values of any size as files of bounded size. It knows tensors and bytes, and not what they are for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Meta, Struct

from streamlearn.errors import UsageError
from streamlearn.struct_decoder import from_json
from streamlearn.versions.format.arrow import plain, read_batches, schema_of
from streamlearn.versions.format.manifest import FORMAT, FileEntry
from streamlearn.versions.format.split import ArrowFile, Place
from streamlearn.versions.store.defect import defective

__all__ = ["Tensors", "check_pieces", "read_bytes", "read_tensors", "write_bytes", "write_tensors"]

Tensors: TypeAlias = Mapping[str, npt.NDArray[Any]]

_NAME_CHARS_MAX = 400
# Room for what stands beside the bytes of a value in its batch.
_BESIDE_BYTES = 4_096
_KINDS = "biufc"


class _Note(Struct, frozen=True, forbid_unknown_fields=True):
    """What a value is: a tensor's type and shape; nothing for bytes."""

    dtype: Annotated[str, Meta(pattern=r"^[<>|=][biufc][0-9]{1,2}\Z")] | None = None
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
            raise UsageError(message, help="give numbers; view other types as unsigned ones, such as uint16")
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
        _check_size(name, note, len(data), path)
        found = np.frombuffer(data, np.dtype(note.dtype)).reshape(note.shape)
        tensors[name] = found if found.flags.aligned else found.copy()
    return tensors


def read_bytes(files: Iterable[tuple[FileEntry, memoryview]], path: str) -> dict[str, memoryview]:
    """Named bytes; see `read_tensors`."""
    return {name: data for name, (_, data) in _read(files, path).items()}


def check_pieces(
    files: Iterable[tuple[FileEntry, memoryview]],
    path: str,
    see: Callable[[str, npt.NDArray[Any]], None] | None = None,
) -> None:
    """Check that files make whole values, one file after the other, and keep none of them.

    Args:
        files: As `read_tensors` takes them.
        path: The version's folder, for errors.
        see: Told each tensor's name and its numbers, a part at a time, flat.

    Raises:
        VersionDefect: They do not.
    """
    known: dict[str, tuple[str, int, int]] = {}
    rests: dict[str, bytes] = {}
    for entry, data in files:
        where = f"{path}/{entry.path}"
        for name, note, (begin, total), span in _pieces(entry, data, where):
            before = known.get(name, (note, total, 0))
            known[name] = _continued(name, before, (note, begin, total, len(span)), where, is_first=name not in known)
            noted = _noted(note, path) if see is not None else _Note()
            if see is not None and noted.dtype is not None:
                numbers, rests[name] = _numbers(noted.dtype, rests.get(name, b""), span)
                see(name, numbers)
    for name, (note, total, have) in known.items():
        noted = _noted(note, path)
        if have != total:
            raise defective(path, "truncated", f"{name!r} has {have} bytes of {total}")
        if noted.dtype is not None:
            _check_size(name, noted, total, path)


def _numbers(dtype: str, rest: bytes, span: memoryview) -> tuple[npt.NDArray[Any], bytes]:
    """The whole numbers of a piece, with what was left of the one before; and what is left of it."""
    data = memoryview(rest + bytes(span)) if rest else span
    whole = len(data) - len(data) % np.dtype(dtype).itemsize
    return np.frombuffer(data[:whole], np.dtype(dtype)), bytes(data[whole:])


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
                raise UsageError(message, help=f"names must have 1 to {_NAME_CHARS_MAX} characters")
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
    known: dict[str, tuple[str, int, int]] = {}
    spans: dict[str, list[memoryview]] = {}
    for entry, data in files:
        where = f"{path}/{entry.path}"
        for name, note, (begin, total), span in _pieces(entry, data, where):
            before = known.get(name, (note, total, 0))
            known[name] = _continued(name, before, (note, begin, total, len(span)), where, is_first=name not in known)
            spans.setdefault(name, []).append(span)
    return {name: (_noted(one[0], path), _joined(name, one[1], spans[name], path)) for name, one in known.items()}


def _pieces(entry: FileEntry, data: memoryview, where: str) -> Iterator[tuple[str, str, tuple[int, int], memoryview]]:
    """Each piece of a file: its name, its note, where it begins and of how many bytes, and its own."""
    for batch in read_batches(data, _schema(entry), entry.rows, where):
        begins, totals = batch.numbers("begin").tolist(), batch.numbers("total").tolist()
        yield from zip(
            batch.texts("name"), batch.texts("note"), zip(begins, totals, strict=True), batch.spans("data"), strict=True
        )


def _continued(
    name: str, before: tuple[str, int, int], piece: tuple[str, int, int, int], where: str, *, is_first: bool
) -> tuple[str, int, int]:
    """What is known of a value with one more piece of it: its note, its bytes, and how many of them are there."""
    note, begin, total, size = piece
    have = before[2]
    if before[:2] != (note, total) or begin != have or not (is_first or size):
        said = f"a piece of {name!r} begins at {begin} of {total}, but {have} of {before[1]} have arrived"
        raise defective(where, "corrupted", said)
    return note, total, have + size


def _noted(note: str, path: str) -> _Note:
    try:
        noted = from_json(note, _Note)
        if noted.dtype is not None and not np.dtype(noted.dtype).itemsize:  # or NumPy knows no such type
            raise TypeError(noted.dtype)
        return noted
    except (msgspec.DecodeError, TypeError) as error:
        raise defective(path, "corrupted", f"a value is {note[:100]!r}: {error}") from None


def _joined(name: str, total: int, spans: list[memoryview], path: str) -> memoryview:
    whole = spans[0] if len(spans) == 1 else memoryview(b"".join(spans))
    if len(whole) != total:
        raise defective(path, "truncated", f"{name!r} has {len(whole)} bytes of {total}")
    return whole


def _check_size(name: str, note: _Note, size: int, path: str) -> None:
    if note.dtype is None or np.dtype(note.dtype).itemsize * int(np.prod(note.shape, dtype=object)) != size:
        raise defective(path, "corrupted", f"{name!r} of {size} bytes does not fit a tensor {note.dtype} {note.shape}")
