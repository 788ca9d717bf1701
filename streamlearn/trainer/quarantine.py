"""Quarantine: a folder of messages and steps that could not be learned, for people to inspect."""

from __future__ import annotations

import logging
from pathlib import Path

from streamlearn.apps import AppFolder

__all__ = ["Quarantine"]

_LOG = logging.getLogger("streamlearn.trainer.Quarantine")


class Quarantine:
    """A folder whose files take at most `bytes_max`; the oldest are deleted first. A larger file is not stored."""

    @classmethod
    def of(cls, folder: AppFolder) -> Quarantine:
        """Return the quarantine of an application."""
        return cls(folder.folder / ".streamlearn/kept", folder.settings.trainer.kept_bytes_max)

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder, self._bytes_max = folder, bytes_max

    def add(self, name: str, data: bytes) -> None:
        """Store a file; a failure is logged and does not stop training."""
        if len(data) > self._bytes_max:
            _LOG.warning("%s of %d bytes exceeds the quarantine's limit: it is dropped", name, len(data))
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            others = (file for file in self._folder.iterdir() if file.name != name)
            oldest_first = sorted(others, key=lambda file: file.stat().st_mtime)
            used_bytes = sum(file.stat().st_size for file in oldest_first)
            for file in oldest_first:
                if used_bytes + len(data) <= self._bytes_max:
                    break
                used_bytes -= file.stat().st_size
                file.unlink()
            (self._folder / name).write_bytes(data)
            _LOG.warning("put into quarantine: %s", self._folder / name)
        except OSError as error:
            _LOG.warning("%s could not be put into quarantine: %s", name, error)
