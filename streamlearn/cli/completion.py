"""Completion: the names of settings and the versions that a shell proposes. It proposes nothing rather than fail."""

from __future__ import annotations

import typer

from streamlearn.errors import StreamlearnError

__all__ = ["complete_setting", "complete_version"]

_VERSIONS_MAX = 50


def complete_setting(incomplete: str) -> list[str]:
    """Return the settings whose names begin with a text, each with `=`."""
    from streamlearn.config import fields_of
    from streamlearn.settings import Settings

    return [f"{field.path}=" for field in fields_of(Settings) if field.path.startswith(incomplete)]


def complete_version(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the newest versions, newest first, of the model that the words before name."""
    from streamlearn.cli.model.model_options import open_model
    from streamlearn.cli.options import Place

    given = ctx.params
    # An option without its value stops the parser before it knows arguments: they are in `args` then.
    words = [word for word in (*(given.get("words") or ()), *ctx.args) if not word.isdigit() and word[:1] != "-"]
    name = given.get("name") or next(iter(words), None)
    place = Place(given.get("app"), given.get("store"), given.get("registry"), given.get("set_"))
    try:
        known = open_model(name, place).known()
    except (StreamlearnError, OSError):
        return []
    return [
        str(entry.version) for entry in reversed(known[-_VERSIONS_MAX:]) if str(entry.version).startswith(incomplete)
    ]
