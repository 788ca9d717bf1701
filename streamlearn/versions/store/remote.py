"""Store on a file system of fsspec: memory, S3, and others that can create exclusively; folders are local's."""

from __future__ import annotations

import hashlib
import inspect
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from streamlearn.errors import FileTaken, Oversize, StoreUnfit, StoreUnreachable, StreamlearnError, UsageError
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

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SPOOL_MEMORY_BYTES_MAX", "RemoteStore"]

# A file is collected in memory up to this before it is uploaded, and beyond it in a temporary file of this machine.
SPOOL_MEMORY_BYTES_MAX = 8 << 20

Answer = TypeVar("Answer")
_PROBE = "probes/exclusive"
_S3 = ("s3", "s3a")
# Requests are tried again by botocore; s3fs repeats what broke off while it was read, once.
_S3_RETRIES = 2
# Two threads that create a file in memory look whether it is there, one after the other.
_MEMORY = threading.Lock()
# Options shorter than this, such as a region or a flag, are no secrets and may well be part of other words.
_SECRET_CHARS_MIN = 4


class RemoteStore(Store):
    """A store on a file system of fsspec.

    A file becomes visible by one request, when it is whole; nothing is renamed.
    """

    def __init__(self, url: StoreUrl, settings: VersionSettings, options: dict[str, Any]) -> None:
        super().__init__(str(url), settings)
        self._protocol, self._root = url.protocol, url.root
        self._secrets = sorted(_texts(options), key=len, reverse=True)
        self._files = self._opened(_bounded(url.protocol, settings, options))
        self._probe = threading.Lock()
        self._is_fit = False

    def _opened(self, options: dict[str, Any]) -> Any:
        import fsspec

        try:
            # Of its own, without what it remembers of folders: other processes write there too.
            options = {"skip_instance_cache": True, "use_listings_cache": False} | options
            files = fsspec.filesystem(self._protocol, **options)
        except (ImportError, ValueError, TypeError) as error:
            message = f"{self.url} cannot be opened: {self._said(error)}"
            extra = " (pip install 'streamlearn[s3]')" if self._protocol in _S3 else ""
            raise UsageError(
                message, help=f"install its file system for fsspec{extra}, and check the options"
            ) from None
        if self._protocol in _S3:
            files.retries = _S3_RETRIES
        return files

    def writer(self, prefix: str, suffix: str) -> FileWriter:
        """See `Store.writer`."""
        check_path(f"{prefix}-{'0' * DIGEST_CHARS}{suffix}")
        self._check_fit()
        return _RemoteWriter(self, prefix, suffix)

    def create(self, path: str, data: bytes) -> Stored:
        """See `Store.create`."""
        check_path(path)
        self._check_fit()
        self.put(path, data)
        return Stored(path, len(data), hashlib.sha256(data).hexdigest())

    def put(self, path: str, data: bytes | memoryview) -> None:
        """Create a file by one request.

        Raises:
            FileTaken: It is there already.
        """
        full = self._full(path)
        with self._asking(path):
            if self._protocol == "memory":
                with _MEMORY:
                    self._files.pipe_file(full, bytes(data), mode="create")
            else:
                self._files.pipe_file(full, bytes(data), mode="create")

    def upload(self, path: str, file: str, size: int) -> None:
        """Create a file from one of this machine; a large one goes up in pieces, and appears when all are there.

        Raises:
            FileTaken: It is there already.
        """
        if size > SPOOL_MEMORY_BYTES_MAX and _takes_mode(self._files, "put_file"):
            with self._asking(path):
                self._files.put_file(file, self._full(path), mode="create")
        else:
            self.put(path, Path(file).read_bytes())

    def read(self, path: str, *, bytes_max: int, sha256: str | None = None) -> memoryview:
        """See `Store.read`."""
        size = self.size(path)
        if size is None:
            raise missing(self.url, path)
        if size > bytes_max:
            raise too_large(self.url, path, size, bytes_max)
        with self._asking(path):
            # The range is asked for, so that not even a file in the place of the other can be larger.
            data = self._files.cat_file(self._full(path), start=0, end=size) if size else b""
        return verified(self.url, path, memoryview(data), sha256)

    def entries(self, folder: str) -> list[Entry]:
        """See `Store.entries`."""
        full = self._full(check_path(folder))
        with self._asking(folder):
            found: list[Any] = _unless_missing(lambda: self._files.ls(full, detail=True), [])
        if len(found) > self.settings.entries_max:
            message = f"{self.url}/{folder} has {len(found)} entries, but the limit is {self.settings.entries_max}"
            raise Oversize(message, help="sweep old versions with `streamlearn gc`")
        entries = {(one["name"].rstrip("/").rpartition("/")[2], one["type"] == "directory") for one in found}
        # A file asked for as a folder, or the mark of an empty folder, gives itself.
        return [Entry(*one) for one in sorted(entries) if one[0] and one[0] != full.rpartition("/")[2]]

    def walk(self, folder: str) -> list[FileFound]:
        """See `Store.walk`."""
        full = self._full(check_path(folder))
        with self._asking(folder):
            found: dict[str, Any] = _unless_missing(lambda: self._files.find(full, detail=True), {})
        if len(found) > self.settings.entries_max:
            message = f"{self.url}/{folder} has {len(found)} files, but the limit is {self.settings.entries_max}"
            raise Oversize(message, help="sweep old versions with `streamlearn gc`")
        return [
            FileFound(f"{folder}{name.partition(full)[2]}", int(one["size"]), self._written_wall_ms(name, one))
            for name, one in sorted(found.items())
        ]

    def _written_wall_ms(self, name: str, said: Mapping[str, Any]) -> int:
        """When a file was written: file systems say it in various ways."""
        for key in ("LastModified", "last_modified", "mtime", "modified", "updated", "created"):
            when = said.get(key)
            if isinstance(when, datetime):
                return int(when.timestamp() * 1000)
            if isinstance(when, int | float):
                return int(when * 1000)
            if isinstance(when, str):
                return int(datetime.fromisoformat(when).timestamp() * 1000)
        message = f"{self.url}: {type(self._files).__name__} does not report when {name} was written"
        raise StoreUnfit(message, help="keep the store in a folder, memory:// or S3")

    def leftovers(self, folder: str) -> list[str]:
        """None: what was not finished is on no object store."""
        return []

    def sweep(self, folder: str, name: str) -> None:
        """Nothing: there are no unfinished files."""

    def size(self, path: str) -> int | None:
        """See `Store.size`."""
        full = self._full(check_path(path))
        with self._asking(path):
            found = _unless_missing(lambda: self._files.info(full), None)
        return int(found["size"]) if found and found["type"] == "file" else None

    def remove(self, path: str) -> None:
        """See `Store.remove`."""
        full = self._full(check_path(path))
        with self._asking(path):
            _unless_missing(lambda: self._files.rm_file(full), None)

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _check_fit(self) -> None:
        """Refuse a file system that overwrites, once, before the first file is written."""
        with self._probe:
            if self._is_fit:
                return
            if not _has_create(self._files):
                reason = f"{type(self._files).__name__} has no exclusive create"
                raise self._unfit(reason)
            path = f"{_PROBE}-{uuid.uuid4().hex}"
            try:
                self.put(path, b"first")
                with suppress(FileTaken):
                    self.put(path, b"second")
                    reason = "it created a file that existed already"
                    raise self._unfit(reason)
            finally:
                with suppress(StreamlearnError):
                    self.remove(path)
            self._is_fit = True

    def _unfit(self, reason: str) -> StoreUnfit:
        message = f"{self.url}: two writers could both create the same file here: {reason}"
        return StoreUnfit(message, help="use a folder, memory://, or S3 (its server must know If-None-Match: *)")

    @contextmanager
    def _asking(self, path: str) -> Iterator[None]:
        """What a file system may raise, said in our words; drivers raise what their libraries do."""
        try:
            yield
        except StreamlearnError:
            raise
        except FileExistsError:
            raise taken(self.url, path) from None
        except FileNotFoundError:
            raise missing(self.url, path) from None
        except Exception as error:
            message = f"{self.url}/{path}: {self._said(error)}"
            raise StoreUnreachable(message, help="check the address, the permissions and the network") from None

    def _said(self, error: Exception) -> str:
        """An error of a library, without anything that was in the options."""
        text = f"{type(error).__name__}: {error}"
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


class _RemoteWriter(FileWriter):
    """A file that is collected here, and created there when it is whole."""

    def __init__(self, store: RemoteStore, prefix: str, suffix: str) -> None:
        super().__init__()
        self._store, self._prefix, self._suffix = store, prefix, suffix
        self._spool = tempfile.NamedTemporaryFile(prefix="streamlearn-")  # noqa: SIM115

    def _write(self, view: memoryview) -> None:
        try:
            self._spool.write(view)
        except OSError as error:
            message = f"cannot buffer a file for {self._store.url} here: {error.strerror}"
            raise StoreUnreachable(message, help="free space for temporary files (TMPDIR)") from None

    def finish(self) -> Stored:
        """See `FileWriter.finish`."""
        sha256 = self._digest.hexdigest()
        path = f"{self._prefix}-{sha256[:DIGEST_CHARS]}{self._suffix}"
        stored = Stored(path, self.bytes, sha256)
        try:
            self._spool.flush()
            self._store.upload(path, self._spool.name, self.bytes)
        except FileTaken:
            # Of the same digest, so the same file: someone wrote it and died then.
            self._store.read(path, bytes_max=stored.bytes, sha256=sha256)
        finally:
            self.abandon()
        return stored

    def abandon(self) -> None:
        """See `FileWriter.abandon`."""
        self.closed = True
        self._spool.close()


def _bounded(protocol: str, settings: VersionSettings, options: dict[str, Any]) -> dict[str, Any]:
    """The options, with an end to every wait where we know how that is said."""
    if protocol not in _S3:
        return options
    wait_s = settings.request_timeout_ms / 1000
    bounds = {
        "connect_timeout": wait_s,
        "read_timeout": wait_s,
        "retries": {"total_max_attempts": settings.attempts_max},
    }
    return options | {"config_kwargs": bounds | options.get("config_kwargs", {})}


def _has_create(files: Any) -> bool:
    """Whether a file system writes a file exclusively by itself; fsspec's own way looks first and writes then."""
    return _takes_mode(files, "pipe_file")


def _takes_mode(files: Any, name: str) -> bool:
    """Whether a method that writes is the file system's own, and has a mode."""
    method = getattr(type(files), f"_{name}", None) or getattr(type(files), name)
    is_own = not method.__module__.startswith(("fsspec.spec", "fsspec.asyn"))
    return is_own and "mode" in inspect.signature(method).parameters


def _unless_missing(ask: Callable[[], Answer], otherwise: Answer) -> Answer:
    try:
        return ask()
    except FileNotFoundError:
        return otherwise


def _texts(options: Any) -> set[str]:
    """Every text among options, however deep; any may be a secret."""
    if isinstance(options, dict):
        return {text for value in options.values() for text in _texts(value)}
    if isinstance(options, list | tuple | set):
        return {text for value in options for text in _texts(value)}
    return {options} if isinstance(options, str) and len(options) >= _SECRET_CHARS_MIN else set()
