"""Renamed fields: an older schema of impressions or of items, with the names that its features have today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamlearn.schemas.events import ITEM
from streamlearn.schemas.schema import Schema, schema_of

__all__ = ["with_renamed_fields"]

_NAMES = ("{}", "{}_weights", "served_keys_{}")


def with_renamed_fields(schema: Schema, renamed: Mapping[str, str]) -> Schema:
    """Return a schema whose features have their new names; `renamed` has these by the former ones.

    The records have the same bytes. A record that has the new name already keeps its fields.
    """
    names = {form.format(old): form.format(new) for old, new in renamed.items() for form in _NAMES}
    has_features = schema.name in ("Impression", ITEM)
    return schema_of(_renamed(schema.json, names)) if names and has_features else schema


def _renamed(declared: Any, names: Mapping[str, str]) -> Any:
    """Rename the fields of the records of a user and of an item."""
    fields = []
    for field in declared["fields"]:
        kind = field["type"]
        if field["name"] == "user" and isinstance(kind, dict):
            field = field | {"type": _named(kind, names)}
        elif field["name"] == "items" and isinstance(kind, dict) and isinstance(kind.get("items"), dict):
            field = field | {"type": kind | {"items": _named(kind["items"], names)}}
        elif field["name"] == "features" and isinstance(kind, list):
            field = field | {"type": [_named(part, names) if isinstance(part, dict) else part for part in kind]}
        fields.append(field)
    return declared | {"fields": fields}


def _named(record: Any, names: Mapping[str, str]) -> Any:
    present = {field["name"] for field in record["fields"]}
    fields = [
        field | {"name": names[field["name"]]}
        if field["name"] in names and names[field["name"]] not in present
        else field
        for field in record["fields"]
    ]
    return record | {"fields": fields}
