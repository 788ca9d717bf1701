"""Checks of objects against the OpenAPI schemas of Kubernetes: names and types of all fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Schemas"]

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "boolean": bool, "number": (int, float), "array": list, "object": dict,
}  # fmt: skip
_FORMATS = {"int32": range(-(1 << 31), 1 << 31), "int64": range(-(1 << 63), 1 << 63)}
_QUANTITY = re.compile(r"[+-]?[0-9.]+(m|[kMGTPE]|[KMGTPE]i|e[+-]?[0-9]+)?")


class Schemas:
    """The schemas in a folder of Kubernetes' files."""

    def __init__(self, folder: Path) -> None:
        self._schemas: dict[str, Any] = {}
        for file in folder.glob("*.json"):
            self._schemas |= json.loads(file.read_text())["components"]["schemas"]
        self._kinds = {
            (kind["group"], kind["version"], kind["kind"]): schema
            for schema in self._schemas.values()
            for kind in schema.get("x-kubernetes-group-version-kind", ())
        }

    def problems(self, document: dict[str, Any]) -> list[str]:
        """What of an object the schema of its kind does not allow."""
        group, _, version = document["apiVersion"].rpartition("/")
        schema = self._kinds.get((group, version, document["kind"]))
        if schema is None:
            return [f"there is no {document['kind']} in {document['apiVersion']}"]
        return list(self._check(schema, document, document["kind"]))

    def _check(self, schema: dict[str, Any], value: Any, path: str) -> Iterator[str]:
        schema, name = self._resolved(schema)
        if name.endswith(".Quantity"):
            if not _QUANTITY.fullmatch(str(value)):
                yield f"{path} is {value!r}, not a quantity"
            return
        if name.endswith(".IntOrString") or schema.get("format") == "int-or-string":
            if not isinstance(value, int | str) or isinstance(value, bool):
                yield f"{path} is {value!r}, neither a number nor a text"
            return
        kind = schema.get("type")
        if kind and (not isinstance(value, _TYPES[kind]) or (kind != "boolean" and isinstance(value, bool))):
            yield f"{path} is {value!r}, not of type {kind}"
            return
        if "enum" in schema and value not in schema["enum"]:
            yield f"{path} is {value!r}, not one of {schema['enum']}"
        if kind == "integer" and value not in _FORMATS.get(schema.get("format", ""), _FORMATS["int64"]):
            yield f"{path} is {value}, beyond {schema['format']}"
        if kind == "array":
            for at, item in enumerate(value):
                yield from self._check(schema["items"], item, f"{path}[{at}]")
        if kind == "object":
            yield from self._fields(schema, value, path)

    def _fields(self, schema: dict[str, Any], value: dict[str, Any], path: str) -> Iterator[str]:
        yield from (f"{path}.{name} is missing" for name in schema.get("required", ()) if name not in value)
        others = schema.get("additionalProperties")
        for name, inner in value.items():
            known = schema.get("properties", {}).get(name, others)
            if known is None:
                yield f"{path}.{name} is not a field"
            else:
                yield from self._check(known, inner, f"{path}.{name}")

    def _resolved(self, schema: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """A schema, and its name if it stands elsewhere."""
        reference = schema.get("$ref") or (schema["allOf"][0]["$ref"] if "allOf" in schema else "")
        return (self._schemas[reference.rpartition("/")[2]], reference) if reference else (schema, "")
