"""Hooks: what a node prepares before a version answers, beside its rows, such as dense weights."""

from __future__ import annotations

from streamlearn.table import TableSet
from streamlearn.versions.format.record import VersionRef
from streamlearn.versions.format.writer import Committed
from streamlearn.versions.pointer.moves import Canary

__all__ = ["Hooks"]


class Hooks:
    """The node's own work as it follows versions; these do nothing, for a node that needs only rows.

    One thread calls `load`, `stage` and `retire`; `activate` may be called while they run. A version is named by its
    ref: after a race of two runs, another version of the same number may be staged while the first answers.
    """

    def load(self, version: Committed, parent: VersionRef | None) -> None:
        """Read what else the version changes of its parent, before its rows are staged; also if it is never ready.

        A base has no parent. Called again for a version if its rows could not be staged, or when tables are rebuilt. If
        it raises a `StreamlearnError`, nothing of the version is kept, and the node tries again later.
        """

    def stage(self, version: Committed, tables: TableSet) -> None:
        """Prepare what the version needs beside its rows, which are in the tables already.

        Called again, with other tables, for a version that is ready when tables are rebuilt. If it raises a
        `StreamlearnError`, the version cannot be used here, and the node tries again later.
        """

    def activate(self, version: VersionRef, canary: Canary | None) -> None:
        """Called after a version became the one that answers; it may have answered requests before the call.

        Called again for the same version when it answers from other tables, and when a ready canary begins, changes its
        share, or ends.
        """

    def retire(self, version: VersionRef) -> None:
        """Release what `load` and `stage` prepared; the version has no readers left, or never had."""
