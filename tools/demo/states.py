"""States: the file with the feature states of a loop, which can be made unusable for a while."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from streamlearn.apps import AppFolder

__all__ = ["unusable_states"]

_WAIT_S = 30.0


@contextmanager
def unusable_states(folder: AppFolder) -> Iterator[None]:
    """Have every read and every write of states fail until the block ends."""
    _rename(folder, "states", "states_away")
    try:
        yield
    finally:
        _rename(folder, "states_away", "states")


def _rename(folder: AppFolder, old: str, new: str) -> None:
    path = folder.settings.features.store.removeprefix("sqlite://")
    with closing(sqlite3.connect(path, timeout=_WAIT_S)) as sql:
        sql.execute(f"ALTER TABLE {old} RENAME TO {new}")
