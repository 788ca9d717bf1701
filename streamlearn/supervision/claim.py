"""Claim: only one `streamlearn up` runs with a folder of logs, and so for an application on a machine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamlearn.errors import ServiceError

__all__ = ["claimed"]

_FILE = "up.lock"
_PID_BYTES_MAX = 32


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, which is created if needed; the kernel releases it when this process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / _FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(file, _PID_BYTES_MAX).decode(errors="replace").strip()
            message = f"another `streamlearn up` (pid {pid}) uses {folder}"
            raise ServiceError(message, help="stop it first, or give --logs another folder") from None
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(file)
