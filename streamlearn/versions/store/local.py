"""Store in a folder of this machine: written beside its place, synced, linked to its name, and only then there."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import uuid
from pathlib import Path
from typing import NoReturn

from streamlearn.errors import BadRecord, FileTaken, Oversize, StoreError, StoreUnfit, StoreUnreachable
from streamlearn.settings.versions import VersionSettings
from streamlearn.versions.store.interface import (
    DIGEST_CHARS,
    Entry,
    FileFound,
    FileWriter,
    Store,
    Stored,
    missing,
    taken,
    too_large,
    verified,
)
from streamlearn.versions.store.url import StoreUrl, check_path

__all__ = ["MAPPED_BYTES_MIN", "LocalStore"]

# Files of at least this size are mapped into memory and not copied.
MAPPED_BYTES_MIN = 1 << 20

# The name of a file that is not finished; the process id is for people who look.
_LEFTOVER = re.compile(r"\.[0-9]+-[0-9a-f]{32}\.part")
_OPENS_MAX = 4
_WAITING_BYTES_MAX = 1 << 18
# A kernel without preemption lets nobody else onto the core while it copies into one large folio: a shard that serves
# on one core has waited 0.8 ms for each 2 MiB.
_PUT_BYTES_MAX = 1 << 16
# What a file system without hard links answers.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class LocalStore(Store):
    """A store in a folder."""

    def __init__(self, url: StoreUrl, settings: VersionSettings) -> None:
        super().__init__(str(url), settings)
        self.root = Path(url.root)

    def writer(self, prefix: str, suffix: str) -> FileWriter:
        """See `Store.writer`."""
        check_path(f"{prefix}-{'0' * DIGEST_CHARS}{suffix}")
        return _LocalWriter(self, prefix, suffix)

    def create(self, path: str, data: bytes) -> Stored:
        """See `Store.create`."""
        with _LocalWriter(self, check_path(path), None) as file:
            file.write(data)
            return file.finish()

    def read(self, path: str, *, bytes_max: int, sha256: str | None = None) -> memoryview:
        """See `Store.read`. A file of `MAPPED_BYTES_MIN` or more is mapped: it may be removed, and must not be cut."""
        try:
            with (self.root / check_path(path)).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size > bytes_max:
                    raise too_large(self.url, path, size, bytes_max)
                # What is mapped can be changed in place after it was verified.
                if size and size >= MAPPED_BYTES_MIN and not self.settings.trusted_keys:
                    data = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
                else:
                    data = memoryview(file.read(bytes_max))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise missing(self.url, path) from None
        except OSError as error:
            self.refuse(path, error)
        return verified(self.url, path, data, sha256)

    def entries(self, folder: str) -> list[Entry]:
        """See `Store.entries`."""
        return [entry for entry in self._scan(folder) if not entry.name.startswith(".")]

    def leftovers(self, folder: str) -> list[str]:
        """See `Store.leftovers`."""
        return [entry.name for entry in self._scan(folder) if _LEFTOVER.fullmatch(entry.name)]

    def sweep(self, folder: str, name: str) -> None:
        """See `Store.sweep`."""
        if not _LEFTOVER.fullmatch(name):
            message = f"{name!r} is not an unfinished file"
            raise StoreError(message, help="sweep only files that `leftovers` returned")
        (self.root / check_path(folder) / name).unlink(missing_ok=True)

    def size(self, path: str) -> int | None:
        """See `Store.size`."""
        file = self.root / check_path(path)
        try:
            return file.stat().st_size if file.is_file() else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.refuse(path, error)

    def remove(self, path: str) -> None:
        """See `Store.remove`. Folders that become empty go with it."""
        file = self.root / check_path(path)
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            self.refuse(path, error)
        # One that is not empty, or that another writer has just made use of, stays.
        with contextlib.suppress(OSError):
            for folder in file.relative_to(self.root).parents[:-1]:
                (self.root / folder).rmdir()

    def walk(self, folder: str) -> list[FileFound]:
        """See `Store.walk`."""
        found: list[FileFound] = []
        waiting = [check_path(folder)]
        while waiting:
            place = waiting.pop()
            for entry in self._scan(place):
                path = f"{place}/{entry.name}"
                if entry.is_folder:
                    waiting.append(path)
                    continue
                # What was removed since it was listed is not there.
                with contextlib.suppress(FileNotFoundError):
                    said = (self.root / path).stat()
                    is_finished = not _LEFTOVER.fullmatch(entry.name)
                    found.append(FileFound(path, said.st_size, said.st_mtime_ns // 1_000_000, is_finished))
            if len(found) > self.settings.entries_max:
                message = f"{self.url}/{folder} has more than {self.settings.entries_max} files"
                raise Oversize(message, help="sweep old versions with `streamlearn gc`")
        return sorted(found, key=lambda one: one.path)

    def prune(self, folder: str) -> None:
        """See `Store.prune`. A writer that has just made a folder makes it again."""
        place = self.root / check_path(folder)
        for inner, _, _ in os.walk(place, topdown=False):
            with contextlib.suppress(OSError):
                Path(inner).rmdir()

    def refuse(self, path: str, error: OSError) -> NoReturn:
        """The error of a folder that the file system keeps from us."""
        message = f"{self.url}/{path}: {error.strerror}"
        raise StoreUnreachable(message, help="check the folder, its free space and its permissions") from None

    def _scan(self, folder: str) -> list[Entry]:
        found: list[Entry] = []
        try:
            with os.scandir(self.root / check_path(folder)) as scanned:
                for entry in scanned:
                    found.append(Entry(entry.name, entry.is_dir()))
                    if len(found) > self.settings.entries_max:
                        message = f"{self.url}/{folder} has more than {self.settings.entries_max} entries"
                        raise Oversize(message, help="sweep old versions with `streamlearn gc`")
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.refuse(folder, error)
        return sorted(found, key=lambda entry: entry.name)


class _LocalWriter(FileWriter):
    """A file beside the place it is for.

    Args:
        store: Where.
        path: The path, or with a suffix what stands before the digest.
        suffix: What stands after the digest; None for a path that is whole.
    """

    def __init__(self, store: LocalStore, path: str, suffix: str | None) -> None:
        super().__init__()
        self._store, self._path, self._suffix = store, path, suffix
        self._waiting = bytearray()
        self._folder = (store.root / path).parent
        self._file = self._folder / f".{os.getpid()}-{uuid.uuid4().hex}.part"
        try:
            self._descriptor = _opened(self._file)
        except OSError as error:
            store.refuse(path, error)

    def _write(self, view: memoryview) -> None:
        # Arrow writes column by column and pads each; what is small waits for more.
        if len(self._waiting) + len(view) < _WAITING_BYTES_MAX:
            self._waiting += view
            return
        self._drain()
        self._put(view)

    def _drain(self) -> None:
        waiting, self._waiting = self._waiting, bytearray()
        self._put(memoryview(waiting))

    def _put(self, view: memoryview) -> None:
        try:
            while view:
                view = view[os.write(self._descriptor, view[:_PUT_BYTES_MAX]) :]
        except OSError as error:
            self._store.refuse(self._path, error)

    def finish(self) -> Stored:
        """See `FileWriter.finish`."""
        sha256 = self._digest.hexdigest()
        path = self._path if self._suffix is None else f"{self._path}-{sha256[:DIGEST_CHARS]}{self._suffix}"
        stored = Stored(path, self.bytes, sha256)
        try:
            self._drain()
            os.fsync(self._descriptor)
            os.link(self._file, self._store.root / path)
            _sync_folder(self._folder)
        except FileExistsError:
            self._check_same(stored)
            # Whoever wrote it may have died before this.
            _sync_folder(self._folder)
        except OSError as error:
            if error.errno in _NO_LINKS:
                message = f"{self._store.url}: this file system has no hard links ({error.strerror})"
                raise StoreUnfit(message, help="keep the store on a local disk, or in an object store") from None
            self._store.refuse(path, error)
        finally:
            self.abandon()
        return stored

    def _check_same(self, stored: Stored) -> None:
        """A name with a digest may be there already, written by someone who died then: if it is the same file."""
        if self._suffix is None:
            raise taken(self._store.url, stored.path) from None
        try:
            self._store.read(stored.path, bytes_max=stored.bytes, sha256=stored.sha256)
        except (BadRecord, Oversize) as error:
            message = f"{self._store.url}/{stored.path} exists already with other contents"
            raise FileTaken(message, help="the file was changed or damaged; remove it") from error

    def abandon(self) -> None:
        """See `FileWriter.abandon`."""
        if not self.closed:
            self.closed = True
            os.close(self._descriptor)
            self._file.unlink(missing_ok=True)


def _opened(file: Path) -> int:
    for _ in range(_OPENS_MAX - 1):
        _make_folder(file.parent)
        # Whoever removes the last file of a folder takes the folder away, perhaps just now.
        with contextlib.suppress(FileNotFoundError):
            return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    _make_folder(file.parent)
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)


def _make_folder(folder: Path) -> None:
    """Make a folder that is still there after a loss of power."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with contextlib.suppress(FileExistsError, FileNotFoundError):
        folder.mkdir()
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
