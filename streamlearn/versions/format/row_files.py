"""Row files: what a version changed of one table in one shard, as files for serving and, beside them, for training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamlearn.errors import UsageError
from streamlearn.native import native
from streamlearn.table import Changes, RowType
from streamlearn.table.changes import encode_rows
from streamlearn.versions.format.arrow import Batch, fixed_lists, plain, read_batches, schema_of
from streamlearn.versions.format.manifest import FORMAT, FileEntry, FileKind, TableRecord
from streamlearn.versions.format.split import Place, Records, SplitFiles
from streamlearn.versions.store.defect import defective

__all__ = ["RowFiles", "read_gone", "read_rows"]

Array = npt.NDArray[Any]

_NUMBERS: dict[RowType, pa.DataType] = {"float32": pa.float32(), "float16": pa.float16(), "int8": pa.int8()}
_DTYPES: dict[RowType, str] = {"float32": "float32", "float16": "float16", "int8": "int8"}


class RowFiles:
    """Changes of one table on their way into files.

    Args:
        place: Where they go.
        table: The table.
        shard: The shard that writes them, and how many there are.
        parts: The parts it owns.
    """

    def __init__(self, place: Place, table: TableRecord, shard: tuple[int, int], parts: tuple[int, int]) -> None:
        self._table, self._parts = table, parts
        schemas = {kind: _schema(kind, table) for kind in ("rows", "optimizer", "gone")}
        beside = Records.of(max(_record_bytes(schemas["rows"]), _record_bytes(schemas["optimizer"])), place)

        def split(kind: FileKind, records: Records) -> SplitFiles:
            entry = FileEntry(
                kind=kind, path=f"{kind}/{table.name}-{shard[0]}", rows=0, bytes=0, sha256="0" * 64,
                table=table.name, shard=shard[0], shards=shard[1], parts=parts,
            )  # fmt: skip
            return SplitFiles(place, entry, schemas[kind], records, beside=kind == "optimizer")

        self._rows = split("rows", beside)
        self._gone = split("gone", Records.of(_record_bytes(schemas["gone"]), place))
        self._optimizer = split("optimizer", beside) if table.optimizer is not None else None

    def add(self, changes: Changes) -> None:
        """Take some changes.

        Raises:
            UsageError: They are not of such a table or of these parts.
        """
        _check_changes(changes, self._table)
        gone = np.empty(0, np.uint64) if changes.gone is None else changes.gone
        for keys in (changes.keys, gone):
            _check_parts(keys, self._parts, self._table.name)
        if len(gone):
            self._gone.add({"key": gone})
        if not len(changes):
            return
        rows, scales = _stored(changes, self._table.row_type)
        scale = {} if scales is None else {"scale": scales}
        self._rows.add({"key": changes.keys, "row": rows} | scale)
        if self._optimizer is not None:
            self._optimizer.add(_learning(changes, self._table))

    def finish(self) -> list[FileEntry]:
        """Let the last files appear; gives all of them."""
        files = (self._rows, self._gone, *([self._optimizer] if self._optimizer else []))
        return [entry for one in files for entry in one.finish()]

    def abandon(self) -> None:
        """Forget what is not finished."""
        for one in (self._rows, self._gone, self._optimizer):
            if one is not None:
                one.abandon()


def read_rows(
    table: TableRecord, entry: FileEntry, data: memoryview, beside: tuple[FileEntry, memoryview] | None, path: str
) -> Iterator[Changes]:
    """The rows of a file, batch by batch, as views of its bytes.

    Args:
        table: The table.
        entry: The file.
        data: Its bytes, verified.
        beside: For training: the optimizer's file beside it, and its bytes.
        path: The version's folder, for errors.

    Raises:
        VersionDefect: A file is not what it is to be, or the two do not belong together.
    """
    where = f"{path}/{entry.path}"
    batches = read_batches(data, _schema("rows", table), entry.rows, where)
    for batch in batches:
        _check_owned(batch.numbers("key"), entry, where)
    if beside is None:
        yield from (_serving(table, batch) for batch in batches)
        return
    theirs = f"{path}/{beside[0].path}"
    learning = read_batches(beside[1], _schema("optimizer", table), beside[0].rows, theirs)
    if [one.rows for one in learning] != [one.rows for one in batches]:
        sizes = f"{[one.rows for one in learning][:5]}, but the rows' are {[one.rows for one in batches][:5]}"
        raise defective(theirs, "corrupted", f"its batches have records {sizes}")
    for batch, one in zip(batches, learning, strict=True):
        found = hashlib.sha256(batch.numbers("key").data).hexdigest()
        if found != one.keys_sha256:
            raise defective(
                theirs, "corrupted", f"it has keys of sha256 {one.keys_sha256}, but {entry.path} has {found}"
            )
    for batch, one in zip(batches, learning, strict=True):
        yield _training(table, batch, one)


def read_gone(table: TableRecord, entry: FileEntry, data: memoryview, path: str) -> Iterator[Changes]:
    """The keys of a file that are gone, batch by batch.

    Raises:
        VersionDefect: The file is not what it is to be.
    """
    where = f"{path}/{entry.path}"
    for batch in read_batches(data, _schema("gone", table), entry.rows, where):
        keys = batch.numbers("key")
        _check_owned(keys, entry, where)
        none = np.empty((0, table.dim), _DTYPES["float32"])
        yield Changes(table.name, np.empty(0, np.uint64), none, gone=keys)


def _schema(kind: FileKind, table: TableRecord) -> pa.Schema:
    said = {"format": str(FORMAT), "kind": kind, "table": table.name}
    key, floats = plain("key", pa.uint64()), _NUMBERS["float32"]
    if kind == "gone":
        return schema_of([key], said)
    row = fixed_lists("row", _NUMBERS[table.row_type], table.dim)
    if kind == "rows":
        return schema_of([key, row, *([plain("scale", floats)] if table.row_type == "int8" else [])], said)
    width = 0 if table.optimizer is None else table.optimizer.state_width(table.dim)
    state = [fixed_lists("state", floats, width)] if width else []
    whole = [fixed_lists("row", floats, table.dim)] if table.row_type != "float32" else []
    return schema_of([plain("tick", pa.uint32()), plain("count", pa.uint8()), *state, *whole], said)


def _record_bytes(schema: pa.Schema) -> int:
    def field_bytes(kind: pa.DataType) -> int:
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size * kind.value_type.bit_width // 8)
        return int(kind.bit_width // 8)

    return sum(field_bytes(field.type) for field in schema)


def _check_changes(changes: Changes, table: TableRecord) -> None:
    shape = (len(changes.keys), table.dim)
    if changes.rows.shape != shape or str(changes.rows.dtype) not in ("float32", _DTYPES[table.row_type]):
        message = f"rows of table {table.name!r} are {changes.rows.dtype} {changes.rows.shape}, expected {shape}"
        raise UsageError(message, help=f"give float32 rows, or {table.row_type} ones as the version stores them")
    if (changes.scales is not None) != (changes.rows.dtype == np.int8):
        has = "no" if changes.scales is None else "some"
        message = f"rows of table {table.name!r} are {changes.rows.dtype} with {has} scales"
        raise UsageError(message, help="only int8 rows have scales, one for each row")
    if table.optimizer is None or not len(changes):
        return
    width = table.optimizer.state_width(table.dim)
    state = None if changes.state is None else changes.state.shape
    if (
        state != (shape[0], width)
        or changes.ticks is None
        or changes.counts is None
        or changes.rows.dtype != np.float32
    ):
        has = "ticks" if changes.ticks is not None else "no ticks"
        message = f"table {table.name!r} learns; its changes have state {state}, {has} and {changes.rows.dtype} rows"
        raise UsageError(
            message, help=f"give float32 rows with state (n, {width}), ticks and counts, as `changed` returns them"
        )


def _check_parts(keys: Array, parts: tuple[int, int], table: str) -> None:
    if len(keys) and parts != (0, native.TABLE_PARTS):
        found = native.parts_of(keys)
        if int(found.min()) < parts[0] or int(found.max()) >= parts[1]:
            message = (
                f"keys of table {table!r} belong to parts {found.min()} to {found.max()}, but the shard has {parts}"
            )
            raise UsageError(message, help="send each key to the shard that has its part")


def _check_owned(keys: Array, entry: FileEntry, path: str) -> None:
    if len(keys) and entry.parts != (0, native.TABLE_PARTS):
        found = native.parts_of(keys)
        if int(found.min()) < entry.parts[0] or int(found.max()) >= entry.parts[1]:
            said = f"its keys belong to parts {found.min()} to {found.max()}, but its shard has {entry.parts}"
            raise defective(path, "corrupted", said)


def _stored(changes: Changes, row_type: RowType) -> tuple[Array, Array | None]:
    """Rows as the version stores them."""
    if str(changes.rows.dtype) == _DTYPES[row_type]:
        return changes.rows, changes.scales
    return encode_rows(np.ascontiguousarray(changes.rows, np.float32), row_type)


def _learning(changes: Changes, table: TableRecord) -> dict[str, Array]:
    """What only training reads; `_check_changes` saw that it is there."""
    found = {"key": changes.keys, "tick": changes.ticks, "count": changes.counts, "state": changes.state}
    if table.row_type != "float32":
        found["row"] = np.asarray(changes.rows, np.float32)
    return {name: numbers for name, numbers in found.items() if numbers is not None}


def _serving(table: TableRecord, batch: Batch) -> Changes:
    scales = batch.numbers("scale") if "scale" in batch else None
    return Changes(table.name, batch.numbers("key"), batch.numbers("row"), scales=scales)


def _training(table: TableRecord, batch: Batch, beside: Batch) -> Changes:
    keys = batch.numbers("key")
    rows = beside.numbers("row") if "row" in beside else batch.numbers("row")
    state = beside.numbers("state") if "state" in beside else np.empty((len(keys), 0), np.float32)
    return Changes(table.name, keys, rows, state=state, ticks=beside.numbers("tick"), counts=beside.numbers("count"))
