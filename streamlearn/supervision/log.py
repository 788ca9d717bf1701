"""MemberLog: what one member says, in files of bounded size; its last lines are kept at hand."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

from streamlearn.settings.up import UpSettings

__all__ = ["LINE_BYTES_MAX", "MemberLog"]

# A longer line becomes several.
LINE_BYTES_MAX = 1 << 16
_TAIL_LINES = 20
_TAIL_CHARS = 500


class _File(RotatingFileHandler):
    """A file that no error of the disk comes out of: whoever reads a pipe must go on reading it."""

    lost = 0

    def handleError(self, record: logging.LogRecord) -> None:
        """Count it; see `logging`."""
        del record
        self.lost += 1


class MemberLog:
    """A log that goes on where it was.

    Args:
        folder: Where `NAME.log` and the older `NAME.log.1` and so on are.
        name: The member's.
        settings: How large files become, and how many are kept.

    Attributes:
        path: The file that is being written.
    """

    def __init__(self, folder: Path, name: str, settings: UpSettings) -> None:
        self.path = folder / f"{name}.log"
        self._file = _File(
            self.path, maxBytes=settings.log_bytes_max, backupCount=settings.log_files_max, encoding="utf-8"
        )
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    @property
    def lost_lines(self) -> int:
        """Lines that could not be written, as on a full disk."""
        return self._file.lost

    @property
    def tail(self) -> list[str]:
        """The last lines since `begin`, each cut where it is long."""
        return list(self._tail)

    def begin(self, words: str) -> None:
        """Say that a new process begins, and forget the lines of the one before."""
        self._tail.clear()
        self._write(f"--- {words}")

    def take(self, line: bytes) -> str:
        """Write a line; gives it as text."""
        text = line.decode(errors="backslashreplace").rstrip()
        self._write(text)
        if text:
            self._tail.append(text[:_TAIL_CHARS])
        return text

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # what was not written by now is lost, and was counted
            self._file.close()

    def _write(self, text: str) -> None:
        self._file.handle(logging.makeLogRecord({"msg": text}))
