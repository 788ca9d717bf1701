"""Store: files by path that appear whole or not at all, and never change. It does not know what is in them."""

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

__all__ = [
    "DIGEST_CHARS",
    "Entry",
    "FileFound",
    "FileWriter",
    "Store",
    "Stored",
    "missing",
    "open_store",
    "taken",
    "too_large",
    "verified",
]

# How many hex digits of a file's digest are in its name; all of them are in the manifest.
DIGEST_CHARS = 16


@dataclass(frozen=True, slots=True)
class Entry:
    """What a folder holds.

    Attributes:
        name: Without the folder.
        is_folder: Whether it is a folder itself.
    """

    name: str
    is_folder: bool


@dataclass(frozen=True, slots=True)
class Stored:
    """A file that is whole in the store.

    Attributes:
        path: Where.
        bytes: Its size.
        sha256: Its digest in hex, as `sha256sum` prints it.
    """

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FileFound:
    """A file as the store tells of it.

    Attributes:
        path: Where.
        bytes: Its size.
        written_wall_ms: When it was last written to, by the store's clock.
        is_finished: Whether it is a file; if not, it is what a writer is at work on, or a killed one left.
    """

    path: str
    bytes: int
    written_wall_ms: int
    is_finished: bool = True


class FileWriter(ABC):
    """A file on its way into a store; nothing is there under its name before `finish`.

    It is a file object for whoever writes to one, such as Arrow. As a context it is given up unless finished.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Write some more.

        Args:
            data: Bytes, or anything that has them in one piece.
        """
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self._write(view)
        self.bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """Nothing, but that Arrow calls it: what is not finished is not there."""
        return

    @abstractmethod
    def finish(self) -> Stored:
        """Let the file appear, under a name that carries its digest.

        Raises:
            StoreError: It could not be written.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Forget what was written; after `finish` it does nothing."""

    @abstractmethod
    def _write(self, view: memoryview) -> None: ...

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *ended: object) -> None:
        self.abandon()


class Store(ABC):
    """A store of files.

    Every file appears whole or not at all, whatever dies meanwhile, and is never changed afterwards. Paths are
    relative, of names without a leading dot. Calls may come from several threads at once.

    A store that cannot create a file exclusively is refused at the first write, never at a read.

    Attributes:
        url: Where it is; without secrets.
        settings: Its limits, and those of the files in it.
        signatures: Whose versions in it are trusted.
    """

    def __init__(self, url: str, settings: VersionSettings) -> None:
        self.url = url
        self.settings = settings
        self.signatures = Signatures(settings)

    @property
    def files(self) -> FileSettings:
        """How files of versions are written here, unless a caller says otherwise."""
        return FileSettings(file_bytes_max=self.settings.file_bytes_max)

    @property
    def loading(self) -> LoadSettings:
        """How versions are read here, unless a caller says otherwise."""
        return LoadSettings(fetch_threads=self.settings.fetch_threads)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @abstractmethod
    def writer(self, prefix: str, suffix: str) -> FileWriter:
        """A file that is written bit by bit, and named `PREFIX-DIGEST SUFFIX` when it is finished.

        Args:
            prefix: The path without digest and suffix, such as `ctr/deltas/7-1/rows/main-0-0`.
            suffix: What the name ends with, such as `.arrow`.
        """

    @abstractmethod
    def create(self, path: str, data: bytes) -> Stored:
        """Create a file of a fixed name; of two who try, exactly one succeeds.

        Raises:
            FileTaken: It is there already.
            StoreUnfit: The store cannot tell the two apart.
            StoreUnreachable: The store did not answer, or did not allow it.
        """

    @abstractmethod
    def read(self, path: str, *, bytes_max: int, sha256: str | None = None) -> memoryview:
        """The bytes of a file, verified before they are given.

        Args:
            path: Which.
            bytes_max: A larger file is not read.
            sha256: Its digest in hex; None takes whatever is there.

        Raises:
            FileMissing: There is none.
            Oversize: It is larger than `bytes_max`.
            BadRecord: Its digest is another.
        """

    @abstractmethod
    def entries(self, folder: str) -> list[Entry]:
        """What is in a folder, by name; nothing when there is no such folder.

        Unfinished files of writers, alive or killed, are not listed.

        Raises:
            Oversize: There is more than `entries_max`.
        """

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Bytes of a file; None when there is none."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return self.size(path) is not None

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file; one that is not there is removed already."""

    @abstractmethod
    def walk(self, folder: str) -> list[FileFound]:
        """Everything in a folder and the folders in it, by path, unfinished files too.

        Raises:
            Oversize: There is more than `entries_max`.
        """

    def prune(self, folder: str) -> None:
        """Remove folders without files, in this one and itself; where folders are but names, there is nothing to do."""
        check_path(folder)

    @abstractmethod
    def leftovers(self, folder: str) -> list[str]:
        """Unfinished files in a folder, of killed writers or of those still at work; names for `sweep`."""

    @abstractmethod
    def sweep(self, folder: str, name: str) -> None:
        """Remove an unfinished file that `leftovers` gave."""


def open_store(url: str, *, options: Mapping[str, Any] | None = None, settings: VersionSettings | None = None) -> Store:
    """Open a store; nothing is asked of it yet.

    Args:
        url: A folder, `file:///FOLDER`, `memory://NAME`, `s3://BUCKET/FOLDER`, or any other fsspec knows.
        options: What fsspec's file system takes, such as keys and endpoints. They are in no message.
        settings: Limits.

    Raises:
        UsageError: The URL is none of a store, or its file system is not installed.
        ConfigError: A setting is out of its bounds, or `trusted_keys` holds no keys.

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


def verified(url: str, path: str, data: memoryview, sha256: str | None) -> memoryview:
    """The same bytes, when they are those that were expected.

    Raises:
        BadRecord: Their digest is another.
    """
    if sha256 is None:
        return data
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        message = f"{url}/{path}: sha256 is {found} of {len(data)} bytes, expected {sha256}"
        raise BadRecord(message, help="the file was changed or damaged; restore it from a copy")
    return data


def missing(url: str, path: str) -> FileMissing:
    """The error of a file that is not there."""
    return FileMissing(f"file {url}/{path} does not exist", help="list the folder; a sweep may have removed the file")


def taken(url: str, path: str) -> FileTaken:
    """The error of a file that is there already."""
    return FileTaken(f"{url}/{path} exists already", help="another writer was first; read what it wrote")


def too_large(url: str, path: str, size: int, bytes_max: int) -> Oversize:
    """The error of a file that is not read for its size."""
    message = f"{url}/{path} has {size} bytes, but the limit is {bytes_max}"
    return Oversize(message, help="check that the file is the right one, or raise the limit")
