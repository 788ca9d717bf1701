"""A model whose versions hold a library and empty tables: what tests load back, compact, revert and damage."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from streamlearn.apps import App
from streamlearn.library.library import Library
from streamlearn.testing import ManualClock
from streamlearn.versions import Chain, Committed, Cut, Head, Store, VersionWriter, open_store
from streamlearn.versions.format.manifest import TableRecord

MODEL = "items"
_numbers = itertools.count()


@dataclass
class Writer:
    """Writes the library of an application as versions."""

    app: App
    store: Store = field(default_factory=lambda: open_store(f"memory://library-{next(_numbers)}"))
    last: Committed | None = None

    def __post_init__(self) -> None:
        self.library = Library(self.app)

    def writer(self, version: int) -> VersionWriter:
        """The writer of a version after the last one, with its tables."""
        head = Head(
            model=MODEL, run=1, version=version, kind="delta" if self.last else "base",
            parent=self.last.ref if self.last else None, fingerprint="f", windows="w",
            tables=(TableRecord(name="main", dim=2, initial_range=0.1),),
        )  # fmt: skip
        made = VersionWriter(self.store, head)
        made.add_rows([])
        return made

    def cut(self, version: int) -> Committed:
        """Commit what changed."""
        cut, writer = self.library.cut(), self.writer(version)
        writer.add_library(cut.tensors)
        self.last = writer.finish(Cut(), clock=ManualClock())
        cut.committed()
        return self.last

    def restored(self, version: int | None = None) -> Library:
        """The library of a version."""
        library = Library(self.app)
        library.restore(Chain.find(self.store, MODEL, version))
        return library


def known(library: Library) -> dict[str, Any]:
    """All that a library knows, bit by bit, and what chance gives."""
    columns = library._columns_at(library._rows)
    found: dict[str, Any] = {name: (column.dtype.str, column.tobytes()) for name, column in columns.items()}
    return found | {"sample": library.sample(7, 3).keys.tolist(), "size": len(library)}
