"""VersionWriter: the files of one version, by any number of processes, and the manifest that commits it, last."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import FileTaken, Oversize, UsageError, VersionDefect
from streamlearn.struct_decoder import from_plain
from streamlearn.table import Changes, Upkeep
from streamlearn.versions.format.coverage import check_manifest
from streamlearn.versions.format.manifest import (
    PARTS,
    Cut,
    FileEntry,
    FileKind,
    Head,
    Manifest,
    VersionRef,
    decode_manifest,
    encode_manifest,
)
from streamlearn.versions.format.pieces import Tensors, write_bytes, write_tensors
from streamlearn.versions.format.row_files import RowFiles
from streamlearn.versions.format.shard_files import write_upkeep
from streamlearn.versions.format.split import Place
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.layout import MANIFEST_NAME, SHAPES, version_folder
from streamlearn.versions.store.settings import FileSettings, checked

__all__ = ["Committed", "VersionWriter", "assemble", "commit"]

_WHOLE = (0, PARTS)


@dataclass(frozen=True)
class Committed:
    """A version that is committed.

    Attributes:
        folder: Where it is in the store.
        manifest: What it is.
        sha256: Of its manifest.
    """

    folder: str
    manifest: Manifest
    sha256: str

    @property
    def ref(self) -> VersionRef:
        """What the version after it names it by; of a base that stands for a version, that version's."""
        mine = VersionRef(version=self.manifest.version, run=self.manifest.run, sha256=self.sha256)
        return self.manifest.stands_for or mine


class VersionWriter:
    """Writes files of a version; nothing is a version before `finish`.

    Each process that has some of it makes its own from the same `Head`, and sends the entries of its files to the
    one that finishes. Whatever dies meanwhile leaves files that no manifest names, and no version.

    Args:
        store: Where to.
        head: What the version is.
        settings: Limits of files.

    Attributes:
        entries: The files written by this writer.

    Examples:
        >>> import numpy as np
        >>> from streamlearn.table import Changes
        >>> from streamlearn.versions import Chain, Cut, Head, VersionWriter, open_store
        >>> from streamlearn.versions.format.manifest import TableRecord
        >>> store = open_store("memory://writer-example")
        >>> head = Head(
        ...     model="ctr", run=1, version=1, kind="base", parent=None, fingerprint="f", windows="w",
        ...     tables=(TableRecord(name="main", dim=2, initial_range=0.1),),
        ... )
        >>> writer = VersionWriter(store, head)
        >>> entries = writer.add_rows([Changes("main", np.array([7], np.uint64), np.ones((1, 2), np.float32))])
        >>> writer.finish(Cut()).folder
        'ctr/bases/000000000001-00000001'
        >>> Chain.find(store, "ctr").version
        1
    """

    def __init__(self, store: Store, head: Head, settings: FileSettings | None = None) -> None:
        self.head = from_plain(msgspec.to_builtins(head), Head)
        self.entries: list[FileEntry] = []
        self._store = store
        self._place = Place(store, self.head.folder, checked(settings or store.files))

    def add_rows(
        self, changes: Iterable[Changes], *, shard: tuple[int, int] = (0, 1), parts: tuple[int, int] = _WHOLE
    ) -> list[FileEntry]:
        """Write rows and keys that are gone, of all tables; a table nothing is said of has not changed.

        Args:
            changes: As `TableSet.changed` gives them, those of a table one after the other. Memory for about
                an eighth of a file is taken for each kind of file.
            shard: Which shard this is, and how many there are.
            parts: The parts it owns: the first, and the one after the last.

        Returns:
            The files, as plain data, for `finish`.

        Raises:
            UsageError: Changes are not those of the tables of this version, or not of these parts.
            StoreError: The store refuses.
        """
        names = {table.name: table for table in self.head.tables}
        entries: list[FileEntry] = []
        open_files: RowFiles | None = None
        try:
            current = ""
            for one in changes:
                if one.table != current:
                    entries += open_files.finish() if open_files is not None else []
                    table = names.pop(one.table, None)
                    if table is None:
                        message = f"changes of table {one.table!r} came; those of {sorted(names)} are still missing"
                        raise UsageError(message, help="give the changes of all tables of the version together")
                    current, open_files = one.table, RowFiles(self._place, table, shard, parts)
                assert open_files is not None
                open_files.add(one)
            entries += open_files.finish() if open_files is not None else []
            for table in names.values():
                open_files = RowFiles(self._place, table, shard, parts)
                entries += open_files.finish()
        finally:
            if open_files is not None:
                open_files.abandon()
        return self._added(entries)

    def add_upkeep(
        self, table: str, upkeep: Upkeep, *, shard: tuple[int, int] = (0, 1), parts: tuple[int, int] = _WHOLE
    ) -> list[FileEntry]:
        """Write what a table knows beside its rows; for a base all pages, for a delta those that changed."""
        entry = msgspec.structs.replace(
            _entry("upkeep", f"{table}-{shard[0]}"), table=table, shard=shard[0], shards=shard[1], parts=parts
        )
        return self._added(write_upkeep(self._place, entry, upkeep))

    def add_dense(self, tensors: Tensors) -> list[FileEntry]:
        """Write the dense weights, whole."""
        return self._added(write_tensors(self._place, _entry("dense", "weights"), tensors))

    def add_dense_optimizer(self, tensors: Tensors) -> list[FileEntry]:
        """Write the state of the dense weights' optimizer, whole."""
        return self._added(write_tensors(self._place, _entry("dense_optimizer", "state"), tensors))

    def add_marks(self, named: Mapping[str, bytes | memoryview]) -> list[FileEntry]:
        """Write what has been learned, by name."""
        return self._added(write_bytes(self._place, _entry("marks", "marks"), named))

    def add_golden(self, named: Mapping[str, bytes | memoryview]) -> list[FileEntry]:
        """Write golden requests and their scores, by name."""
        return self._added(write_bytes(self._place, _entry("golden", "golden"), named))

    def finish(self, cut: Cut, others: Iterable[FileEntry] = (), *, clock: Clock = SYSTEM_CLOCK) -> Committed:
        """Commit the version.

        Args:
            cut: What it has learned.
            others: Entries of files that other processes wrote.
            clock: When it is written.

        Raises:
            VersionDefect: Files are missing or there twice, also when they were written to another store; or the
                parent is not in this one.
            FileTaken: Another writer has committed this version of this run.
        """
        manifest = assemble(self.head, cut, [*self.entries, *others], written_wall_ms=clock.wall_ms())
        self._check_there(manifest)
        return commit(self._store, manifest, bytes_max=self._place.settings.manifest_bytes_max)

    def _check_there(self, manifest: Manifest) -> None:
        """What is named is in this store: shards that wrote to another would be found out too late."""
        for file in manifest.files:
            path = f"{manifest.folder}/{file.path}"
            size = self._store.size(path)
            if size is None:
                what = f"shard {file.shard} wrote it, but {self._store.url} does not have it"
                raise defective(path, "missing_file", what)
            if size != file.bytes:
                raise defective(path, "truncated", f"it has {size} bytes, but {file.bytes} were written")
        parent = manifest.parent
        if parent is not None:
            folders = [version_folder(manifest.model, shape, parent.version, parent.run) for shape in SHAPES]
            if not any(self._store.exists(f"{folder}/{MANIFEST_NAME}") for folder in folders):
                raise defective(manifest.folder, "gap", f"its parent {parent.version} is not in {self._store.url}")

    def _added(self, entries: list[FileEntry]) -> list[FileEntry]:
        self.entries += entries
        return entries


def assemble(head: Head, cut: Cut, entries: Iterable[FileEntry], *, written_wall_ms: int) -> Manifest:
    """A manifest of files that may be several shards'.

    Raises:
        VersionDefect: The files do not cover every part of every table once, or do not belong together.
        UsageError: Something cannot be said in a manifest, such as a metric that is no finite number.
    """
    said = {name: getattr(one, name) for one in (head, cut) for name in one.__struct_fields__}
    manifest = Manifest(written_wall_ms=written_wall_ms, files=tuple(entries), **said)
    try:
        # As it will be read: an infinite number, say, is none in JSON.
        manifest = decode_manifest(encode_manifest(manifest), manifest.folder)
    except VersionDefect as error:
        message = f"version {head.version} cannot be described in a manifest: {error.message}"
        raise UsageError(message, help="correct the named value; numbers must be finite") from None
    check_manifest(manifest, manifest.folder)
    return manifest


def commit(store: Store, manifest: Manifest, *, bytes_max: int) -> Committed:
    """Sign a manifest and write it, which commits its version: exactly one of two writers succeeds.

    Raises:
        ConfigError: Readers want a signature, and there is no key to sign with.
        FileTaken: Another manifest is there already.
        Oversize: It is larger than readers would read.
    """
    manifest = store.signatures.signed(manifest)
    data, folder = encode_manifest(manifest), manifest.folder
    if len(data) > bytes_max:
        message = f"the manifest of {folder} has {len(data)} bytes; the limit is {bytes_max}"
        raise Oversize(message, help="write fewer, larger files (file_bytes_max)")
    path = f"{folder}/{MANIFEST_NAME}"
    try:
        sha256 = store.create(path, data).sha256
    except FileTaken:
        there = store.read(path, bytes_max=bytes_max)
        if bytes(there) != data:
            raise
        # Ours: the answer to the first attempt was lost, and it was made again.
        sha256 = hashlib.sha256(data).hexdigest()
    return Committed(folder, manifest, sha256)


def _entry(kind: FileKind, name: str) -> FileEntry:
    return FileEntry(kind=kind, path=f"{kind}/{name}", rows=0, bytes=0, sha256="0" * 64)
