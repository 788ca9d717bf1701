"""The model a verb is about: where its versions and its registry are, from options, environment and folder.

With MODEL named, of an application's folder only app.toml is read: a rollback does not wait for Python to load more.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from streamlearn.errors import RegistryUnreachable, UsageError

if TYPE_CHECKING:
    from streamlearn.cli.place import Place
    from streamlearn.settings import Settings
    from streamlearn.versions import History, Known, Mover, Pointer, PointerLog, Registry, Store

__all__ = [
    "Model",
    "ModelArgument",
    "ReasonOption",
    "WordsArgument",
    "model_and_versions",
    "open_model",
    "who",
]

ModelArgument: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="[MODEL]", help="The model: an application's name. Not needed with --app.")
]
WordsArgument: TypeAlias = Annotated[
    list[str],
    typer.Argument(metavar="[MODEL] VERSION", help="The model, not needed with --app, and a version's number."),
]
ReasonOption: TypeAlias = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with the move, and others read it.")
]


_VERSION_MAX = 10**12 - 1


@dataclass(frozen=True)
class Model:
    """A model and where it is.

    Attributes:
        name: Its name.
        store_url: Where its versions are.
        url: Where its nodes are; empty for no registry.
        settings: The application's, or the defaults.
        is_alone: Whether it was said that there is no registry.
    """

    name: str
    store_url: str
    url: str
    settings: Settings
    is_alone: bool = False

    @cached_property
    def store(self) -> Store:
        """Its store."""
        from streamlearn.versions import open_store

        return open_store(self.store_url)

    @cached_property
    def registry(self) -> Registry | None:
        """Its registry."""
        from streamlearn.versions import open_registry

        return open_registry(self.url, self.name, self.settings.registry) if self.url else None

    @cached_property
    def log(self) -> PointerLog:
        """The moves of its pointer."""
        from streamlearn.versions import PointerLog

        log = PointerLog(self.store, self.name)
        if self.registry is not None:
            with suppress(RegistryUnreachable):
                copy = self.registry.pointer()
                log.begin_near(0 if copy is None else copy.seq)
        return log

    @cached_property
    def mover(self) -> Mover:
        """What moves its pointer."""
        from streamlearn.versions import Mover

        return Mover(self.log, self.registry)

    @cached_property
    def history(self) -> History:
        """Its versions, as far as they are known to the registry without another look."""
        from streamlearn.versions import History

        known: Sequence[Known] = ()
        if self.registry is not None:
            try:
                known = self.registry.versions()
            except RegistryUnreachable:
                known = ()
        return History(self.store, self.name, known)

    @property
    def pointer(self) -> Pointer:
        """Where its pointer stands."""
        return self.log.newest()

    def known(self) -> tuple[Known, ...]:
        """Its versions, oldest first.

        Raises:
            UsageError: There are none.
        """
        known = self.history.read()
        if not known:
            message = f"there is no version of {self.name!r} in {self.store.url}"
            raise UsageError(message, help="check the model's name, and --store or STREAMLEARN_STORE")
        return known

    def known_at(self, pointer: Pointer, known: Sequence[Known]) -> Sequence[Known]:
        """Its versions again, where one is served by now that was not there when they were read."""
        is_there = all(ref.version <= known[-1].version for ref in pointer.needed.values())
        return known if is_there else self.known()

    def one(self, version: int) -> Known:
        """One of its versions.

        Raises:
            UsageError: There is none of that number.
        """
        known = self.known()
        for one in known:
            if one.version == version:
                return one
        there = ", ".join(str(one.version) for one in known[-5:])
        message = f"there is no version {version} of {self.name!r}"
        raise UsageError(message, help=f"the newest are {there}; see `streamlearn versions {self.name}`")


def open_model(model: str | None, place: Place) -> Model:
    """The model that is named, at a place.

    Raises:
        UsageError: Neither a model nor an application is named, or nothing says where its versions are.
    """
    from streamlearn.config import read_settings
    from streamlearn.settings import Settings
    from streamlearn.versions import registry_url, store_url

    app = place.app
    if app is None and model is None:
        message = "no model was named"
        raise UsageError(message, help="give MODEL with --store or STREAMLEARN_STORE, or --app FOLDER")
    if app is not None and not (app / "app.py").is_file():
        message = f"{app} is no application: it has no app.py"
        raise UsageError(message, help="name the folder of an application, such as examples/kuairand")
    settings = read_settings(Settings, None if app is None else app / "app.toml", place.set_ or ())
    store = place.store or os.environ.get("STREAMLEARN_STORE") or settings.versions.store
    url = place.registry or os.environ.get("STREAMLEARN_REGISTRY") or settings.registry.url
    if app is None and not store:
        message = f"nothing says where the versions of {model!r} are"
        raise UsageError(message, help="give --store URL or --app FOLDER, or set STREAMLEARN_STORE")
    if app is not None:
        store = store or store_url(app, settings.versions)
        url = url or registry_url(app, settings.registry)
    return Model(model or _name(app, place.set_), store, "" if url == "none" else url, settings, url == "none")


def model_and_versions(words: Sequence[str], count: int) -> tuple[str | None, list[int]]:
    """The model, if it is named, and the versions behind it.

    Args:
        words: What stands on the command line.
        count: How many versions there are to be.

    Raises:
        UsageError: There are more or fewer, or one is no number.

    Examples:
        >>> model_and_versions(["ctr", "17"], 1), model_and_versions(["17", "18"], 2)
        (('ctr', [17]), (None, [17, 18]))
    """
    model = words[0] if words and not words[0].isdigit() else None
    numbers = words[1:] if model else words
    if len(numbers) != count or not all(one.isdigit() and 0 < int(one) <= _VERSION_MAX for one in numbers):
        message = f"{' '.join(words)!r} is not a model and {count} version{'s' if count != 1 else ''}"
        raise UsageError(message, help=f"give [MODEL]{' VERSION' * count}, such as ctr{' 1841' * count}")
    return model, [int(one) for one in numbers]


def who() -> str:
    """Who gives the command, as the log of moves says it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _name(app: Path | None, set_: Sequence[str] | None) -> str:
    from streamlearn.apps import load_app

    assert app is not None
    return load_app(app, set_ or ()).app.name
