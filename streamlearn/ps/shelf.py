"""Shelf: where a shard's versions are written to and read from. It decides nothing."""

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
    """The versions of one model.

    Args:
        store: Where they are.
        model: Its name.
    """

    def __init__(self, store: Store, model: str) -> None:
        self.store, self.model = store, model

    @classmethod
    def of(cls, folder: AppFolder) -> Shelf:
        """The shelf of an application, as its settings say."""
        return cls(open_store(folder.store_url, settings=folder.settings.versions), folder.app.name)

    def write(
        self, head: Head, place: Place, changes: Iterable[Changes], upkeep: Mapping[str, Upkeep]
    ) -> tuple[FileEntry, ...]:
        """Write what one shard has to say of a version; the files are whole when this returns."""
        writer = VersionWriter(self.store, head)
        shard, parts = (place.number, place.count), place.parts
        writer.add_rows(changes, shard=shard, parts=parts)
        for table, known in upkeep.items():
            writer.add_upkeep(table, known, shard=shard, parts=parts)
        return tuple(writer.entries)

    def load(self, version: int, sha256: str, tables: TableSet, place: Place) -> tuple[int, int]:
        """Fill empty tables with a shard's parts of a version, as they are to be trained on.

        Returns:
            Rows and bytes of the files that were read.

        Raises:
            VersionDefect: The version cannot be read whole.
            VersionRefused: It is not the one of this digest.
        """
        chain = Chain.find(self.store, self.model, upto=version, sha256=sha256)
        if (chain.ref.version, chain.ref.sha256) != (version, sha256):
            found = f"{chain.ref.version} ({chain.ref.sha256[:16]})"
            message = f"expected version {version} ({sha256[:16]}) of {self.model}, found {found}"
            raise VersionRefused(message, help="the trainer and the shards must use the same store")
        loaded = load(chain, tables, training=True, parts=place.parts)
        return sum(one.rows for one in loaded.versions), sum(one.bytes for one in loaded.versions)
