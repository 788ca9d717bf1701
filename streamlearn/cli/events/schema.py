"""`streamlearn schema`: the Avro schemas of an application, for producers in any language."""

from __future__ import annotations

import json as json_text
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlearn.cli.options import AppArgument, JsonOption, one_of
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.errors import UsageError

if TYPE_CHECKING:
    from streamlearn.apps import App

__all__ = ["schema"]

NAMES = ("impression", "action", "item", "sample", "control", "progress", "dead_letter", "event_pack")


def schema(
    app: AppArgument,
    name: Annotated[
        str | None, typer.Argument(help=f"Print this schema as JSON: {', '.join(NAMES)}.", callback=one_of(NAMES))
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write all schemas into this folder, as NAME.avsc.")] = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print one valid event of this schema: impression, action or item.")
    ] = False,
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
    if example and name not in ("impression", "action", "item"):
        message = "--example needs the name of an event's schema"
        raise UsageError(message, help="name impression, action or item")
    declared = load_app(app).app
    schemas = app_schemas(declared)
    if name is not None and name not in schemas:
        message = f"app {declared.name!r} has no items in a topic"
        raise UsageError(message, help="declare retrieval=Retrieval(...) in its app.py")
    if example and name is not None:
        print(json_text.dumps({"kind": name} | _event(declared, schemas[name].json), ensure_ascii=False))
        return
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


def _event(app: App, kind: Any) -> dict[str, Any]:
    """Return a valid event of now."""
    now_ms = time.time_ns() // 1_000_000
    known: dict[str, Any] = {
        "request_id": "q7",
        "event_time_ms": now_ms,
        "shown_wall_ms": now_ms,
        "action": app.actions[0],
    }
    if app.actions[0] in app.number_actions:
        known["value"] = 1.0
    event: dict[str, Any] = _example(app, kind, "")
    return {name: known.get(name, value) for name, value in event.items()}


def _example(app: App, kind: Any, name: str) -> Any:
    """Return a valid value of a field; a field with a default has that value."""
    kind = kind[1] if isinstance(kind, list) else kind
    if isinstance(kind, dict) and kind["type"] == "record":
        return {
            field["name"]: field["default"] if "default" in field else _example(app, field["type"], field["name"])
            for field in kind["fields"]
        }
    if isinstance(kind, dict):
        width = next((column.width for column in app.features.dense if column.name == name), 1)
        return [_example(app, kind["items"], "")] * width
    return {"string": "acme", "long": 42, "float": 0.5}[kind]
