"""`streamlearn schema`: the Avro schemas of an application, for producers in any language."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from streamlearn.cli.options import AppArgument, JsonOption, one_of
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.errors import UsageError

__all__ = ["schema"]

NAMES = ("impression", "action", "sample", "control", "progress", "dead_letter", "event_pack")


def schema(
    app: AppArgument,
    name: Annotated[
        str | None, typer.Argument(help=f"Print this schema as JSON: {', '.join(NAMES)}.", callback=one_of(NAMES))
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write all schemas into this folder, as NAME.avsc.")] = None,
    columns: Annotated[bool, typer.Option("--columns", help="List the columns of this schema.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the Avro schemas of APP: their fingerprints, one schema as JSON, or all of them as files."""
    from streamlearn.apps import load_app
    from streamlearn.native import native
    from streamlearn.schemas.app import app_schemas

    if columns and name is None:
        message = "--columns needs the name of a schema"
        raise UsageError(message, help=f"name one of {', '.join(NAMES)}")
    schemas = app_schemas(load_app(app).app)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for each, described in schemas.items():
            (out / f"{each}.avsc").write_text(described.text + "\n")
    if name is not None and not columns:
        sys.stdout.write(schemas[name].text + "\n")
        return
    if name is not None:
        plan = native.AvroPlan(schemas[name].text, schemas[name].text)
        rows = [{"column": column, "dtype": dtype} for column, dtype in plan.columns]
    else:
        rows = [
            {
                "schema": each,
                "fingerprint": f"{described.fingerprint:016x}",
                "first bytes of a record": described.prefix.hex(" "),
            }
            for each, described in schemas.items()
        ]
    print_json(rows) if json else print_table(rows)
