"""Kept: files of what could not be learned from, for people to look at; the oldest go when there are too many."""

from __future__ import annotations

import logging
from pathlib import Path

__all__ = ["Kept"]

_LOG = logging.getLogger("streamlearn.trainer.Kept")


class Kept:
    """A folder of bounded size.

    Args:
        folder: Where to; it is made when there is something.
        bytes_max: Of all files together. A larger one is not kept at all, and no other goes for it.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder, self._bytes_max = folder, bytes_max

    def add(self, name: str, data: bytes) -> None:
        """Keep something; what cannot be kept is logged, and training goes on."""
        if len(data) > self._bytes_max:
            _LOG.warning("%s of %d bytes exceeds the quarantine's limit: it is dropped", name, len(data))
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            others = (one for one in self._folder.iterdir() if one.name != name)
            there = sorted(others, key=lambda one: one.stat().st_mtime)
            held = sum(one.stat().st_size for one in there)
            for one in there:
                if held + len(data) <= self._bytes_max:
                    break
                held -= one.stat().st_size
                one.unlink()
            (self._folder / name).write_bytes(data)
            _LOG.warning("put into quarantine: %s", self._folder / name)
        except OSError as error:
            _LOG.warning("%s could not be put into quarantine: %s", name, error)
