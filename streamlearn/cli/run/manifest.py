"""`streamlearn manifest`: prints the Kubernetes objects of an application, for those without Helm."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from streamlearn.cli.options import AppArgument, SetOption
from streamlearn.errors import UsageError

__all__ = ["manifest"]

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def manifest(
    app: AppArgument,
    values: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Values in TOML, by the names of the Helm chart.")
    ] = None,
    value: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Override a value of the chart; may be repeated.")
    ] = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Beginning of all names.", show_default="the application's name")
    ] = "",
    in_image: Annotated[
        bool, typer.Option("--in-image", help="The image has the application in /srv/app; print none of its files.")
    ] = False,
    set_: SetOption = None,
) -> None:
    """Print the Kubernetes objects that run APP, as `kubectl apply -f -` takes them, without Helm.

    They are those of the Helm chart, for the settings and the files of APP.
    """
    from streamlearn.apps import load_app
    from streamlearn.manifest.objects import FILES
    from streamlearn.manifest.render import render
    from streamlearn.manifest.values import values_of

    folder = load_app(app, set_ or ())
    name = name or folder.app.name.replace("_", "-")
    if not _NAME.fullmatch(name):
        message = f"{name!r} cannot begin the names of objects"
        raise UsageError(message, help="give --name: lower-case letters, digits and -, a letter first")
    if folder.settings.topics.time == "event":
        text = 'topics.time is "event", which is for replays: quiet topics decide no labels, new ones keep all events'
        typer.echo(f"warning: {text}\nhelp: remove it from app.toml for live traffic", err=True)
    chosen = values_of(folder, values, value or (), set_ or (), in_image=in_image)
    for objects in render(FILES, chosen, name).values():
        for document in objects:
            if "helm.sh/hook" in document["metadata"].get("annotations", {}):
                continue  # the test of `helm test`
            # JSON is YAML, too.
            typer.echo(f"---\n{json.dumps(document, indent=2)}")
