"""Row files: the changes of one table in one shard, as files for serving and matching files for training."""

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
from streamlearn.versions.format.arrow import Batch, fixed_lists, plain, read_batches
from streamlearn.versions.format.manifest import FORMAT, FileEntry, FileKind, TableRecord
from streamlearn.versions.format.split import Place, Records, SplitFiles
from streamlearn.versions.store.defect import defective

__all__ = ["RowFiles", "read_gone", "read_rows"]

Array = npt.NDArray[Any]

_TYPES: dict[RowType, pa.DataType] = {"float32": pa.float32(), "float16": pa.float16(), "int8": pa.int8()}


class RowFiles:
    """The changes of one table, being written to files.

    `shard` is the number of the shard that writes them and the number of shards; `parts` are the parts it owns: the
    first, and the one after the last.
    """

    def __init__(self, place: Place, table: TableRecord, shard: tuple[int, int], parts: tuple[int, int]) -> None:
        self._table, self._parts = table, parts
        schemas = {kind: _schema(kind, table) for kind in ("rows", "optimizer", "gone")}
        paired = Records.of(max(_record_bytes(schemas["rows"]), _record_bytes(schemas["optimizer"])), place)

        def split(kind: FileKind, records: Records) -> SplitFiles:
            entry = FileEntry(
                kind=kind, path=f"{kind}/{table.name}-{shard[0]}", rows=0, bytes=0, sha256="0" * 64,
                table=table.name, shard=shard[0], shards=shard[1], parts=parts,
            )  # fmt: skip
            return SplitFiles(place, entry, schemas[kind], records, keys_elsewhere=kind == "optimizer")

        self._rows = split("rows", paired)
        self._gone = split("gone", Records.of(_record_bytes(schemas["gone"]), place))
        self._optimizer = split("optimizer", paired) if table.optimizer is not None else None
        self._files = [self._rows, self._gone, *([self._optimizer] if self._optimizer else [])]

    def add(self, changes: Changes) -> None:
        """Add changes; raises `UsageError` if they do not match the table or the parts."""
        _check_changes(changes, self._table)
        gone = np.empty(0, np.uint64) if changes.gone is None else changes.gone
        for keys in (changes.keys, gone):
            if (outside := _parts_outside(keys, self._parts)) is not None:
                name = self._table.name
                message = f"keys of table {name!r} belong to parts {outside}, but the shard has {self._parts}"
                raise UsageError(message, help="send each key to the shard that has its part")
        if len(gone):
            self._gone.add({"key": gone})
        if not len(changes):
            return
        rows, scales = _stored(changes, self._table.row_type)
        self._rows.add({"key": changes.keys, "row": rows} | ({} if scales is None else {"scale": scales}))
        if self._optimizer is not None:
            self._optimizer.add(_learning(changes, self._table))

    def finish(self) -> list[FileEntry]:
        """Close the files and return their entries."""
        return [entry for files in self._files for entry in files.finish()]

    def abandon(self) -> None:
        """Discard the unfinished files."""
        for files in self._files:
            files.abandon()


def read_rows(
    table: TableRecord, entry: FileEntry, data: memoryview, optimizer: tuple[FileEntry, memoryview] | None, path: str
) -> Iterator[Changes]:
    """Yield the rows of a file, batch by batch, as views of its verified bytes.

    For training, `optimizer` is the matching optimizer file. `path` is the version's folder, for errors.

    Raises:
        VersionDefect: A file is damaged, or the two do not match.
    """
    rows_path = f"{path}/{entry.path}"
    batches = read_batches(data, _schema("rows", table), entry.rows, rows_path)
    for batch in batches:
        _check_owned(batch.numbers("key"), entry, rows_path)
    if optimizer is None:
        yield from (_serving(table, batch) for batch in batches)
        return
    states_path = f"{path}/{optimizer[0].path}"
    states = read_batches(optimizer[1], _schema("optimizer", table), optimizer[0].rows, states_path)
    if [batch.rows for batch in states] != [batch.rows for batch in batches]:
        sizes = f"{[batch.rows for batch in states][:5]}, but the rows' are {[batch.rows for batch in batches][:5]}"
        raise defective(states_path, "corrupted", f"its batches have records {sizes}")
    for batch, state in zip(batches, states, strict=True):
        digest = hashlib.sha256(batch.numbers("key").data).hexdigest()
        if digest != state.keys_sha256:
            what = f"it has keys of sha256 {state.keys_sha256}, but {entry.path} has {digest}"
            raise defective(states_path, "corrupted", what)
    for batch, state in zip(batches, states, strict=True):
        yield _training(table, batch, state)


def read_gone(table: TableRecord, entry: FileEntry, data: memoryview, path: str) -> Iterator[Changes]:
    """Yield the removed keys of a file, batch by batch; raises `VersionDefect` if it is damaged."""
    file_path = f"{path}/{entry.path}"
    for batch in read_batches(data, _schema("gone", table), entry.rows, file_path):
        keys = batch.numbers("key")
        _check_owned(keys, entry, file_path)
        yield Changes(table.name, np.empty(0, np.uint64), np.empty((0, table.dim), np.float32), gone=keys)


def _schema(kind: FileKind, table: TableRecord) -> pa.Schema:
    metadata = {"format": str(FORMAT), "kind": kind, "table": table.name}
    key, floats = plain("key", pa.uint64()), pa.float32()
    if kind == "gone":
        return pa.schema([key], metadata)
    row = fixed_lists("row", _TYPES[table.row_type], table.dim)
    if kind == "rows":
        return pa.schema([key, row, *([plain("scale", floats)] if table.row_type == "int8" else [])], metadata)
    width = 0 if table.optimizer is None else table.optimizer.state_width(table.dim)
    state = [fixed_lists("state", floats, width)] if width else []
    whole = [fixed_lists("row", floats, table.dim)] if table.row_type != "float32" else []
    return pa.schema([plain("tick", pa.uint32()), plain("count", pa.uint8()), *state, *whole], metadata)


def _record_bytes(schema: pa.Schema) -> int:
    def field_bytes(kind: pa.DataType) -> int:
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size * kind.value_type.bit_width // 8)
        return int(kind.bit_width // 8)

    return sum(field_bytes(field.type) for field in schema)


def _check_changes(changes: Changes, table: TableRecord) -> None:
    shape, dtype = (len(changes.keys), table.dim), changes.rows.dtype
    if changes.rows.shape != shape or str(dtype) not in ("float32", table.row_type):
        message = f"rows of table {table.name!r} are {dtype} {changes.rows.shape}, expected {shape}"
        raise UsageError(message, help=f"give float32 rows, or {table.row_type} ones as the version stores them")
    if (changes.scales is not None) != (dtype == np.int8):
        has = "no" if changes.scales is None else "some"
        message = f"rows of table {table.name!r} are {dtype} with {has} scales"
        raise UsageError(message, help="only int8 rows have scales, one for each row")
    if table.optimizer is None or not len(changes):
        return
    width = table.optimizer.state_width(table.dim)
    state = None if changes.state is None else changes.state.shape
    is_complete = changes.ticks is not None and changes.counts is not None
    if state != (shape[0], width) or not is_complete or dtype != np.float32:
        has = "ticks" if changes.ticks is not None else "no ticks"
        message = f"table {table.name!r} learns; its changes have state {state}, {has} and {dtype} rows"
        help = f"give float32 rows with state (n, {width}), ticks and counts, as `changed` returns them"
        raise UsageError(message, help=help)


def _parts_outside(keys: Array, parts: tuple[int, int]) -> str | None:
    """Return the range of parts that the keys belong to, if it exceeds the given parts."""
    if not len(keys) or parts == (0, native.TABLE_PARTS):
        return None
    actual = native.parts_of(keys)
    first, last = int(actual.min()), int(actual.max())
    return f"{first} to {last}" if first < parts[0] or last >= parts[1] else None


def _check_owned(keys: Array, entry: FileEntry, path: str) -> None:
    if (outside := _parts_outside(keys, entry.parts)) is not None:
        raise defective(path, "corrupted", f"its keys belong to parts {outside}, but its shard has {entry.parts}")


def _stored(changes: Changes, row_type: RowType) -> tuple[Array, Array | None]:
    """Return rows and scales as the version stores them."""
    if str(changes.rows.dtype) == row_type:
        return changes.rows, changes.scales
    return encode_rows(np.ascontiguousarray(changes.rows, np.float32), row_type)


def _learning(changes: Changes, table: TableRecord) -> dict[str, Array]:
    """Return the columns that only training reads; `_check_changes` has checked that they exist."""
    columns = {"key": changes.keys, "tick": changes.ticks, "count": changes.counts, "state": changes.state}
    if table.row_type != "float32":
        columns["row"] = np.asarray(changes.rows, np.float32)
    return {name: numbers for name, numbers in columns.items() if numbers is not None}


def _serving(table: TableRecord, batch: Batch) -> Changes:
    scales = batch.numbers("scale") if "scale" in batch else None
    return Changes(table.name, batch.numbers("key"), batch.numbers("row"), scales=scales)


def _training(table: TableRecord, batch: Batch, states: Batch) -> Changes:
    keys = batch.numbers("key")
    rows = states.numbers("row") if "row" in states else batch.numbers("row")
    state = states.numbers("state") if "state" in states else np.empty((len(keys), 0), np.float32)
    return Changes(table.name, keys, rows, state=state, ticks=states.numbers("tick"), counts=states.numbers("count"))
