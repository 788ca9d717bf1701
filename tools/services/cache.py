"""The cache folder: fetched and built files, in entries whose names carry their versions.

An entry appears complete or not at all, and one process at a time makes it. The cache does not know what entries hold.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from streamlearn.cache import cache_folder
from streamlearn.errors import ServiceError

__all__ = ["Cache", "size_bytes"]

_LOCK_POLL_S = 0.1
_LOCK_WAIT_S_MAX = 1_800.0


class Cache:
    """A folder of entries.

    Args:
        folder: Its path; by default `STREAMLEARN_CACHE`, else `streamlearn` in the user's cache folder.
        lock_wait_s_max: Limit of the wait for another process that makes the same entry.
    """

    def __init__(self, folder: Path | None = None, *, lock_wait_s_max: float = _LOCK_WAIT_S_MAX) -> None:
        self.folder = folder or cache_folder()
        self._lock_wait_s_max = lock_wait_s_max

    def find(self, name: str) -> Path | None:
        """Return the entry's folder, or None if the entry does not exist."""
        entry = self.folder / name
        return entry if entry.is_dir() else None

    def get(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return the entry's folder; make the entry first if it does not exist.

        Args:
            name: The entry's name, with its version.
            make: Fills an empty folder, which becomes the entry.

        Raises:
            ServiceError: The folder is not writable, or another process takes too long to make the entry.
        """
        entry = self.find(name)
        if entry is not None:
            return entry
        with self._lock(name):
            entry = self.folder / name
            if entry.is_dir():
                return entry
            for leftover in self.folder.glob(f".making-{name}-*"):  # left by a process that died in `make`
                shutil.rmtree(leftover)
            made = Path(tempfile.mkdtemp(prefix=f".making-{name}-", dir=self.folder))
            try:
                make(made)
                made.chmod(0o755)
                made.rename(entry)
            finally:
                shutil.rmtree(made, ignore_errors=True)
        return entry

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / f".{name}.lock").open("w")
        except OSError as error:
            message = f"the cache folder {self.folder} cannot be written: {error.strerror}"
            raise ServiceError(message, help="set STREAMLEARN_CACHE to another folder") from error
        with file:
            deadline_s = time.monotonic() + self._lock_wait_s_max
            while not _try_lock(file.fileno()):
                if time.monotonic() > deadline_s:
                    message = f"another process has been making {name} for {self._lock_wait_s_max:g} s"
                    raise ServiceError(message, help=f"end that process; it holds {file.name}")
                time.sleep(_LOCK_POLL_S)
            yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def size_bytes(path: Path) -> int:
    """Return the size of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
