"""Lineage: the part of a manifest that all versions of a model share. It knows no version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from streamlearn.apps import AppFolder
from streamlearn.errors import UsageError
from streamlearn.features import labels_differ
from streamlearn.table import RowType, declared_tables
from streamlearn.versions import Head, VersionRef, record_of
from streamlearn.versions.format.manifest import Origin, TableRecord

__all__ = ["Lineage"]


@dataclass(frozen=True)
class Lineage:
    """The part of a manifest that all versions of a model share.

    `labels` is None if versions name none. Those versions have as `fingerprint` that of the `features` alone. `origin`
    is where the model began, if it replaces another.

    Raises:
        UsageError: Two tables have one name.
    """

    model: str
    fingerprint: str
    windows: str
    tables: tuple[TableRecord, ...]
    labels: tuple[str, ...] | None = None
    features: str = ""
    origin: Origin | UnsetType = UNSET

    def __post_init__(self) -> None:
        names = [table.name for table in self.tables]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            message = f"model {self.model!r} has two tables named {twice[0]!r}"
            raise UsageError(message, help="give every table its own name")

    @classmethod
    def of(cls, folder: AppFolder) -> Lineage:
        """The lineage of an application.

        Versions store rows for serving as `publisher.row_type`; training reads float32 from a second file.
        """
        app, settings = folder.app, folder.settings
        options = declared_tables(app.tables, settings.tables)
        tables = tuple(record_of(table, row_type=settings.publisher.row_type) for table in options)
        labels, features = app.label_names, app.features.fingerprint
        return cls(app.name, app.model_fingerprint, app.window_settings, tables, labels, features)

    def head(self, run: int, version: int, parent: VersionRef | None) -> Head:
        """The head of the next version, before its files are written; without a parent it is a base."""
        return Head(
            model=self.model, run=run, version=version, kind="base" if parent is None else "delta", parent=parent,
            fingerprint=self.fingerprint, labels=self.labels, windows=self.windows, tables=self.tables,
            origin=self.origin,
        )  # fmt: skip

    def check(self, head: Head) -> None:
        """Check that a version of this lineage may follow another; one that names no labels counts as having these.

        Raises:
            UsageError: Features, labels or tables have changed.
        """
        version = f"version {head.version} of {self.model!r}"
        fingerprint, message = self.fingerprint, ""
        if self.labels is not None and head.labels is not None:
            message = labels_differ(version, head.labels, self.labels)
        elif self.labels is not None:
            fingerprint = self.features
        if not message and fingerprint != head.fingerprint:
            message = (
                f"{version} was learned with features and labels of fingerprint {head.fingerprint}; the application "
                f"has {fingerprint}"
            )
        if message:
            help = (
                "the features and labels of a model never change: give the changed application a new name and begin it "
                'with `streamlearn migrate NEW --from APP`: see "Change an application" in the documentation'
            )
            raise UsageError(message, help=help)
        if differs := _difference(self.tables, head.tables):
            message = f"{version} was learned with other tables: {differs}"
            help = "the tables and row_type of a model never change: set them back, or give the application a new name"
            raise UsageError(message, help=help)

    def check_row_type(self, row_type: RowType) -> None:
        """Raise `UsageError` if `publisher.row_type` is not how the versions of this lineage store rows."""
        stored = {table.row_type for table in self.tables}
        if stored - {row_type}:
            types = ", ".join(sorted(stored))
            message = f"publisher.row_type is {row_type}, but the tables of this model are stored as {types}"
            raise UsageError(message, help="make it with Lineage.of(folder)")


def _difference(now: Sequence[TableRecord], then: Sequence[TableRecord]) -> str:
    """The first difference of an application's tables from a version's, with both values; empty if there is none."""
    here, there = ({table.name: table for table in tables} for tables in (now, then))
    for name in sorted(here.keys() | there.keys()):
        if name not in there or name not in here:
            return f"{name!r} is only in {'the application' if name in here else 'the version'}"
        for field in TableRecord.__struct_fields__:
            is_now, was = (getattr(tables[name], field) for tables in (here, there))
            if is_now != was:
                return f"{field} of {name!r} was {was} and is now {is_now}"
    return "" if tuple(now) == tuple(then) else f"the order was {', '.join(there)} and is now {', '.join(here)}"
