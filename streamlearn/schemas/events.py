"""The schemas of an application's events, generated from its declaration.

An impression has a fixed envelope, the user's features once, and a list of the items' features. Fields are in declared
order. A feature with a default, or with several values, may be added to a live application: see schemas/README.md.
"""

from __future__ import annotations

from typing import Any

from streamlearn.apps import App
from streamlearn.features import Dense, Slot
from streamlearn.schemas.schema import Schema, schema_of

__all__ = ["ITEM", "action_schema", "impression_schema", "item_schema", "library_keys", "score_field"]

ITEM = "LibraryItem"
"""The name of records of the topic of items."""
Side = Any


def score_field(label: str) -> str:
    """Return the name of an item's field for the served score of a label."""
    return f"served_score_{label}"


def library_keys(app: App) -> dict[str, Slot]:
    """Return the fields of an item for keys that a node took from the library, and the slot of each.

    The library has no texts: their keys stand beside texts that are empty. Without retrieval there are none.
    """
    slots = () if app.retrieval is None else app.features.of_library[0]
    return {f"served_keys_{slot.name}": slot for slot in slots if slot.value == "str"}


def impression_schema(app: App) -> Schema:
    """Return the schema of one request and its items, with the features they were scored with."""
    doc = "One key per value of {}, if a node took them from the library: then the values are empty."
    longs = {"type": "array", "items": "long"}
    keys = [_field(name, longs, doc.format(slot.name), []) for name, slot in library_keys(app).items()]
    items = [*_features(app, "item"), *keys, *_segments(app, "item"), *_computed(app, "item"), *_scores(app)]
    fields = [
        _field("request_id", "string", "One per request; the record's key is its UTF-8."),
        _field("event_time_ms", "long", "When it was shown, milliseconds since 1970 UTC."),
        _field("shown_wall_ms", "long", "Wall time at which it was shown; differs in a replay."),
        _field(
            "served_version",
            ["null", "long"],
            "The version that scored it; null: a streamlearn node did not score it.",
            None,
        ),
        *_computed(app, "user"),
        *_nested(app, "segments", "Segments", _segments(app, "user")),
        *_nested(app, "user", "User", _features(app, "user")),
        _field("items", {"type": "array", "items": _record(app, "Item", items)}, "The items shown, in order."),
    ]
    return schema_of(_record(app, "Impression", fields, "Items shown for one request."))


def action_schema(app: App) -> Schema:
    """Return the schema of an action on one item of a request."""
    kind = _value_type(app.features.slot(app.features.item_id))
    fields = [
        _field("request_id", "string", "The impression's request_id."),
        _field("event_time_ms", "long", "When it was done, milliseconds since 1970 UTC."),
        _field("item_id", kind, f"The item's {app.features.item_id}."),
        _field("action", "string", f"The action; labels are made of {', '.join(app.actions)}."),
        _field("weight", "float", "The weight in training of the positive that this action makes.", 1.0),
    ]
    if app.has_numbers:
        fields.append(_field("value", ["null", "float"], "The number of this action, such as a rating.", None))
    return schema_of(_record(app, "Action", fields, "An action on one item of a request."))


def item_schema(app: App) -> Schema:
    """Return the schema of an item that is written to the library, or removed from it."""
    kind = _value_type(app.features.slot(app.features.item_id))
    slots, dense = app.features.of_library
    described = [*(field for slot in slots for field in _slot_fields(slot)), *map(_dense_field, dense)]
    fields = [
        _field("item_id", kind, f"The {app.features.item_id}; the record's key is its text as UTF-8."),
        _field("event_time_ms", "long", "Since when this is so, milliseconds since 1970 UTC."),
        _field("features", ["null", _record(app, "ItemFeatures", described)], "Its features; null removes the item."),
    ]
    return schema_of(_record(app, ITEM, fields, "An item of the library, as it is from a time on."))


def _record(app: App, name: str, fields: list[dict[str, Any]], doc: str = "") -> dict[str, Any]:
    # The full name instead of a namespace, so that nested records need none.
    record: dict[str, Any] = {"type": "record", "name": f"streamlearn.{app.events_name}.{name}"}
    return record | ({"doc": doc} if doc else {}) | {"fields": fields}


_REQUIRED = object()


def _field(name: str, kind: Any, doc: str = "", default: Any = _REQUIRED) -> dict[str, Any]:
    field = {"name": name, "type": kind} | ({"doc": doc} if doc else {})
    return field if default is _REQUIRED else field | {"default": default}


def _nested(app: App, path: str, name: str, fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a record-valued field, or nothing without fields; it has a default if all its fields have one."""
    if not fields:
        return []
    defaults = {field["name"]: field["default"] for field in fields if "default" in field}
    whole = defaults if len(defaults) == len(fields) else _REQUIRED
    return [_field(path, _record(app, name, fields), "", whole)]


def _features(app: App, side: Side) -> list[dict[str, Any]]:
    slots = [field for slot in app.features.slots_of(side) for field in _slot_fields(slot)]
    return slots + [_dense_field(column) for column in app.features.dense_of(side)]


def _slot_fields(slot: Slot) -> list[dict[str, Any]]:
    if not slot.multi:
        return [_field(slot.name, _value_type(slot), "", _REQUIRED if slot.default is None else slot.default)]
    fields = [_field(slot.name, {"type": "array", "items": _value_type(slot)}, "", [])]
    if slot.pooling == "weighted":
        doc = f"One weight per value of {slot.name}."
        fields.append(_field(f"{slot.name}_weights", {"type": "array", "items": "float"}, doc, []))
    return fields


def _dense_field(column: Dense) -> dict[str, Any]:
    if column.width == 1:
        return _field(column.name, "float", "", _REQUIRED if column.default is None else column.default)
    whole = _REQUIRED if column.default is None else [column.default] * column.width
    return _field(column.name, {"type": "array", "items": "float"}, f"{column.width} numbers.", whole)


def _segments(app: App, side: Side) -> list[dict[str, Any]]:
    # Items have segments beside their features, so they need a prefix; a request has them in their own record.
    prefix = "segment_" if side == "item" else ""
    return [_field(f"{prefix}{segment.name}", "string", "", "") for segment in app.features.segments_of(side)]


def _computed(app: App, side: Side) -> list[dict[str, Any]]:
    """Return what says how computed columns were computed: nothing for an application without any."""
    if not app.features.entities:
        return []
    known = "The position in the log of interactions of the last one in the computed columns of the {}; -1: of none."
    position = _field("served_position", ["null", "long"], known.format(side), None)
    if side == "item":
        return [position]
    outcome = "known or unknown: whether the user had interactions; unavailable: the store did not answer."
    return [
        _field("served_features", "string", outcome, ""),
        _field("served_at_ms", ["null", "long"], "The time at which columns were computed.", None),
        _field("served_states", ["null", "long"], "Names the application and its computed columns.", None),
        position,
    ]


def _scores(app: App) -> list[dict[str, Any]]:
    return [_field(score_field(label.name), ["null", "float"], "", None) for label in app.labels]


def _value_type(slot: Slot) -> str:
    return "long" if slot.value == "int" else "string"
