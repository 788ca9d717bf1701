"""Split: records of one kind as a series of Arrow files, each within the size limit. At most one batch is buffered."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamlearn.errors import ConfigError
from streamlearn.versions.format.arrow import column, write_batch
from streamlearn.versions.format.manifest import FileEntry
from streamlearn.versions.store.interface import FileWriter, Store
from streamlearn.versions.store.settings import FileSettings

__all__ = ["ArrowFile", "Place", "Records", "SplitFiles"]

Array = npt.NDArray[Any]

# Reserved in a file for its frame: schema, footer, and the heads of batches.
_FRAME_BYTES = 16_384
# A full file has at least this many batches, so that one batch is a small part of its memory.
_BATCHES_MIN = 8


@dataclass(frozen=True)
class Place:
    """A version's folder in a store, and the limits of its files."""

    store: Store
    folder: str
    settings: FileSettings

    @property
    def free_bytes(self) -> int:
        """Bytes of a file beyond its frame."""
        return self.settings.file_bytes_max - _FRAME_BYTES


@dataclass(frozen=True)
class Records:
    """Records per batch and batches per file. Files that match each other record by record share it."""

    batch: int
    batches: int

    @classmethod
    def of(cls, record_bytes: int, place: Place) -> Records:
        """Compute what fits; raises `ConfigError` if a single record is too large."""
        records_max = place.free_bytes // record_bytes
        if not records_max:
            message = f"file_bytes_max is {place.settings.file_bytes_max}, but one record has {record_bytes} bytes"
            raise ConfigError(message, help=f"raise it to {record_bytes + _FRAME_BYTES} or more")
        # A file has at most twice the minimum of batches, so their heads, under a kilobyte each, fit in the frame.
        batch = max(1, records_max // _BATCHES_MIN)
        return cls(batch, records_max // batch)


class ArrowFile:
    """One of several files being written; the path of `entry` is the part of the name before number and digest."""

    def __init__(self, place: Place, entry: FileEntry, schema: pa.Schema, number: int) -> None:
        self._folder, self._schema = place.folder, schema
        self._entry = msgspec.structs.replace(entry, path=f"{entry.path}-{number}", number=number)
        self._file: FileWriter = place.store.writer(f"{place.folder}/{self._entry.path}", ".arrow")
        self._writer = pa.ipc.new_file(self._file, schema)
        self.rows = 0

    def write(self, columns: list[pa.Array], keys_sha256: str = "") -> None:
        """Write a batch of records."""
        write_batch(self._writer, self._schema, columns, keys_sha256)
        self.rows += len(columns[0])

    def finish(self) -> FileEntry:
        """Close the file, make it visible, and return its entry."""
        self._writer.close()
        stored = self._file.finish()
        path = stored.path.removeprefix(f"{self._folder}/")
        return msgspec.structs.replace(self._entry, path=path, rows=self.rows, bytes=stored.bytes, sha256=stored.sha256)

    def abandon(self) -> None:
        """Discard the file unless it is finished."""
        self._file.abandon()


class SplitFiles:
    """A series of files being written.

    `entry` has the fields that all files share; its path is the name before number and digest. With `keys_elsewhere`,
    the keys are in other files, record by record, and each batch carries the digest of its keys.
    """

    def __init__(
        self, place: Place, entry: FileEntry, schema: pa.Schema, records: Records, *, keys_elsewhere: bool = False
    ) -> None:
        self._place, self._entry, self._schema, self._records = place, entry, schema, records
        self._keys_elsewhere = keys_elsewhere
        self._names = ["key", *schema.names] if keys_elsewhere else schema.names
        self._pending: list[Mapping[str, Array]] = []
        self._pending_rows, self._batches = 0, 0
        self._file: ArrowFile | None = None
        self._entries: list[FileEntry] = []

    def add(self, columns: Mapping[str, Array]) -> None:
        """Add records by column, always including `key`; the arrays must not be modified afterwards."""
        self._pending.append(columns)
        self._pending_rows += len(columns["key"])
        if self._pending_rows >= self._records.batch:
            self._drain(self._pending_rows - self._pending_rows % self._records.batch)

    def finish(self) -> list[FileEntry]:
        """Close the last file and return all entries; without records there is one empty file."""
        self._drain(self._pending_rows)
        if self._file is not None or not self._entries:
            self._end(self._file or self._begin())
        count = len(self._entries)
        return [msgspec.structs.replace(entry, count=count) for entry in self._entries]

    def abandon(self) -> None:
        """Discard the unfinished file."""
        if self._file is not None:
            self._file.abandon()

    def _drain(self, rows: int) -> None:
        """Write the first pending records."""
        if not rows:
            return
        merged = {name: np.concatenate([columns[name] for columns in self._pending]) for name in self._names}
        for begin in range(0, rows, self._records.batch):
            end = min(begin + self._records.batch, rows)
            self._write({name: numbers[begin:end] for name, numbers in merged.items()})
        remaining = {name: numbers[rows:].copy() for name, numbers in merged.items()}
        self._pending_rows -= rows
        self._pending = [remaining] if self._pending_rows else []

    def _write(self, columns: Mapping[str, Array]) -> None:
        file = self._file or self._begin()
        digest = hashlib.sha256(np.ascontiguousarray(columns["key"]).data).hexdigest() if self._keys_elsewhere else ""
        file.write([column(field, columns[field.name]) for field in self._schema], digest)
        self._batches += 1
        if self._batches == self._records.batches:
            self._end(file)

    def _begin(self) -> ArrowFile:
        self._file, self._batches = ArrowFile(self._place, self._entry, self._schema, len(self._entries)), 0
        return self._file

    def _end(self, file: ArrowFile) -> None:
        self._file = None
        self._entries.append(file.finish())
