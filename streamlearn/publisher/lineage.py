"""Lineage: what all versions of a model have in common. It knows no version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamlearn.apps import App
from streamlearn.errors import UsageError
from streamlearn.features import labels_differ
from streamlearn.table import RowType, TableOptions
from streamlearn.versions import Head, VersionRef, record_of
from streamlearn.versions.format.manifest import Kind, TableRecord

__all__ = ["Lineage", "check_row_type"]


@dataclass(frozen=True)
class Lineage:
    """What every manifest of a model says alike.

    Attributes:
        model: Its name.
        fingerprint: Of the model.
        windows: Id of the window settings.
        tables: Its tables.
        labels: The names of its labels, in order; None where versions name none.
        features: The fingerprint of its features, which versions that name no labels have.

    Raises:
        UsageError: Two tables have one name.
    """

    model: str
    fingerprint: str
    windows: str
    tables: tuple[TableRecord, ...]
    labels: tuple[str, ...] | None = None
    features: str = ""

    def __post_init__(self) -> None:
        names = [table.name for table in self.tables]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            message = f"model {self.model!r} has two tables named {twice[0]!r}"
            raise UsageError(message, help="give every table its own name")

    @classmethod
    def of(cls, app: App, options: Sequence[TableOptions], row_type: RowType = "float32") -> Lineage:
        """That of an application.

        Args:
            app: The application.
            options: Of its tables, as the parameter server has them.
            row_type: How versions store rows for serving; training reads float32 beside them.
        """
        tables = tuple(record_of(one, row_type=row_type) for one in options)
        labels, features = app.label_names, app.features.fingerprint
        return cls(app.name, app.model_fingerprint, app.window_settings, tables, labels, features)

    def head(self, run: int, version: int, parent: VersionRef | None) -> Head:
        """What is known of the next version before its files are written; the first one is a base."""
        return Head(
            model=self.model, run=run, version=version, kind=_kind(parent), parent=parent,
            fingerprint=self.fingerprint, labels=self.labels, windows=self.windows, tables=self.tables,
        )  # fmt: skip

    def check(self, head: Head) -> None:
        """That versions which follow one may be of this lineage; one that names no labels is trusted to have these.

        Raises:
            UsageError: Features, labels or tables have changed since.
        """
        of = f"version {head.version} of {self.model!r}"
        mine, message = self.fingerprint, ""
        if self.labels is not None and head.labels is not None:
            message = labels_differ(of, head.labels, self.labels)
        elif self.labels is not None:
            mine = self.features
        if not message and mine != head.fingerprint:
            message = f"{of} was learned with features of fingerprint {head.fingerprint}; the application has {mine}"
        if message:
            help = (
                "the features and labels of a model never change: give the changed application a new name "
                "(docs/operating/training.md#change-features); `streamlearn train --from` starts its model "
                "from this one, unless labels were renamed or reordered"
            )
            raise UsageError(message, help=help)
        if differs := _difference(self.tables, head.tables):
            message = f"{of} was learned with other tables: {differs}"
            help = "the tables and row_type of a model never change: set them back, or give the application a new name"
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
                return f"{field} of {name!r} was {then} and is now {now}"
    return "" if tuple(mine) == tuple(theirs) else f"the order was {', '.join(there)} and is now {', '.join(here)}"


def _kind(parent: VersionRef | None) -> Kind:
    return "base" if parent is None else "delta"


def check_row_type(lineage: Lineage, row_type: RowType) -> None:
    """A setting that says how rows are stored, and is not what versions say, would be a setting nobody heeds."""
    stored = {table.row_type for table in lineage.tables}
    if stored - {row_type}:
        message = (
            f"publisher.row_type is {row_type}, but the tables of this model are stored as {', '.join(sorted(stored))}"
        )
        raise UsageError(message, help="make it with Lineage.of(app, options, settings.publisher.row_type)")
