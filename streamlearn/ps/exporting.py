"""Exporting: the one export of a shard that is under way, or the last one's answer. It knows nothing of files."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from streamlearn.errors import TableBusy
from streamlearn.ps.orders import Exported
from streamlearn.table import Changes

__all__ = ["Exporting"]


class Exporting:
    """Who writes a version, who waits for that, and who ends it before its time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version: int | None = None
        self._answer: Exported | None = None
        self._is_running = False
        self._is_cancelled = False

    def begin(self, version: int) -> bool:
        """Whether the caller is to write this version: nobody did or does. Whoever is to must call `end`.

        Raises:
            TableBusy: Another version is being written.
        """
        with self._changed:
            if version == self._version and (self._is_running or self._answer is not None):
                return False
            if self._is_running:
                message = f"version {self._version} is being written"
                raise TableBusy(message, help="wait for it, or give that version up")
            self._version, self._answer = version, None
            self._is_running, self._is_cancelled = True, False
            return True

    def going(self, changes: Iterator[Changes]) -> Iterator[Changes]:
        """The same changes, until someone cancels.

        Raises:
            TableBusy: It was cancelled.
        """
        for one in changes:
            if self._is_cancelled:
                raise _given_up(self._version)
            yield one

    def end(self, answer: Exported | None) -> None:
        """It is written, or failed."""
        with self._changed:
            self._is_running, self._answer = False, answer
            self._changed.notify_all()

    def wait(self, version: int) -> Exported:
        """The answer of whoever writes it.

        Raises:
            TableBusy: It failed, or was cancelled.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_running)
            if self._version != version or self._answer is None:
                raise _given_up(version)
            return self._answer

    def cancel(self) -> None:
        """End it, and wait until it has; between two pieces of some parts."""
        with self._changed:
            self._is_cancelled = True
            self._changed.wait_for(lambda: not self._is_running)
            self._version, self._answer = None, None


def _given_up(version: int | None) -> TableBusy:
    message = f"the export of version {version} failed or was given up"
    return TableBusy(message, help="ask for it again, or give the version up")
