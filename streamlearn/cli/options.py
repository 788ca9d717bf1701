"""Arguments and options that several verbs share, so that they read alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

__all__ = ["AppArgument", "JsonOption", "SetOption"]

AppArgument: TypeAlias = Annotated[
    Path, typer.Argument(metavar="APP", help="The folder of an application, such as examples/kuairand.")
]
SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.NAME=VALUE", help="Lay a setting over app.toml; may be repeated."),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
