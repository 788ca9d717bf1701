"""Arguments and options that several verbs share, so that they read alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from streamlearn.errors import ConfigError

__all__ = ["AcceptLostOption", "AppArgument", "BeamOption", "JsonOption", "SetOption", "named_values", "one_of"]

AppArgument: TypeAlias = Annotated[
    Path, typer.Argument(metavar="APP", help="The folder of an application, such as examples/kuairand.")
]
SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.NAME=VALUE", help="Lay a setting over app.toml; may be repeated."),
]
AcceptLostOption: TypeAlias = Annotated[
    bool, typer.Option("--accept-lost", help="Begin with what is there, where events that are needed were deleted.")
]
BeamOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--beam", metavar="FLAG", help="A further option of Beam's, such as --beam=--job_name=x."),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]


def named_values(given: Sequence[str] | None) -> dict[str, str]:
    """What `--option NAME=VALUE` says, by name.

    Raises:
        ConfigError: A text is not of that form.
    """
    options: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            message = f"--option {text!r} is not NAME=VALUE"
            raise ConfigError(message, help="for example --option seed=7")
        options[name.strip()] = value.strip()
    return options


def one_of(names: Sequence[str]) -> Callable[[str | None], str | None]:
    """A callback that refuses what is none of some names; enums are refused with a word that is not ours."""

    def check(given: str | None) -> str | None:
        if given is not None and given not in names:
            message = f"{given!r} is not one of {', '.join(names)}."
            raise typer.BadParameter(message)
        return given

    return check
