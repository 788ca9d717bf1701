"""Arguments and options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from streamlearn.cli.completion import complete_setting
from streamlearn.errors import ConfigError

__all__ = [
    "AcceptLostOption", "AppArgument", "BeamOption", "HistoryOption", "JsonOption", "RegistryOption", "SetOption",
    "StoreOption", "named_values", "one_of",
]  # fmt: skip

AppArgument: TypeAlias = Annotated[
    Path, typer.Argument(metavar="APP", help="The folder of an application, such as examples/kuairand.")
]
SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.NAME=VALUE",
        help="Override a setting of app.toml; may be repeated.",
        autocompletion=complete_setting,
    ),
]
AcceptLostOption: TypeAlias = Annotated[
    bool, typer.Option("--accept-lost", help="Continue with the remaining records if needed ones were deleted.")
]
BeamOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="FLAG", help="Pass an option on to Beam, such as --beam=--job_name=x; may be repeated."),
]
HistoryOption: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="Pass an option to the history; may be repeated.")
]
StoreOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="URL", help="URL of the store; overrides STREAMLEARN_STORE.")
]
RegistryOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="URL", help="URL of the registry, or `none`; overrides STREAMLEARN_REGISTRY.")
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]


def named_values(texts: Sequence[str] | None) -> dict[str, str]:
    """Parse the values of `--option NAME=VALUE`; raises ConfigError if a text does not have that form."""
    options: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            message = f"--option {text!r} is not NAME=VALUE"
            raise ConfigError(message, help="for example --option seed=7")
        options[name.strip()] = value.strip()
    return options


def one_of(names: Sequence[str]) -> Callable[[str | None], str | None]:
    """Return a callback that accepts only these values. Typer's own message for enums uses other words."""

    def check(value: str | None) -> str | None:
        if value is not None and value not in names:
            message = f"{value!r} is not one of {', '.join(names)}."
            raise typer.BadParameter(message)
        return value

    return check
