"""Store: files by path that appear whole or not at all and never change. It does not know their contents."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamlearn.errors import BadRecord, FileMissing, FileTaken, Oversize
from streamlearn.settings.versions import VersionSettings
from streamlearn.versions.format.signatures import Signatures
from streamlearn.versions.store.settings import FileSettings, LoadSettings, checked
from streamlearn.versions.store.url import check_path, parse_store_url

__all__ = ["DIGEST_CHARS", "Entry", "FileFound", "FileWriter", "Store", "Stored", "open_store"]

# Hex digits of the digest in a file's name; the manifest has all of them.
DIGEST_CHARS = 16


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder in a listed folder, by its name without the path."""

    name: str
    is_folder: bool


@dataclass(frozen=True, slots=True)
class Stored:
    """A complete file in the store, with its digest in hex as `sha256sum` prints it."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FileFound:
    """A file as `Store.walk` lists it.

    Attributes:
        written_wall_ms: Time of the last write, by the store's clock.
        is_finished: False for the file of a writer that is still at work or was killed.
    """

    path: str
    bytes: int
    written_wall_ms: int
    is_finished: bool = True


class FileWriter(ABC):
    """A file being written to a store. Nothing exists under its name before `finish`.

    With a suffix, its name is PATH-DIGEST followed by the suffix; with None, it is the path. It is a file object for
    libraries such as Arrow. A `with` block abandons it unless it was finished.
    """

    def __init__(self, path: str, suffix: str | None) -> None:
        check_path(path if suffix is None else f"{path}-{'0' * DIGEST_CHARS}{suffix}")
        self._path, self._suffix = path, suffix
        self._digest = hashlib.sha256()
        self.bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Write bytes, or any object with a contiguous buffer, and return their count."""
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self._write(view)
        self.bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """Do nothing; Arrow calls it, but an unfinished file is never visible."""
        return

    @abstractmethod
    def finish(self) -> Stored:
        """Make the file visible under its name; raises `StoreError` if it could not be written."""

    @abstractmethod
    def abandon(self) -> None:
        """Discard the written bytes; after `finish` this does nothing."""

    @abstractmethod
    def _write(self, view: memoryview) -> None: ...

    def _stored(self) -> Stored:
        sha256 = self._digest.hexdigest()
        path = self._path if self._suffix is None else f"{self._path}-{sha256[:DIGEST_CHARS]}{self._suffix}"
        return Stored(path, self.bytes, sha256)

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *ended: object) -> None:
        self.abandon()


class Store(ABC):
    """A store of files.

    Every file appears whole or not at all, whichever process dies meanwhile, and never changes afterwards. Paths are
    relative, of names without a leading dot. Several threads may call it at once.

    A store that cannot create a file exclusively is refused at the first write, never at a read.

    Attributes:
        url: Its URL, without secrets.
        signatures: Checks and makes the signatures of the versions in it.
        files: The limits for writing versions here; replace them before the first use.
        loading: The limits for reading versions here; likewise.
    """

    def __init__(self, url: str, settings: VersionSettings) -> None:
        self.url = url
        self.settings = settings
        self.signatures = Signatures(settings)
        self.files = FileSettings(file_bytes_max=settings.file_bytes_max)
        self.loading = LoadSettings(fetch_threads=settings.fetch_threads)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @abstractmethod
    def writer(self, prefix: str, suffix: str) -> FileWriter:
        """Open a file for writing, such as prefix `ctr/deltas/7-1/rows/main-0-0` and suffix `.arrow`."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> Stored:
        """Create a file with a fixed name; of two concurrent callers, exactly one succeeds.

        Raises:
            FileTaken: It exists already.
            StoreUnfit: The store cannot create exclusively.
            StoreUnreachable: The store did not answer, or denied access.
        """

    @abstractmethod
    def read(self, path: str, *, bytes_max: int, sha256: str | None = None) -> memoryview:
        """Read a file, and verify its digest before returning the bytes; None accepts any content.

        Raises:
            FileMissing: It does not exist.
            Oversize: It is larger than `bytes_max`.
            BadRecord: Its digest differs.
        """

    @abstractmethod
    def entries(self, folder: str) -> list[Entry]:
        """List a folder by name, without unfinished files; a missing one is empty. Raises `Oversize` if too long."""

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Return the bytes of a file, or None if it does not exist."""

    def exists(self, path: str) -> bool:
        """Return whether a file exists."""
        return self.size(path) is not None

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file; a missing file is not an error."""

    @abstractmethod
    def walk(self, folder: str) -> list[FileFound]:
        """List all files below a folder by path, also unfinished ones; raises `Oversize` beyond `entries_max`."""

    def prune(self, folder: str) -> None:
        """Remove a folder and its subfolders where they are empty; an object store has no folders to remove."""
        check_path(folder)

    def leftovers(self, folder: str) -> list[str]:
        """List the unfinished files in a folder, of running or killed writers, as names for `sweep`."""
        check_path(folder)
        return []  # an object store has no unfinished files

    def sweep(self, folder: str, name: str) -> None:
        """Remove an unfinished file that `leftovers` returned."""
        check_path(folder)

    def _check_count(self, folder: str, count: int, kind: str) -> None:
        """Refuse a listing with too many entries or files."""
        if count > self.settings.entries_max:
            message = f"{self.url}/{folder} has {count} or more {kind}, but the limit is {self.settings.entries_max}"
            raise Oversize(message, help="sweep old versions with `streamlearn gc --yes`")

    def _check_size(self, path: str, size: int, bytes_max: int) -> None:
        if size > bytes_max:
            message = f"{self.url}/{path} has {size} bytes, but the limit is {bytes_max}"
            raise Oversize(message, help="check that the file is the right one, or raise the limit")

    def _verified(self, path: str, data: memoryview, sha256: str | None) -> memoryview:
        """Return the bytes if their digest is as expected, or if none is expected."""
        if sha256 is not None and (digest := hashlib.sha256(data).hexdigest()) != sha256:
            message = f"{self.url}/{path}: sha256 is {digest} of {len(data)} bytes, expected {sha256}"
            raise BadRecord(message, help="the file was changed or damaged; restore it from a copy")
        return data

    def _missing(self, path: str) -> FileMissing:
        message = f"file {self.url}/{path} does not exist"
        return FileMissing(message, help="list the folder; a sweep may have removed the file")

    def _taken(self, path: str) -> FileTaken:
        return FileTaken(f"{self.url}/{path} exists already", help="another writer was first; read what it wrote")


def open_store(url: str, *, options: Mapping[str, Any] | None = None, settings: VersionSettings | None = None) -> Store:
    """Open a store, without a request to it.

    Args:
        url: A folder, `file:///FOLDER`, `memory://NAME`, `s3://BUCKET/FOLDER`, or another URL that fsspec supports.
        options: Options of fsspec's file system, such as keys and endpoints. No message contains them.
        settings: Limits.

    Raises:
        UsageError: The URL is invalid, or its file system is not installed.
        ConfigError: A setting is out of bounds, or `trusted_keys` holds no keys.

    Examples:
        >>> store = open_store("memory://examples")
        >>> store.create("greetings/first.txt", b"hello").bytes
        5
        >>> bytes(store.read("greetings/first.txt", bytes_max=100))
        b'hello'
    """
    parsed, limits = parse_store_url(url), checked(settings or VersionSettings())
    if parsed.protocol == "file":
        from streamlearn.versions.store.local import LocalStore

        return LocalStore(parsed, limits)
    from streamlearn.versions.store.remote import RemoteStore

    return RemoteStore(parsed, limits, dict(options or {}))
