"""`streamlearn settings`: every setting of an application, with its default and description."""

from __future__ import annotations

import json as json_text
import shutil
import textwrap
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.options import AppArgument, JsonOption, SetOption
from streamlearn.cli.output.table import print_json
from streamlearn.config import without_login

if TYPE_CHECKING:
    from streamlearn.config import Field
    from streamlearn.settings import Settings

__all__ = ["settings"]


def settings(
    app: AppArgument,
    changed: Annotated[
        bool, typer.Option("--changed", help="Show only settings that differ from their default.")
    ] = False,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Show every setting APP runs with; * marks those that differ from their default."""
    from streamlearn.apps import load_app
    from streamlearn.config import fields_of
    from streamlearn.settings import Settings

    values = load_app(app, set_ or ()).settings
    fields = [field for field in fields_of(Settings) if not changed or attrgetter(field.path)(values) != field.default]
    if json:
        print_json({field.path: without_login(attrgetter(field.path)(values)) for field in fields})
        return
    for line in _lines(values, fields):
        typer.echo(line)


def _lines(values: Settings, fields: list[Field]) -> Iterator[str]:
    width = max(40, min(100, shutil.get_terminal_size().columns))
    section = ""
    for field in fields:
        if field.path.partition(".")[0] != section:
            if section:
                yield ""
            section = field.path.partition(".")[0]
            yield f"[{section}]"
        value = attrgetter(field.path)(values)
        differs = value != field.default
        default = f"  (default {_text(field.default)})" if differs else ""
        yield f"{'*' if differs else ' '} {field.path} = {_text(value)}{default}"
        yield from textwrap.wrap(field.description, width, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _text(value: Any) -> str:
    return json_text.dumps(without_login(value), ensure_ascii=False)
