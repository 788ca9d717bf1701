"""RunOrigin: the release, the application's code and the settings of a run, beside its number in the store."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

from msgspec import Meta, field

from streamlearn.errors import FileMissing, FileTaken
from streamlearn.versions.format.record import Record
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.layout import RUN_MAX, model_folder
from streamlearn.versions.store.sequence import Sequence

__all__ = ["RunOrigin", "read_origin", "write_origin"]

_HELP = "restore it from a copy, or remove it: only `show` reads it"
_Name = Annotated[str, Meta(max_length=200)]


class RunOrigin(Record, frozen=True, kw_only=True):
    """The release, the application's code and the settings of a run.

    Attributes:
        commit: The commit of the git work tree with the application's folder; empty if it is in none.
        is_changed: Whether files of the folder differ from that commit; null without one.
        sha256: The digest of the application's files, by name.
        settings: The settings that differ from their defaults, without logins of URLs.
    """

    run: Annotated[int, Meta(ge=1, le=RUN_MAX)]
    release: _Name
    commit: _Name = ""
    is_changed: bool | None = None
    sha256: dict[str, _Name] = field(default_factory=dict)
    settings: Annotated[dict[str, Any], Meta(max_length=1_000)] = field(default_factory=dict)


def write_origin(store: Store, model: str, origin: RunOrigin) -> None:
    """Record the origin of a run; an existing one stays."""
    with contextlib.suppress(FileTaken):
        _origins(store, model).append(origin.run, origin)


def read_origin(store: Store, model: str, run: int) -> RunOrigin | None:
    """Read the origin of a run; None if it was not recorded. Raises `VersionDefect` if it is damaged."""
    try:
        return _origins(store, model).read(run)
    except FileMissing:
        return None


def _origins(store: Store, model: str) -> Sequence[RunOrigin]:
    return Sequence(store, model_folder(model, "origins"), RunOrigin, help=_HELP)
