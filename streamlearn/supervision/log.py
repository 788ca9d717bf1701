"""MemberLog: the output of one member, in files of bounded size; its last lines stay in memory."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

from streamlearn.settings.up import UpSettings

__all__ = ["LINE_BYTES_MAX", "MemberLog"]

# Longer lines are split.
LINE_BYTES_MAX = 1 << 16
_TAIL_LINES = 20
_TAIL_CHARS = 500


class _File(RotatingFileHandler):
    """A file that raises no disk errors: the reader of a pipe must go on reading."""

    lost = 0

    def handleError(self, record: logging.LogRecord) -> None:
        """Count the lost line."""
        del record
        self.lost += 1


class MemberLog:
    """The log of a member, appended to `NAME.log` in a folder; older files are `NAME.log.1` and so on."""

    def __init__(self, folder: Path, name: str, settings: UpSettings) -> None:
        self.path = folder / f"{name}.log"
        self._file = _File(
            self.path, maxBytes=settings.log_bytes_max, backupCount=settings.log_files_max, encoding="utf-8"
        )
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    @property
    def lost_lines(self) -> int:
        """Lines that could not be written, for example on a full disk."""
        return self._file.lost

    @property
    def tail(self) -> list[str]:
        """The last lines since `begin`, truncated."""
        return list(self._tail)

    def begin(self, words: str) -> None:
        """Write that a new process starts, and clear the tail."""
        self._tail.clear()
        self._write(f"--- {words}")

    def take(self, line: bytes) -> str:
        """Write a line and return it as text."""
        text = line.decode(errors="backslashreplace").rstrip()
        self._write(text)
        if text:
            self._tail.append(text[:_TAIL_CHARS])
        return text

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # lines that could not be written were counted
            self._file.close()

    def _write(self, text: str) -> None:
        self._file.handle(logging.makeLogRecord({"msg": text}))
