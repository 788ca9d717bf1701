"""Hooks: what else must be ready before a version answers, such as dense weights. It knows no table's insides."""

from __future__ import annotations

from typing import Protocol

from streamlearn.table import TableSet
from streamlearn.versions.format.record import VersionRef
from streamlearn.versions.format.writer import Committed
from streamlearn.versions.pointer.moves import Canary

__all__ = ["Hooks", "NoHooks"]


class Hooks(Protocol):
    """What a node does of its own when it follows versions.

    `stage` and `retire` are called by one thread; `activate` may be called while they are at work. A version is named
    by its ref: after a race of two runs, another version of the same number may be staged while the first answers.
    """

    def stage(self, version: Committed, tables: TableSet) -> None:
        """Make ready what the version needs beside its rows, which are in the tables already.

        Called again, with other tables, for a version that is ready already when tables are built anew.

        Raises:
            StreamlearnError: The version cannot be used here. It is tried again later.
        """
        ...

    def activate(self, version: VersionRef, canary: Canary | None) -> None:
        """Called after the version became the one that answers; requests may have been answered with it before.

        Called again for the same version when it answers from other tables, and when a canary that is ready is tried
        beside it, at another share, or no more.
        """
        ...

    def retire(self, version: VersionRef) -> None:
        """Let go of what was made ready; nobody reads the version any more."""
        ...


class NoHooks:
    """Hooks of a node that needs no more than rows."""

    def stage(self, version: Committed, tables: TableSet) -> None:
        """See `Hooks.stage`."""

    def activate(self, version: VersionRef, canary: Canary | None) -> None:
        """See `Hooks.activate`."""

    def retire(self, version: VersionRef) -> None:
        """See `Hooks.retire`."""
