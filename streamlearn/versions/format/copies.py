"""Copies: files that one version takes over unchanged from another, verified while they are copied."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streamlearn.versions.format.fetch import fetch
from streamlearn.versions.format.manifest import FileEntry, FileKind
from streamlearn.versions.format.writer import Committed
from streamlearn.versions.store.interface import DIGEST_CHARS, Store
from streamlearn.versions.store.settings import LoadSettings

__all__ = ["MODEL_KINDS", "copy_files"]

MODEL_KINDS: tuple[FileKind, ...] = ("dense", "dense_optimizer", "marks", "golden")
"""Files of the whole model, complete in every version."""

_SUFFIX = ".arrow"
_CHUNK_BYTES = 1 << 20


def copy_files(
    store: Store, version: Committed, folder: str, kinds: Sequence[FileKind], limits: LoadSettings
) -> list[FileEntry]:
    """Copy files of a version into another version's folder, and return their entries for its manifest.

    One file is in memory at a time.

    Raises:
        VersionDefect: A file is damaged or missing.
    """
    return [
        _copied(store, version, folder, entry, limits) for kind in kinds for entry in version.manifest.of_kind(kind)
    ]


def _copied(store: Store, version: Committed, folder: str, entry: FileEntry, limits: LoadSettings) -> FileEntry:
    data = fetch(store, version.folder, entry, bytes_max=limits.file_bytes_max)
    # The name begins like that of any file of its kind, and its digest is the same.
    stem = entry.path.removesuffix(_SUFFIX).removesuffix(f"-{entry.sha256[:DIGEST_CHARS]}")
    with store.writer(f"{folder}/{stem}", _SUFFIX) as file:
        for begin in range(0, len(data), _CHUNK_BYTES):
            file.write(data[begin : begin + _CHUNK_BYTES])
        stored = file.finish()
    return msgspec.structs.replace(entry, path=stored.path.removeprefix(f"{folder}/"))
