"""Shelf: the versions of a model, as a shard writes and reads them. It decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamlearn.apps import AppFolder
from streamlearn.errors import VersionRefused
from streamlearn.ps.place import Place
from streamlearn.table import Changes, TableSet, Upkeep
from streamlearn.versions import Chain, Head, Store, VersionWriter, load, open_store
from streamlearn.versions.format.manifest import FileEntry

__all__ = ["Shelf"]


class Shelf:
    """The versions of one model in a store."""

    def __init__(self, store: Store, model: str) -> None:
        self.store, self.model = store, model

    @classmethod
    def of(cls, folder: AppFolder) -> Shelf:
        """The shelf of an application, as its settings configure it."""
        return cls(open_store(folder.store_url, settings=folder.settings.versions), folder.app.name)

    def write(
        self, head: Head, place: Place, changes: Iterable[Changes], upkeep: Mapping[str, Upkeep]
    ) -> tuple[FileEntry, ...]:
        """Write one shard's files of a version; the files are complete when this returns."""
        writer = VersionWriter(self.store, head)
        shard, parts = (place.number, place.count), place.parts
        writer.add_rows(changes, shard=shard, parts=parts)
        for table, pages in upkeep.items():
            writer.add_upkeep(table, pages, shard=shard, parts=parts)
        return tuple(writer.entries)

    def load(self, version: int, sha256: str, tables: TableSet, place: Place) -> tuple[int, int]:
        """Fill empty tables with a shard's parts of a version, for training; returns the rows and bytes read.

        Raises:
            VersionDefect: The version cannot be read completely.
            VersionRefused: The version in the store has another digest.
        """
        chain = Chain.find(self.store, self.model, upto=version, sha256=sha256)
        if (chain.ref.version, chain.ref.sha256) != (version, sha256):
            stored = f"{chain.ref.version} ({chain.ref.sha256[:16]})"
            message = f"expected version {version} ({sha256[:16]}) of {self.model}, found {stored}"
            raise VersionRefused(message, help="the trainer and the shards must use the same store")
        loaded = load(chain, tables, training=True, parts=place.parts).versions
        return sum(link.rows for link in loaded), sum(link.bytes for link in loaded)
