"""The model of a verb: its store and registry, from options, the environment and the application's folder.

If MODEL is given, only app.toml of the application is read, so that a rollback does not wait for imports.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from streamlearn.cli.options import Place
from streamlearn.errors import StreamlearnError, UsageError
from streamlearn.versions.pointer.model import Model

__all__ = [
    "Model", "ModelArgument", "ReasonOption", "WordsArgument", "author", "complete_version", "model_and_versions",
    "open_model",
]  # fmt: skip

_VERSION_MAX = 10**12 - 1
_PROPOSED_MAX = 50


def complete_version(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the newest versions, newest first, of the model that the words before name; none rather than fail."""
    given = ctx.params
    # An option without its value stops the parser before it knows arguments: they are in `args` then.
    words = [word for word in (*(given.get("words") or ()), *ctx.args) if not word.isdigit() and word[:1] != "-"]
    name = given.get("name") or next(iter(words), None)
    place = Place(given.get("app"), given.get("store"), given.get("registry"), given.get("set_"))
    try:
        known = open_model(name, place).known()
    except (StreamlearnError, OSError):
        return []
    numbers = [str(entry.version) for entry in reversed(known[-_PROPOSED_MAX:])]
    return [number for number in numbers if number.startswith(incomplete)]


ModelArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="The application's folder, or the model's name. Not needed with --app."),
]
WordsArgument: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="[MODEL] VERSION",
        help="The model or its folder (not needed with --app), and the number of a version.",
        autocompletion=complete_version,
    ),
]
ReasonOption: TypeAlias = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="The reason; it is stored with the move for others to read.")
]


def open_model(model: str | None, place: Place) -> Model:
    """Open a model, by its name or its application's folder.

    Raises:
        UsageError: Neither is given, or the store is unknown.
    """
    from streamlearn.apps.folder import registry_url, store_url
    from streamlearn.config import read_settings
    from streamlearn.settings import Settings

    app, given_store = place.app, place.store or os.environ.get("STREAMLEARN_STORE")
    if app is None and model is not None and not given_store and (Path(model) / "app.py").is_file():
        app, model = Path(model), None
    if app is None and model is None:
        message = "no model was given"
        raise UsageError(message, help="give the folder of an application, or MODEL with --store or STREAMLEARN_STORE")
    if app is not None and not (app / "app.py").is_file():
        message = f"{app} is not an application: it has no app.py"
        raise UsageError(message, help="name the folder of an application, such as examples/kuairand")
    settings = read_settings(Settings, None if app is None else app / "app.toml", place.set_ or ())
    store = given_store or settings.versions.store
    url = place.registry or os.environ.get("STREAMLEARN_REGISTRY") or settings.registry.url
    if app is None and not store:
        message = f"{model!r} is not the folder of an application, and the store of a model of this name is unknown"
        raise UsageError(message, help="give the folder, or --store URL, or set STREAMLEARN_STORE")
    if app is not None:
        store = store or store_url(app, settings.versions)
        url = url or registry_url(app, settings.registry)
    return Model(model or _name(app, place.set_), store, "" if url == "none" else url, settings, url == "none")


def model_and_versions(words: Sequence[str], count: int) -> tuple[str | None, list[int]]:
    """Split words of the command line into the model, if it is given, and exactly `count` versions.

    Raises:
        UsageError: The number of versions differs, or a version is not a number.

    Examples:
        >>> model_and_versions(["ctr", "17"], 1), model_and_versions(["17", "18"], 2)
        (('ctr', [17]), (None, [17, 18]))
    """
    model = words[0] if words and not words[0].isdigit() else None
    numbers = words[1:] if model else words
    if len(numbers) != count or not all(text.isdigit() and 0 < int(text) <= _VERSION_MAX for text in numbers):
        message = f"{' '.join(words)!r} is not a model and {count} version{'s' if count != 1 else ''}"
        if not numbers:
            message = "VERSION is missing"
        raise UsageError(message, help=f"give [MODEL]{' VERSION' * count}, such as ctr{' 1841' * count}")
    return model, [int(text) for text in numbers]


def author() -> str:
    """Return the user name for the log of moves."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _name(app: Path | None, set_: Sequence[str] | None) -> str:
    from streamlearn.apps import load_app

    assert app is not None
    return load_app(app, set_ or ()).app.name
