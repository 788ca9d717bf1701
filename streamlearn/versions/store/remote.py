"""Store on an fsspec file system that can create exclusively, such as memory or S3. Local folders have `LocalStore`."""

# ruff: noqa: D102 - overridden methods inherit the docstrings of `Store` and `FileWriter`

from __future__ import annotations

import hashlib
import inspect
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from streamlearn.errors import FileTaken, StoreUnfit, StoreUnreachable, StreamlearnError, UsageError
from streamlearn.settings.versions import VersionSettings
from streamlearn.versions.store.interface import Entry, FileFound, FileWriter, Store, Stored
from streamlearn.versions.store.url import StoreUrl, check_path

__all__ = ["SPOOL_MEMORY_BYTES_MAX", "RemoteStore"]

# Larger files are uploaded from the temporary file in pieces; smaller ones by one request, from memory.
SPOOL_MEMORY_BYTES_MAX = 8 << 20

Answer = TypeVar("Answer")
_PROBE = "probes/exclusive"
_S3 = ("s3", "s3a")
# botocore retries requests; s3fs retries a broken read, once.
_S3_RETRIES = 2
# fsspec's memory file system creates by a check and a write; one thread at a time may do so.
_MEMORY = threading.Lock()
# Shorter options, such as a region or a flag, are not secrets and may be part of other words.
_SECRET_CHARS_MIN = 4


class RemoteStore(Store):
    """A store on an fsspec file system.

    One request makes a complete file visible; nothing is renamed. There are no unfinished files.
    """

    def __init__(self, url: StoreUrl, settings: VersionSettings, options: dict[str, Any]) -> None:
        super().__init__(str(url), settings)
        self._protocol, self._root = url.protocol, url.root
        self._secrets = sorted(_texts(options), key=len, reverse=True)
        self._files = self._file_system(_bounded(url.protocol, settings, options))
        self._probe = threading.Lock()
        self._is_fit = False

    def _file_system(self, options: dict[str, Any]) -> Any:
        import fsspec

        try:
            # An own instance without cached listings: other processes write there too.
            options = {"skip_instance_cache": True, "use_listings_cache": False} | options
            files = fsspec.filesystem(self._protocol, **options)
        except (ImportError, ValueError, TypeError) as error:
            message = f"{self.url} cannot be opened: {self._text(error)}"
            extra = " (pip install 'streamlearn[s3]')" if self._protocol in _S3 else ""
            help = f"install its file system for fsspec{extra}, and check the options"
            raise UsageError(message, help=help) from None
        if self._protocol in _S3:
            files.retries = _S3_RETRIES
        return files

    def writer(self, prefix: str, suffix: str) -> FileWriter:
        self._check_fit()
        return _RemoteWriter(self, prefix, suffix)

    def create(self, path: str, data: bytes) -> Stored:
        check_path(path)
        self._check_fit()
        self.put(path, data)
        return Stored(path, len(data), hashlib.sha256(data).hexdigest())

    def put(self, path: str, data: bytes) -> None:
        """Create a file by one request; raises `FileTaken` if it exists."""
        with self._translated_errors(path), _MEMORY if self._protocol == "memory" else nullcontext():
            self._files.pipe_file(self._full(path), data, mode="create")

    def upload(self, path: str, file: str, size: int) -> None:
        """Create a file from a local one, a large one in pieces; raises `FileTaken` if it exists."""
        if size > SPOOL_MEMORY_BYTES_MAX and _takes_mode(self._files, "put_file"):
            with self._translated_errors(path):
                self._files.put_file(file, self._full(path), mode="create")
        else:
            self.put(path, Path(file).read_bytes())

    def read(self, path: str, *, bytes_max: int, sha256: str | None = None) -> memoryview:
        size = self.size(path)
        if size is None:
            raise self._missing(path)
        self._check_size(path, size, bytes_max)
        with self._translated_errors(path):
            # The explicit range bounds the reply even if a larger file has replaced this one.
            data = self._files.cat_file(self._full(path), start=0, end=size) if size else b""
        return self._verified(path, memoryview(data), sha256)

    def entries(self, folder: str) -> list[Entry]:
        full = self._full(check_path(folder))
        with self._translated_errors(folder):
            infos: list[Any] = _unless_missing(lambda: self._files.ls(full, detail=True), [])
        self._check_count(folder, len(infos), "entries")
        entries = {(info["name"].rstrip("/").rpartition("/")[2], info["type"] == "directory") for info in infos}
        # A file that is listed as a folder, and the marker of an empty folder, list themselves.
        return [Entry(*entry) for entry in sorted(entries) if entry[0] and entry[0] != full.rpartition("/")[2]]

    def walk(self, folder: str) -> list[FileFound]:
        full = self._full(check_path(folder))
        with self._translated_errors(folder):
            infos: dict[str, Any] = _unless_missing(lambda: self._files.find(full, detail=True), {})
        self._check_count(folder, len(infos), "files")
        return [
            FileFound(f"{folder}{name.partition(full)[2]}", int(info["size"]), self._written_wall_ms(name, info))
            for name, info in sorted(infos.items())
        ]

    def _written_wall_ms(self, name: str, info: Mapping[str, Any]) -> int:
        """Return when a file was written; file systems report it in various ways."""
        for key in ("LastModified", "last_modified", "mtime", "modified", "updated", "created"):
            when = info.get(key)
            when = datetime.fromisoformat(when) if isinstance(when, str) else when
            if isinstance(when, datetime):
                return int(when.timestamp() * 1000)
            if isinstance(when, int | float):
                return int(when * 1000)
        message = f"{self.url}: {type(self._files).__name__} does not report when {name} was written"
        raise StoreUnfit(message, help="keep the store in a folder, memory:// or S3")

    def size(self, path: str) -> int | None:
        full = self._full(check_path(path))
        with self._translated_errors(path):
            info = _unless_missing(lambda: self._files.info(full), None)
        return int(info["size"]) if info and info["type"] == "file" else None

    def remove(self, path: str) -> None:
        full = self._full(check_path(path))
        with self._translated_errors(path):
            _unless_missing(lambda: self._files.rm_file(full), None)

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _check_fit(self) -> None:
        """Refuse a file system that overwrites; checked once, before the first file is written."""
        with self._probe:
            if self._is_fit:
                return
            # fsspec's default implementation checks first and writes then.
            if not _takes_mode(self._files, "pipe_file"):
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
    def _translated_errors(self, path: str) -> Iterator[None]:
        """Turn the errors of a file system into ours; drivers raise those of their libraries."""
        try:
            yield
        except StreamlearnError:
            raise
        except FileExistsError:
            raise self._taken(path) from None
        except FileNotFoundError:
            raise self._missing(path) from None
        except Exception as error:
            message = f"{self.url}/{path}: {self._text(error)}"
            raise StoreUnreachable(message, help="check the address, the permissions and the network") from None

    def _text(self, error: Exception) -> str:
        """Return the text of a library's error, without the values of options."""
        text = f"{type(error).__name__}: {error}"
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


class _RemoteWriter(FileWriter):
    """A file that is collected in a local temporary file and uploaded when it is complete."""

    def __init__(self, store: RemoteStore, prefix: str, suffix: str) -> None:
        super().__init__(prefix, suffix)
        self._store = store
        self._spool = tempfile.NamedTemporaryFile(prefix="streamlearn-")  # noqa: SIM115

    def _write(self, view: memoryview) -> None:
        try:
            self._spool.write(view)
        except OSError as error:
            message = f"cannot buffer a file for {self._store.url} here: {error.strerror}"
            raise StoreUnreachable(message, help="free space for temporary files (TMPDIR)") from None

    def finish(self) -> Stored:
        stored = self._stored()
        try:
            self._spool.flush()
            self._store.upload(stored.path, self._spool.name, self.bytes)
        except FileTaken:
            # A file with the same digest: its writer died after the upload.
            self._store.read(stored.path, bytes_max=stored.bytes, sha256=stored.sha256)
        finally:
            self.abandon()
        return stored

    def abandon(self) -> None:
        self.closed = True
        self._spool.close()


def _bounded(protocol: str, settings: VersionSettings, options: dict[str, Any]) -> dict[str, Any]:
    """Add a limit for every wait to the options, for file systems whose options we know."""
    if protocol not in _S3:
        return options
    wait_s = settings.request_timeout_ms / 1000
    retries = {"total_max_attempts": settings.attempts_max}
    bounds = {"connect_timeout": wait_s, "read_timeout": wait_s, "retries": retries}
    return options | {"config_kwargs": bounds | options.get("config_kwargs", {})}


def _takes_mode(files: Any, name: str) -> bool:
    """Return whether the file system itself implements a writing method, with a mode."""
    method = getattr(type(files), f"_{name}", None) or getattr(type(files), name)
    is_own = not method.__module__.startswith(("fsspec.spec", "fsspec.asyn"))
    return is_own and "mode" in inspect.signature(method).parameters


def _unless_missing(call: Callable[[], Answer], default: Answer) -> Answer:
    try:
        return call()
    except FileNotFoundError:
        return default


def _texts(options: Any) -> set[str]:
    """Collect every text in nested options; any may be a secret."""
    if isinstance(options, dict):
        return {text for value in options.values() for text in _texts(value)}
    if isinstance(options, list | tuple | set):
        return {text for value in options for text in _texts(value)}
    return {options} if isinstance(options, str) and len(options) >= _SECRET_CHARS_MIN else set()
