"""Reading: one version, held while somebody reads it, whatever the node does meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from streamlearn.errors import NodeNotReady
from streamlearn.table import TableSet
from streamlearn.table.pin import Pin
from streamlearn.versions.format.record import VersionRef
from streamlearn.versions.replica.staged_versions import Staged

__all__ = ["Reading"]


class Reading:
    """A version that stays readable and the same until the context is left.

    Args:
        current: Gives what is read now; None before there is anything.
        version: Which version; None for the active one.

    Attributes:
        tables: The tables.
        version: The number of the version.
        ref: What names it.
        at: What calls of the tables take as `at`.
    """

    __slots__ = ("_asked", "_current", "_staged", "at", "ref", "tables", "version")

    tables: TableSet
    version: int
    ref: VersionRef
    at: Pin

    def __init__(self, current: Callable[[], Staged | None], version: int | None) -> None:
        self._current, self._asked = current, version
        self._staged: Staged | None = None

    def __enter__(self) -> Reading:
        staged = self._current()
        entered = None if staged is None else staged.enter(self._asked)
        while entered is None:
            # Perhaps other tables took the place of those, just now.
            before, staged = staged, self._current()
            if staged is None or staged is before:
                message = "this node has no version to answer with"
                raise NodeNotReady(message, help="it is starting or rebuilding its tables; ask another node, or wait")
            entered = staged.enter(self._asked)
        assert staged is not None
        self._staged, self.tables = staged, staged.tables
        self.ref, self.at = entered
        self.version = self.ref.version
        return self

    def __exit__(self, *ended: object) -> None:
        staged, self._staged = self._staged, None
        assert staged is not None
        self.at.close()
        # Whoever keeps this object keeps no tables.
        del self.tables
        staged.leave()
