"""Split: records of one kind as a row of Arrow files, none larger than allowed. It keeps a batch in memory, no more."""

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

__all__ = ["FRAME_BYTES", "ArrowFile", "Place", "Records", "SplitFiles"]

Array = npt.NDArray[Any]

# Kept free in a file for its frame: schema, footer, and the heads of batches.
FRAME_BYTES = 16_384
# A file has at least so many batches when it is full, so that one batch is a small part of its memory.
_BATCHES_MIN = 8


@dataclass(frozen=True)
class Place:
    """Where files of a version go.

    Attributes:
        store: The store.
        folder: The version's folder.
        settings: Limits of files.
    """

    store: Store
    folder: str
    settings: FileSettings

    @property
    def free_bytes(self) -> int:
        """What a file may hold beside its frame."""
        return self.settings.file_bytes_max - FRAME_BYTES


@dataclass(frozen=True)
class Records:
    """How many records a batch and a file have; files that lie side by side share it.

    Attributes:
        batch: Records of a batch.
        batches: Batches of a file.
    """

    batch: int
    batches: int

    @classmethod
    def of(cls, record_bytes: int, place: Place) -> Records:
        """What fits.

        Raises:
            ConfigError: Not even one record does.
        """
        most = place.free_bytes // record_bytes
        if not most:
            message = f"file_bytes_max is {place.settings.file_bytes_max}, but one record has {record_bytes} bytes"
            raise ConfigError(message, help=f"raise it to {record_bytes + FRAME_BYTES} or more")
        # At most twice as many batches as asked for, so that their heads, under a kilobyte each, are in the frame.
        batch = max(1, most // _BATCHES_MIN)
        return cls(batch, most // batch)


class ArrowFile:
    """One file on its way into a store.

    Args:
        place: Where files go.
        entry: What is known of it; its path is what stands before the digest.
        schema: Its columns.
    """

    def __init__(self, place: Place, entry: FileEntry, schema: pa.Schema) -> None:
        self._folder, self._entry, self._schema = place.folder, entry, schema
        self._file: FileWriter = place.store.writer(f"{place.folder}/{entry.path}", ".arrow")
        self._writer = pa.ipc.new_file(self._file, schema)
        self.rows = 0

    def write(self, columns: list[pa.Array], keys_sha256: str = "") -> None:
        """Write some records."""
        write_batch(self._writer, self._schema, columns, keys_sha256)
        self.rows += len(columns[0])

    def finish(self) -> FileEntry:
        """Let it appear."""
        self._writer.close()
        stored = self._file.finish()
        path = stored.path.removeprefix(f"{self._folder}/")
        return msgspec.structs.replace(self._entry, path=path, rows=self.rows, bytes=stored.bytes, sha256=stored.sha256)

    def abandon(self) -> None:
        """Forget it."""
        self._file.abandon()


class SplitFiles:
    """Records of one kind.

    Args:
        place: Where they go.
        entry: What is the same of all files; `path` is the name before number and digest.
        schema: Their columns.
        records: How many go together.
        beside: Whether keys are in other files, record by record, so that batches say the digest of theirs.
    """

    def __init__(
        self, place: Place, entry: FileEntry, schema: pa.Schema, records: Records, *, beside: bool = False
    ) -> None:
        self._place, self._entry, self._schema, self._records = place, entry, schema, records
        self._beside = beside
        self._names = ["key", *schema.names] if beside else schema.names
        self._waiting: list[Mapping[str, Array]] = []
        self._waiting_rows, self._batches = 0, 0
        self._file: ArrowFile | None = None
        self._entries: list[FileEntry] = []

    def add(self, columns: Mapping[str, Array]) -> None:
        """Take some records; arrays are not to be written to afterwards.

        Args:
            columns: Numbers by column, and the keys as `key` in any case.
        """
        self._waiting.append(columns)
        self._waiting_rows += len(columns["key"])
        if self._waiting_rows >= self._records.batch:
            self._drain(self._waiting_rows - self._waiting_rows % self._records.batch)

    def finish(self) -> list[FileEntry]:
        """Let the last file appear, be it empty; gives all of them."""
        self._drain(self._waiting_rows)
        if self._file is not None or not self._entries:
            self._end(self._file or self._begin())
        count = len(self._entries)
        return [msgspec.structs.replace(entry, count=count) for entry in self._entries]

    def abandon(self) -> None:
        """Forget the file that is not finished."""
        if self._file is not None:
            self._file.abandon()

    def _drain(self, rows: int) -> None:
        """Write so many of the waiting records."""
        if not rows:
            return
        taken = {name: np.concatenate([one[name] for one in self._waiting]) for name in self._names}
        for begin in range(0, rows, self._records.batch):
            end = min(begin + self._records.batch, rows)
            self._write({name: numbers[begin:end] for name, numbers in taken.items()})
        left = {name: numbers[rows:].copy() for name, numbers in taken.items()}
        self._waiting_rows -= rows
        self._waiting = [left] if self._waiting_rows else []

    def _write(self, columns: Mapping[str, Array]) -> None:
        file = self._file or self._begin()
        digest = hashlib.sha256(np.ascontiguousarray(columns["key"]).data).hexdigest() if self._beside else ""
        file.write([column(field, columns[field.name]) for field in self._schema], digest)
        self._batches += 1
        if self._batches == self._records.batches:
            self._end(file)

    def _begin(self) -> ArrowFile:
        number = len(self._entries)
        entry = msgspec.structs.replace(self._entry, path=f"{self._entry.path}-{number}", number=number)
        self._file, self._batches = ArrowFile(self._place, entry, self._schema), 0
        return self._file

    def _end(self, file: ArrowFile) -> None:
        self._file = None
        self._entries.append(file.finish())
