"""Arguments and options that several verbs share, so that they read alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

__all__ = ["AcceptLostOption", "AppArgument", "BeamOption", "JsonOption", "SetOption", "one_of"]

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


def one_of(names: Sequence[str]) -> Callable[[str | None], str | None]:
    """A callback that refuses what is none of some names; enums are refused with a word that is not ours."""

    def check(given: str | None) -> str | None:
        if given is not None and given not in names:
            message = f"{given!r} is not one of {', '.join(names)}."
            raise typer.BadParameter(message)
        return given

    return check
