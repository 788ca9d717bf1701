"""Store in a local folder. A file is written under a temporary name, synced, and then linked to its own name."""

# ruff: noqa: D102 - overridden methods inherit the docstrings of `Store` and `FileWriter`

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import uuid
from pathlib import Path
from stat import S_ISLNK, S_ISREG
from typing import NoReturn

from streamlearn.errors import BadRecord, FileTaken, Oversize, StoreError, StoreUnfit, StoreUnreachable
from streamlearn.settings.versions import VersionSettings
from streamlearn.versions.store.interface import Entry, FileFound, FileWriter, Store, Stored
from streamlearn.versions.store.url import StoreUrl, check_path, is_path

__all__ = ["MAPPED_BYTES_MIN", "LocalStore"]

# Files of at least this size are mapped into memory, not copied.
MAPPED_BYTES_MIN = 1 << 20

# The name of an unfinished file; its process id is a hint for people.
_LEFTOVER = re.compile(r"\.[0-9]+-[0-9a-f]{32}\.part")
_OPENS_MAX = 4
_BUFFER_BYTES_MAX = 1 << 18
# A kernel without preemption blocks the core while it copies into one large folio: a shard that serves on one core
# has waited 0.8 ms for each 2 MiB.
_WRITE_BYTES_MAX = 1 << 16
# Errors of a file system without hard links.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class LocalStore(Store):
    """A store in a folder, which may be a symbolic link.

    Links below it are not listed, and a path that leads through one is refused: nothing outside the folder is read,
    written or removed.

    `read` maps files of `MAPPED_BYTES_MIN` or more: they may be removed while in use, but not truncated. `remove`
    also removes folders that become empty; a writer creates them again.
    """

    def __init__(self, url: StoreUrl, settings: VersionSettings) -> None:
        super().__init__(str(url), settings)
        self.root = Path(url.root)
        self._root = str(self.root).rstrip("/")

    def writer(self, prefix: str, suffix: str) -> FileWriter:
        return _LocalWriter(self, prefix, suffix)

    def create(self, path: str, data: bytes) -> Stored:
        with _LocalWriter(self, path, None) as file:
            file.write(data)
            return file.finish()

    def read(self, path: str, *, bytes_max: int, sha256: str | None = None) -> memoryview:
        try:
            with open(self.locate(path), "rb", opener=_open_at_once) as file:
                status = os.fstat(file.fileno())
                size = status.st_size
                if not S_ISREG(status.st_mode):
                    self.refuse(path, OSError(errno.EINVAL, "not a regular file"))
                self._check_size(path, size, bytes_max)
                # A mapped file could be changed in place after its signature was verified.
                if size and size >= MAPPED_BYTES_MIN and not self.settings.trusted_keys:
                    data = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
                else:
                    data = memoryview(file.read(bytes_max))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise self._missing(path) from None
        except OSError as error:
            self.refuse(path, error)
        return self._verified(path, data, sha256)

    def entries(self, folder: str) -> list[Entry]:
        return [entry for entry in self._scan(folder) if not entry.name.startswith(".")]

    def leftovers(self, folder: str) -> list[str]:
        return [entry.name for entry in self._scan(folder) if _LEFTOVER.fullmatch(entry.name)]

    def sweep(self, folder: str, name: str) -> None:
        if not _LEFTOVER.fullmatch(name):
            message = f"{name!r} is not an unfinished file"
            raise StoreError(message, help="sweep only files that `leftovers` returned")
        (self.locate(folder) / name).unlink(missing_ok=True)

    def size(self, path: str) -> int | None:
        file = self.locate(path)
        try:
            status = file.stat()
            return status.st_size if S_ISREG(status.st_mode) else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.refuse(path, error)

    def remove(self, path: str) -> None:
        file = self.locate(path)
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            self.refuse(path, error)
        # A folder that is not empty, or that another writer has just begun to use, stays.
        with contextlib.suppress(OSError):
            for folder in file.relative_to(self.root).parents[:-1]:
                (self.root / folder).rmdir()

    def walk(self, folder: str) -> list[FileFound]:
        files: list[FileFound] = []
        pending = [check_path(folder)]
        while pending:
            current = pending.pop()
            for entry in self._scan(current):
                path = f"{current}/{entry.name}"
                if entry.is_folder:
                    if is_path(path):  # else it is of another program, such as lost+found
                        pending.append(path)
                    continue
                # A file removed since it was listed is left out.
                with contextlib.suppress(FileNotFoundError):
                    stat = (self.root / path).lstat()
                    is_finished = not _LEFTOVER.fullmatch(entry.name)
                    files.append(FileFound(path, stat.st_size, stat.st_mtime_ns // 1_000_000, is_finished))
            self._check_count(folder, len(files), "files")
        return sorted(files, key=lambda file: file.path)

    def prune(self, folder: str) -> None:
        for inner, _, _ in os.walk(self.locate(folder), topdown=False):
            with contextlib.suppress(OSError):
                Path(inner).rmdir()

    def locate(self, path: str) -> Path:
        """Return where a file or folder is; raises `StoreError` if a symbolic link below the root leads there."""
        # With texts: this is done for each file that is read, and a `Path` for each folder doubles its time.
        file = self._root
        for name in check_path(path).split("/"):
            file = f"{file}/{name}"
            try:
                is_link = S_ISLNK(os.lstat(file).st_mode)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                self.refuse(path, error)
            if is_link:
                message = f"{self.url}/{file[len(self._root) + 1 :]} is a symbolic link, which a store does not follow"
                raise StoreError(message, help="remove the link, and put the files there in its place")
        return Path(file)

    def refuse(self, path: str, error: OSError) -> NoReturn:
        """Raise the error of a file that the file system does not let us use."""
        message = f"{self.url}/{path}: {error.strerror}"
        raise StoreUnreachable(message, help="check the folder, its free space and its permissions") from None

    def _scan(self, folder: str) -> list[Entry]:
        entries: list[Entry] = []
        try:
            with os.scandir(self.locate(folder)) as scanned:
                for entry in scanned:
                    if entry.is_symlink():
                        continue
                    entries.append(Entry(entry.name, entry.is_dir(follow_symlinks=False)))
                    self._check_count(folder, len(entries), "entries")
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.refuse(folder, error)
        return sorted(entries, key=lambda entry: entry.name)


class _LocalWriter(FileWriter):
    """A file under a temporary name in its final folder."""

    def __init__(self, store: LocalStore, path: str, suffix: str | None) -> None:
        super().__init__(path, suffix)
        self._store = store
        self._buffer = bytearray()
        self._folder = store.locate(path).parent
        self._file = self._folder / f".{os.getpid()}-{uuid.uuid4().hex}.part"
        try:
            self._descriptor = _create(self._file)
        except OSError as error:
            store.refuse(path, error)

    def _write(self, view: memoryview) -> None:
        # Arrow writes column by column and pads each, so small pieces are collected.
        if len(self._buffer) + len(view) < _BUFFER_BYTES_MAX:
            self._buffer += view
            return
        self._drain()
        self._write_through(view)

    def _drain(self) -> None:
        buffer, self._buffer = self._buffer, bytearray()
        self._write_through(memoryview(buffer))

    def _write_through(self, view: memoryview) -> None:
        try:
            while view:
                view = view[os.write(self._descriptor, view[:_WRITE_BYTES_MAX]) :]
        except OSError as error:
            self._store.refuse(self._path, error)

    def finish(self) -> Stored:
        stored = self._stored()
        try:
            self._drain()
            os.fsync(self._descriptor)
            os.link(self._file, self._store.root / stored.path)
            _sync_folder(self._folder)
        except FileExistsError:
            self._check_same(stored)
            # Its writer may have died before this step.
            _sync_folder(self._folder)
        except OSError as error:
            if error.errno in _NO_LINKS:
                message = f"{self._store.url}: this file system has no hard links ({error.strerror})"
                raise StoreUnfit(message, help="keep the store on a local disk, or in an object store") from None
            self._store.refuse(stored.path, error)
        finally:
            self.abandon()
        return stored

    def _check_same(self, stored: Stored) -> None:
        """Accept an existing file with a digest in its name if its contents are the same: its writer died."""
        if self._suffix is None:
            raise self._store._taken(stored.path) from None
        try:
            self._store.read(stored.path, bytes_max=stored.bytes, sha256=stored.sha256)
        except (BadRecord, Oversize) as error:
            message = f"{self._store.url}/{stored.path} exists already with other contents"
            raise FileTaken(message, help="the file was changed or damaged; remove it") from error

    def abandon(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self._descriptor)
            self._file.unlink(missing_ok=True)


def _create(file: Path) -> int:
    """Create a file and its folders, and return its descriptor."""
    attempts_left = _OPENS_MAX
    while True:
        _make_folder(file.parent)
        try:
            return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileNotFoundError:
            # A process that removes the last file of a folder also removes the folder, perhaps just now.
            attempts_left -= 1
            if not attempts_left:
                raise


def _make_folder(folder: Path) -> None:
    """Make a folder that survives a power loss."""
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


def _open_at_once(file: str, flags: int) -> int:
    """Open a file to read it; a pipe would keep the caller waiting for its writer."""
    return os.open(file, flags | os.O_NONBLOCK)
