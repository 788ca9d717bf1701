"""FileWatch: notices when files differ from what they were at the start."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from streamlearn.clock import Clock

__all__ = ["FileWatch"]

_LOOK_S = 1.0


class FileWatch:
    """The contents of a few files, compared with those at the start at most once a second."""

    def __init__(self, files: Sequence[Path], clock: Clock) -> None:
        self._clock, self._looked_s = clock, clock.monotonic_s()
        self._first = self._last = {path: _digest(path) for path in files}

    def news(self) -> list[Path] | None:
        """Return the files that differ from the start, if a content changed since the last call; otherwise None."""
        if self._clock.monotonic_s() - self._looked_s < _LOOK_S:
            return None
        self._looked_s = self._clock.monotonic_s()
        before, self._last = self._last, {path: _digest(path) for path in self._first}
        if self._last == before:
            return None
        return [path for path, digest in self._last.items() if digest != self._first[path]]


def _digest(path: Path) -> bytes:
    """Return a digest of the content; a file that cannot be read counts as empty."""
    try:
        content = path.read_bytes()
    except OSError:
        content = b""
    return hashlib.sha256(content).digest()
