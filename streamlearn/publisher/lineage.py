"""Lineage: what all versions of a model have in common. It knows no version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamlearn.apps import App
from streamlearn.errors import UsageError
from streamlearn.table import RowType, TableOptions
from streamlearn.versions import Head, Kind, TableRecord, VersionRef, record_of

__all__ = ["Lineage"]


@dataclass(frozen=True)
class Lineage:
    """What every manifest of a model says alike.

    Attributes:
        model: Its name.
        fingerprint: Of the features.
        windows: Id of the window settings.
        tables: Its tables.

    Raises:
        UsageError: Two tables have one name.
    """

    model: str
    fingerprint: str
    windows: str
    tables: tuple[TableRecord, ...]

    def __post_init__(self) -> None:
        names = [table.name for table in self.tables]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            message = f"model {self.model!r} has two tables of the name {twice[0]!r}"
            raise UsageError(message, help="give every table a name of its own")

    @classmethod
    def of(cls, app: App, options: Sequence[TableOptions], row_type: RowType = "float32") -> Lineage:
        """That of an application.

        Args:
            app: The application.
            options: Of its tables, as the parameter server has them.
            row_type: How versions store rows for serving; training reads float32 beside them.
        """
        tables = tuple(record_of(one, row_type=row_type) for one in options)
        return cls(app.name, app.features.fingerprint, app.window_settings, tables)

    def head(self, run: int, version: int, parent: VersionRef | None) -> Head:
        """What is known of the next version before its files are written; the first one is a base."""
        return Head(
            model=self.model, run=run, version=version, kind=_kind(parent), parent=parent,
            fingerprint=self.fingerprint, windows=self.windows, tables=self.tables,
        )  # fmt: skip

    def check(self, head: Head) -> None:
        """That versions which follow one may be of this lineage.

        Raises:
            UsageError: Features or tables have changed since.
        """
        of = f"version {head.version} of {self.model!r}"
        if self.fingerprint != head.fingerprint:
            message = f"{of} was learned with features {head.fingerprint}, and the application has {self.fingerprint}"
            help = (
                "features of a model never change: give the changed application a new name; "
                "`streamlearn train --from` begins its model with what this one learned"
            )
            raise UsageError(message, help=help)
        if differs := _difference(self.tables, head.tables):
            message = f"{of} was learned with other tables: {differs}"
            help = "tables and row_type of a model never change: set them back, or give the application a new name"
            raise UsageError(message, help=help)


def _difference(mine: Sequence[TableRecord], theirs: Sequence[TableRecord]) -> str:
    """The first thing in which tables differ, with both values; empty where nothing does."""
    here, there = ({one.name: one for one in tables} for tables in (mine, theirs))
    for name in sorted(here.keys() | there.keys()):
        if name not in there or name not in here:
            return f"{name!r} is only in {'the application' if name in here else 'the version'}"
        for field in TableRecord.__struct_fields__:
            now, then = (getattr(tables[name], field) for tables in (here, there))
            if now != then:
                return f"{field} of {name!r} was {then}, and is {now} now"
    return "" if tuple(mine) == tuple(theirs) else f"their order was {', '.join(there)}, and is {', '.join(here)} now"


def _kind(parent: VersionRef | None) -> Kind:
    return "base" if parent is None else "delta"
