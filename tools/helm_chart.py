"""The files of the Helm chart, written from `streamlearn.manifest` and the settings."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

import streamlearn
from streamlearn.config import fields_of
from streamlearn.manifest.objects import FILES
from streamlearn.manifest.render import helm_parts, helm_text
from streamlearn.manifest.values import POD_FIELDS, Values
from streamlearn.settings import Settings

__all__ = ["CHART", "chart_pages"]

CHART = "packaging/helm/streamlearn"
_NOTE = "# Written by `python -m tools.write_docs`."
_COLUMNS = 100


def chart_pages() -> dict[str, Any]:
    """Return the function that writes each file of the chart, by path."""
    files = {"Chart.yaml": _about, "values.yaml": _values, "values.schema.json": _schema}
    pages: dict[str, Any] = {f"{CHART}/{name}": write for name, write in files.items()}
    pages[f"{CHART}/templates/_parts.tpl"] = partial(helm_parts, FILES)
    return pages | {f"{CHART}/templates/{name}.yaml": partial(helm_text, file) for name, file in FILES.items()}


def _about() -> str:
    facts = {
        "apiVersion": "v2",
        "name": "streamlearn",
        "description": "Online learning for recommendation: shards, trainer, workers, nodes, ingest and console",
        "type": "application",
        "version": streamlearn.__version__,
        "appVersion": streamlearn.__version__,
        # The number of a pod as a label.
        "kubeVersion": ">=1.28.0-0",
    }
    return "\n".join([_NOTE, *(f"{name}: {json.dumps(value)}" for name, value in facts.items())]) + "\n"


def _values() -> str:
    values = msgspec.to_builtins(Values())
    lines = [f"{_NOTE} docs/operating/kubernetes.md explains them.", *_commented(Values, values)]
    return "\n".join(lines) + "\n"


def _commented(kind: type[msgspec.Struct], values: dict[str, Any]) -> Iterator[str]:
    """Yield each value below its description."""
    fields = {field.path: field.description for field in fields_of(kind)}
    about = {
        "tokens": "Tokens in clear text, for a try: without tokens_secret they become a Secret.",
        "roles": " ".join(f"{name}: {fields[f'roles.nodes.{name}']}" for name in values["roles"]["nodes"]),
    }
    for name, value in values.items():
        text = fields.get(name) or about[name]
        yield from textwrap.wrap(text, _COLUMNS, initial_indent="# ", subsequent_indent="# ")
        if isinstance(value, dict) and value and name != "tokens":
            yield f"{name}:"
            yield from (f"  {inner}: {_flow(data)}" for inner, data in value.items())
        else:
            yield f"{name}: {_flow(value)}"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(inner)}" for name, inner in value.items()) + "}"
    return json.dumps(value)


def _schema() -> str:
    """Return the JSON schema of the values: their types and bounds, and those of all settings."""
    schema, settings = _struct(Values), _struct(Settings)
    schema["properties"]["settings"] = settings
    for role in schema["properties"]["roles"]["properties"].values():
        role["properties"]["pod"]["propertyNames"] = {"enum": [*POD_FIELDS]}
    schema["properties"]["global"] = {"type": "object"}  # Helm adds it where the chart is part of another
    return _text({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, "") + "\n"


def _text(schema: dict[str, Any], pad: str) -> str:
    """Return a schema as JSON, with a line for each property."""
    if not schema.get("properties"):
        return json.dumps(schema)
    rest = {name: value for name, value in schema.items() if name != "properties"}
    lines = ",\n".join(f'{pad}  "{name}": {_text(one, pad + "  ")}' for name, one in schema["properties"].items())
    return f'{json.dumps(rest)[:-1]}, "properties": {{\n{lines}\n{pad}}}}}'


def _struct(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the schema of a struct without what no file may set."""
    known = {field.path for field in fields_of(kind)}
    whole = msgspec.json.schema(kind)
    return _resolved(whole["$defs"][kind.__name__], whole["$defs"], known, "")


def _resolved(schema: dict[str, Any], structs: dict[str, Any], known: set[str], path: str) -> dict[str, Any]:
    if "$ref" in schema:
        schema = structs[schema["$ref"].rpartition("/")[2]]
    properties = {
        name: _resolved(inner, structs, known, f"{path}{name}.")
        for name, inner in schema.get("properties", {}).items()
        if f"{path}{name}" in known or any(one.startswith(f"{path}{name}.") for one in known)
    }
    kept = {
        name: value for name, value in schema.items() if name not in ("default", "title", "description", "required")
    }
    if "items" in kept:  # elements of a list are whole structs
        kept["items"] = _inlined(kept["items"], structs)
    return kept | ({"properties": properties} if "properties" in schema else {})


def _inlined(schema: Any, structs: dict[str, Any]) -> Any:
    """Return a schema with all that it refers to."""
    if isinstance(schema, list):
        return [_inlined(one, structs) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(structs[schema["$ref"].rpartition("/")[2]], structs)
    return {name: _inlined(one, structs) for name, one in schema.items() if name not in ("title", "description")}
