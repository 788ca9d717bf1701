"""VersionWriter: the files of one version, from any number of processes, and last the manifest that commits it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

import msgspec

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import FileTaken, Oversize, UsageError, VersionDefect
from streamlearn.struct_decoder import from_plain
from streamlearn.table import Changes, Upkeep
from streamlearn.versions.format.coverage import check_manifest
from streamlearn.versions.format.fetch import fetch
from streamlearn.versions.format.manifest import (
    MODEL_KINDS,
    PARTS,
    Cut,
    FileEntry,
    FileKind,
    Head,
    Manifest,
    decode_manifest,
)
from streamlearn.versions.format.pieces import Tensors, write_bytes, write_tensors
from streamlearn.versions.format.record import VersionRef, encode_record
from streamlearn.versions.format.row_files import RowFiles
from streamlearn.versions.format.shard_files import write_upkeep
from streamlearn.versions.format.split import Place
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import DIGEST_CHARS, Store
from streamlearn.versions.store.layout import MANIFEST_NAME, SHAPES, version_folder
from streamlearn.versions.store.settings import FileSettings, checked

__all__ = ["Committed", "VersionWriter", "assemble", "commit"]

_WHOLE = (0, PARTS)
_SUFFIX = ".arrow"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Committed:
    """A committed version: its folder in the store, its manifest, and the sha256 of the manifest."""

    folder: str
    manifest: Manifest
    sha256: str

    @property
    def ref(self) -> VersionRef:
        """The reference that its child uses; for a base that stands for a version, that version's."""
        own = VersionRef(version=self.manifest.version, run=self.manifest.run, sha256=self.sha256)
        return self.manifest.stands_for or own


class VersionWriter:
    """Writes files of a version; the version exists only after `finish`.

    Each process that writes a share makes a writer from the same `Head`, and sends the entries of its files to the
    process that finishes. If a process dies meanwhile, its files are in no manifest, and there is no version.

    Attributes:
        entries: The files that this writer wrote.

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
        """Write the rows and removed keys of all tables, and return the entries of the files for `finish`.

        `changes` are from `TableSet.changed`, grouped by table; a table without changes is unchanged. Each kind of file
        takes memory for about an eighth of a file. `shard` is this shard's number and the number of shards; `parts` are
        the parts it owns: the first, and the one after the last.

        Raises:
            UsageError: Changes do not match the tables of this version, or these parts.
            StoreError: The store refused a file.
        """
        tables = {table.name: table for table in self.head.tables}
        entries: list[FileEntry] = []
        for name, batches in groupby(changes, key=lambda batch: batch.table):
            table = tables.pop(name, None)
            if table is None:
                message = f"changes of table {name!r} came; those of {sorted(tables)} are still missing"
                raise UsageError(message, help="give the changes of all tables of the version together")
            entries += _written(RowFiles(self._place, table, shard, parts), batches)
        for table in tables.values():
            entries += _written(RowFiles(self._place, table, shard, parts), ())
        return self._added(entries)

    def add_upkeep(
        self, table: str, upkeep: Upkeep, *, shard: tuple[int, int] = (0, 1), parts: tuple[int, int] = _WHOLE
    ) -> list[FileEntry]:
        """Write the upkeep of a table: all pages for a base, the changed ones for a delta."""
        entry = msgspec.structs.replace(
            _entry("upkeep", f"{table}-{shard[0]}"), table=table, shard=shard[0], shards=shard[1], parts=parts
        )
        return self._added(write_upkeep(self._place, entry, upkeep))

    def add_dense(self, tensors: Tensors) -> list[FileEntry]:
        """Write all dense weights."""
        return self._added(write_tensors(self._place, _entry("dense", "weights"), tensors))

    def add_dense_optimizer(self, tensors: Tensors) -> list[FileEntry]:
        """Write the complete optimizer state of the dense weights."""
        return self._added(write_tensors(self._place, _entry("dense_optimizer", "state"), tensors))

    def add_marks(self, named: Mapping[str, bytes | memoryview]) -> list[FileEntry]:
        """Write the trainer's marks, by name."""
        return self._added(write_bytes(self._place, _entry("marks", "marks"), named))

    def add_golden(self, named: Mapping[str, bytes | memoryview]) -> list[FileEntry]:
        """Write golden requests and their scores, by name."""
        return self._added(write_bytes(self._place, _entry("golden", "golden"), named))

    def add_predictions(self, tensors: Tensors) -> list[FileEntry]:
        """Write first predictions that wait for their labels: for a base all, for a delta those since its parent."""
        return self._added(write_tensors(self._place, _entry("predictions", "waiting"), tensors))

    def add_library(self, tensors: Tensors) -> list[FileEntry]:
        """Write items of the library: for a base and a revert all, for a delta those that changed since its parent."""
        return self._added(write_tensors(self._place, _entry("library", "items"), tensors))

    def copy_model(self, version: Committed) -> None:
        """Take over the files of the whole model from another version, verified, with one of them in memory at a time.

        Raises:
            VersionDefect: A file is damaged or missing.
        """
        for kind in MODEL_KINDS:
            self.entries += [self._copied(version, entry) for entry in version.manifest.of_kind(kind)]

    def finish(self, cut: Cut, others: Iterable[FileEntry] = (), *, clock: Clock = SYSTEM_CLOCK) -> Committed:
        """Commit the version with the files of this writer and those of other processes.

        Raises:
            VersionDefect: Files are missing, duplicated or in another store, or the parent is not in this one.
            FileTaken: Another writer has committed this version of this run.
        """
        manifest = assemble(self.head, cut, [*self.entries, *others], written_wall_ms=clock.wall_ms())
        self._check_stored(manifest)
        return commit(self._store, manifest, bytes_max=self._place.settings.manifest_bytes_max)

    def _copied(self, version: Committed, entry: FileEntry) -> FileEntry:
        folder = self.head.folder
        data = fetch(self._store, version.folder, entry, bytes_max=self._store.loading.file_bytes_max)
        # The name begins like that of any file of its kind, and its digest is the same.
        stem = entry.path.removesuffix(_SUFFIX).removesuffix(f"-{entry.sha256[:DIGEST_CHARS]}")
        with self._store.writer(f"{folder}/{stem}", _SUFFIX) as file:
            for begin in range(0, len(data), _CHUNK_BYTES):
                file.write(data[begin : begin + _CHUNK_BYTES])
            stored = file.finish()
        return msgspec.structs.replace(entry, path=stored.path.removeprefix(f"{folder}/"))

    def _check_stored(self, manifest: Manifest) -> None:
        """Check that files and parent are in this store, before readers find out that a shard wrote to another."""
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
    """Make the manifest of files from one or more shards.

    Raises:
        VersionDefect: The files do not cover every part of every table once, or do not match each other.
        UsageError: A value cannot be stored in a manifest, such as a metric that is not finite.
    """
    fields = {name: getattr(source, name) for source in (head, cut) for name in source.__struct_fields__}
    manifest = Manifest(written_wall_ms=written_wall_ms, files=tuple(entries), **fields)
    try:
        # Decode it as readers will: JSON has no infinite numbers, for example.
        manifest = decode_manifest(encode_record(manifest), manifest.folder)
    except VersionDefect as error:
        message = f"version {head.version} cannot be described in a manifest: {error.message}"
        raise UsageError(message, help="correct the named value; numbers must be finite") from None
    check_manifest(manifest, manifest.folder)
    return manifest


def commit(store: Store, manifest: Manifest, *, bytes_max: int) -> Committed:
    """Sign and write a manifest, which commits its version; of two writers exactly one succeeds.

    Raises:
        ConfigError: A signature is required, and no signing key is set.
        FileTaken: Another manifest exists.
        Oversize: It has more than `bytes_max` bytes.
    """
    manifest = store.signatures.signed(manifest)
    data, folder = encode_record(manifest), manifest.folder
    if len(data) > bytes_max:
        message = f"the manifest of {folder} has {len(data)} bytes; the limit is {bytes_max}"
        raise Oversize(message, help="write fewer, larger files (file_bytes_max)")
    path = f"{folder}/{MANIFEST_NAME}"
    try:
        sha256 = store.create(path, data).sha256
    except FileTaken:
        if bytes(store.read(path, bytes_max=bytes_max)) != data:
            raise
        # It is ours: the reply to the first attempt was lost, and the client repeated it.
        sha256 = hashlib.sha256(data).hexdigest()
    return Committed(folder, manifest, sha256)


def _written(files: RowFiles, batches: Iterable[Changes]) -> list[FileEntry]:
    try:
        for batch in batches:
            files.add(batch)
        return files.finish()
    finally:
        files.abandon()


def _entry(kind: FileKind, name: str) -> FileEntry:
    return FileEntry(kind=kind, path=f"{kind}/{name}", rows=0, bytes=0, sha256="0" * 64)
