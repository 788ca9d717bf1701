"""`streamlearn demo`: the whole loop on a history. Its code is in the source tree, in `tools/demo`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from streamlearn.cli.options import JsonOption, SetOption
from streamlearn.errors import UsageError

__all__ = ["demo"]

_SECONDS = 120.0
_KUAIRAND = Path("examples/kuairand")


def demo(
    app: Annotated[
        Path, typer.Argument(metavar="[APP]", help="Folder of an application that has a history.py.", show_default=True)
    ] = _KUAIRAND,
    seconds: Annotated[
        float, typer.Option(metavar="N", min=30, max=86_400, help="How long the replay of the history takes.")
    ] = _SECONDS,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the report; APP/.streamlearn/demo by default.")
    ] = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Run the whole loop on a history: score, join, learn, publish and serve; then poison it and roll back."""
    try:
        run = importlib.import_module("tools.demo.run")
    except ModuleNotFoundError as error:
        if error.name not in ("tools", "tools.demo"):
            raise
        message = "the demo is not installed: it runs only from the source tree of streamlearn"
        raise UsageError(message, help="clone streamlearn and run `make demo` there") from error
    run.run_demo(app, seconds, out or app / ".streamlearn" / "demo", set_ or (), json=json)
