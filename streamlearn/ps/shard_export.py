"""Exporting: one export of a shard, from its beginning to its answer. It knows nothing of files."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator

from streamlearn.errors import TableBusy
from streamlearn.ps.orders import Exported
from streamlearn.table import Changes

__all__ = ["Exporting"]


class Exporting:
    """What writes a version, who waits for that, and who ends it before its time.

    Args:
        version: The version.
        changes: What there is to write; it holds the version until it is closed.
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
    def is_going(self) -> bool:
        """Whether it has not ended yet."""
        return not self._ended.is_set()

    def going(self) -> Iterator[Changes]:
        """The changes, until someone cancels.

        Raises:
            TableBusy: It was cancelled.
        """
        for one in self._changes:
            if self._is_cancelled:
                raise self._given_up()
            yield one

    def end(self, answer: Exported | None) -> None:
        """It is written, or failed; the version is let go of."""
        self._changes.close()
        self._answer = answer
        self._ended.set()

    def wait(self) -> Exported:
        """The answer, once whoever writes it has ended.

        Raises:
            TableBusy: It failed, or was cancelled.
        """
        self._ended.wait()
        if self._answer is None:
            raise self._given_up()
        return self._answer

    @property
    def is_left(self) -> bool:
        """Whether it was given up and has not ended: whoever writes it waits for the store."""
        return self._is_cancelled and self.is_going

    def cancel(self, wait_s_max: float) -> bool:
        """Have it end between two pieces. Gives whether it has ended within some time."""
        self._is_cancelled = True
        return self._ended.wait(wait_s_max)

    def _given_up(self) -> TableBusy:
        message = f"the export of version {self.version} failed or was given up"
        return TableBusy(message, help="order the export again, or give the version up")
