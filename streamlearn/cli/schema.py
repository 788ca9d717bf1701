"""`streamlearn schema`: the Avro schemas of an application, for producers in any language."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from streamlearn.cli.options import AppArgument, JsonOption
from streamlearn.cli.table import print_json, print_table

__all__ = ["schema"]


class SchemaName(StrEnum):
    """Which schema."""

    IMPRESSION = "impression"
    ACTION = "action"
    SAMPLE = "sample"
    CONTROL = "control"
    PROGRESS = "progress"
    DEAD_LETTER = "dead_letter"
    EVENT_PACK = "event_pack"


def schema(
    app: AppArgument,
    name: Annotated[SchemaName | None, typer.Argument(help="Print this one schema as JSON.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write all of them into this folder, as NAME.avsc.")] = None,
    columns: Annotated[bool, typer.Option("--columns", help="List the columns of one schema.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the Avro schemas of APP: their fingerprints, one whole, or all of them as files."""
    from streamlearn.apps import load_app
    from streamlearn.native import native
    from streamlearn.schemas import app_schemas

    found = app_schemas(load_app(app).app)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for one, written in found.items():
            (out / f"{one}.avsc").write_text(written.text + "\n")
    if name is not None and columns:
        plan = native.AvroPlan(found[name].text, found[name].text)
        print_table([{"column": column, "dtype": dtype} for column, dtype in plan.columns])
        return
    if name is not None:
        sys.stdout.write(found[name].text + "\n")
        return
    rows = [
        {
            "schema": one,
            "fingerprint": f"{written.fingerprint:016x}",
            "first bytes of a record": written.prefix.hex(" "),
        }
        for one, written in found.items()
    ]
    print_json(rows) if json else print_table(rows)
