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
    typer.Option("--set", metavar="SECTION.NAME=VALUE", help="Override a setting of app.toml; may be repeated."),
]
AcceptLostOption: TypeAlias = Annotated[
    bool, typer.Option("--accept-lost", help="Continue with the remaining records if needed ones were deleted.")
]
BeamOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--beam", metavar="FLAG", help="Pass an option on to Beam, such as --beam=--job_name=x; may be repeated."
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]


def named_values(given: Sequence[str] | None) -> dict[str, str]:
    """The values of `--option NAME=VALUE`, by name.

    Raises:
        ConfigError: A text does not have that form.
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
    """A callback that refuses a value that is not one of some names. Typer's own text for enums uses other words."""

    def check(given: str | None) -> str | None:
        if given is not None and given not in names:
            message = f"{given!r} is not one of {', '.join(names)}."
            raise typer.BadParameter(message)
        return given

    return check
