"""`streamlearn settings`: every setting an application runs with, where it differs from its default, and why."""

from __future__ import annotations

from operator import attrgetter

from streamlearn.cli.options import AppArgument, JsonOption, SetOption
from streamlearn.cli.table import print_json, print_table

__all__ = ["settings"]


def settings(app: AppArgument, set_: SetOption = None, json: JsonOption = False) -> None:
    """Show every setting APP runs with."""
    from streamlearn.apps import load_app
    from streamlearn.config import fields_of
    from streamlearn.settings import Settings

    folder = load_app(app, set_ or ())
    rows = [
        {
            "setting": field.path,
            "value": attrgetter(field.path)(folder.settings),
            "default": field.default,
            "what it is": field.description,
        }
        for field in fields_of(Settings)
    ]
    if json:
        print_json({row["setting"]: row["value"] for row in rows})
        return
    for row in rows:
        row["value"], row["default"] = repr(row["value"]), repr(row["default"])
    print_table(rows)
