"""ItemIndexes: the items of each version that a node holds: vectors in blocks, and ids. It knows no request."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streamlearn.features.retrieval import VECTORS
from streamlearn.native import native
from streamlearn.table import Changes
from streamlearn.versions import Committed, Store, VersionRef, load_tensors
from streamlearn.versions.format.fetch import fetch, in_order
from streamlearn.versions.format.library_files import GONE, check_library
from streamlearn.versions.format.manifest import FileEntry, TableRecord
from streamlearn.versions.format.row_files import read_gone, read_rows
from streamlearn.versions.store.defect import defective

__all__ = ["ItemIndexes", "VersionItems"]


class VersionItems(NamedTuple):
    """The items of a version, as `native.Front.add` takes them."""

    blocks: Any
    ids: Any
    as_of_ms: int | None


class ItemIndexes:
    """Reads the items of versions, each as what it changes of its parent.

    A version shares what it does not change with its parent, and items are what the ref says: a rebuild of the tables
    reads no version again.
    """

    def __init__(self, store: Store, *, dim: int, is_text: bool) -> None:
        self._store, self._dim, self._is_text = store, dim, is_text
        self._versions: dict[VersionRef, VersionItems] = {}

    def of(self, version: VersionRef) -> VersionItems | None:
        """Return the items of a version that was loaded; None if it has none."""
        return self._versions.get(version)

    def load(self, version: Committed, parent: VersionRef | None) -> None:
        """Read a version; see `Hooks.load`.

        Raises:
            VersionDefect: A file is damaged, or does not fit the application.
        """
        record = next((table for table in version.manifest.tables if table.name == VECTORS), None)
        if version.ref in self._versions or record is None:
            return
        if (record.dim, record.row_type) != (self._dim, "int8"):
            what = f"its vectors are {record.dim} {record.row_type}, not {self._dim} int8"
            raise defective(version.folder, "incompatible", what)
        none = VersionItems(native.Blocks(self._dim), native.RawIds(self._is_text), None)
        before = none if parent is None else self._versions[parent]
        try:
            ids = self._ids(version, before.ids)
            blocks = self._blocks(version, record, before.blocks, ids)
        except ValueError as error:
            raise defective(version.folder, "corrupted", f"its items: {error}") from None
        self._versions[version.ref] = VersionItems(blocks, ids, version.manifest.watermark_ms)

    def retire(self, version: VersionRef) -> None:
        """Forget a version; requests under way keep what they read."""
        self._versions.pop(version, None)

    def _ids(self, version: Committed, before: Any) -> Any:
        tensors = load_tensors(self._store, version, "library")
        check_library(tensors, version.folder)
        ids = (tensors["id$"], tensors["id"]) if self._is_text else tensors["id"]
        if version.manifest.kind != "delta":  # then it has all items
            before = native.RawIds(self._is_text)
        return before.apply(tensors["key"], ids, tensors[GONE])

    def _blocks(self, version: Committed, record: TableRecord, before: Any, ids: Any) -> Any:
        def read(entry: FileEntry) -> list[Changes]:
            data = fetch(self._store, version.folder, entry, bytes_max=self._store.loading.file_bytes_max)
            if entry.kind == "gone":
                return list(read_gone(record, entry, data, version.folder))
            return list(read_rows(record, entry, data, None, version.folder))

        manifest = version.manifest
        entries = [entry for entry in (*manifest.of_kind("rows"), *manifest.of_kind("gone")) if entry.table == VECTORS]
        changes = [
            change
            for of_file in in_order(entries, read, threads=self._store.loading.fetch_threads)
            for change in of_file
        ]
        keys, gone = np.zeros(0, np.uint64), [change.gone for change in changes if change.gone is not None]
        rows = [change for change in changes if len(change)]
        values, scales = np.zeros((0, self._dim), np.int8), np.zeros(0, np.float32)
        if rows:
            keys = np.concatenate([change.keys for change in rows])
            values = np.concatenate([change.rows for change in rows])
            scales = np.concatenate([change.scales for change in rows if change.scales is not None])
        if (key := ids.lacks(keys)) is not None:
            raise defective(version.folder, "corrupted", f"it has a vector for key {key}, but no item")
        return before.apply(keys, values, scales, np.concatenate([np.zeros(0, np.uint64), *gone]))
