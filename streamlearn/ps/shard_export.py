"""ShardExport: one export of a shard, from its begin to its answer. It knows nothing of files."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator

from streamlearn.errors import TableBusy
from streamlearn.ps.orders import Exported
from streamlearn.table import Changes

__all__ = ["ShardExport"]


class ShardExport:
    """Coordinates the thread that writes a version, those that wait for it, and its cancellation.

    The generator of changes pins the version until it is closed.
    """

    def __init__(self, version: int, changes: Generator[Changes, None, None]) -> None:
        self.version = version
        self._changes = changes
        self._answer: Exported | None = None
        self._ended = threading.Event()
        self._is_cancelled = False

    @property
    def has_failed(self) -> bool:
        """Whether it has ended without an answer."""
        return self._ended.is_set() and self._answer is None

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return not self._ended.is_set()

    @property
    def is_abandoned(self) -> bool:
        """Whether it was cancelled and still runs, because its thread waits for the store."""
        return self._is_cancelled and self.is_running

    def changes(self) -> Iterator[Changes]:
        """Yield the changes; raises `TableBusy` once the export is cancelled."""
        for changes in self._changes:
            if self._is_cancelled:
                raise self._error()
            yield changes

    def end(self, answer: Exported | None) -> None:
        """Record the answer, or the failure, and release the version."""
        self._changes.close()
        self._answer = answer
        self._ended.set()

    def wait(self) -> Exported:
        """Return the answer once the writing thread has ended; raises `TableBusy` if it failed or was cancelled."""
        self._ended.wait()
        if self._answer is None:
            raise self._error()
        return self._answer

    def cancel(self, wait_s_max: float) -> bool:
        """Stop it between two pieces; returns whether it ended in time."""
        self._is_cancelled = True
        return self._ended.wait(wait_s_max)

    def _error(self) -> TableBusy:
        message = f"the export of version {self.version} failed or was given up"
        return TableBusy(message, help="order the export again, or give the version up")
