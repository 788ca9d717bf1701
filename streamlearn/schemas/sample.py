"""The schema of an application's samples: one record is one columnar `SampleBatch`.

Every column is the little-endian bytes of one array, so reading it needs a view instead of a loop.
"""

from __future__ import annotations

from typing import Any

from streamlearn.apps import App
from streamlearn.features import Dense, Slot
from streamlearn.schemas.schema import Schema, schema_of

__all__ = ["sample_schema"]

_NOT_SCORED = "a streamlearn node did not score it"


def sample_schema(app: App, namespace: str = "streamlearn") -> Schema:
    """Return the schema of the application's SampleBatch.

    Older messages have the namespace `streamlearn.APP`; their bytes after the prefix are the same.
    """
    header = [
        ("feature_fingerprint", "string", "The fingerprint of the samples' features and labels."),
        ("window_settings", "string", "The id of the label windows of the join."),
        ("events_topic_id", "string", "Identity: the id of the impressions topic."),
        ("lot", "int", "The lot of the join."),
        ("lots_count", "int", "The number of lots."),
        ("ingest_run", "long", "The ingest run that joined it."),
        ("watermark_ms", "long", "Ingest's watermark, in event time, when the message was written."),
        ("requests", "int", "U, the number of requests; user columns have one value for each."),
        ("rows", "int", "N, the number of rows."),
    ]
    fields = [
        *({"name": name, "type": kind, "doc": doc} for name, kind, doc in header),
        _bytes("partition", "int32[U]. Identity: the impression's partition."),
        _bytes("offset", "int64[U]. Identity: the offset of the impression's record."),
        _bytes("event_time_ms", "int64[U]. When it was shown, event time."),
        _bytes("shown_wall_ms", "int64[U]. When it was shown, wall time."),
        _bytes("served_version", f"int64[U]. The version that scored it; -1: {_NOT_SCORED}."),
        _nested(namespace, "user", _features(app, "user")),
        _bytes("request_index", "int32[N]. The request of each row."),
        _bytes("item_index", "int32[N]. Identity: the item's index within the impression's record."),
        _bytes("settle_time_ms", "int64[N]. Event time at which the row was settled."),
        _nested(namespace, "item", _features(app, "item")),
        *_item_ids(app),
        {"name": "labels", "type": {"type": "array", "items": _label_columns(app, namespace)}},
        {"name": "segments", "type": {"type": "array", "items": _segment_columns(namespace)}, "default": []},
    ]
    doc = "Rows of requests and items that each settle one or more labels."
    return schema_of({"type": "record", "name": f"{namespace}.SampleBatch", "doc": doc, "fields": fields})


def _bytes(name: str, doc: str) -> dict[str, Any]:
    return {"name": name, "type": "bytes", "doc": doc}


def _item_ids(app: App) -> list[dict[str, Any]]:
    if app.retrieval is None:
        return []
    if app.features.slot(app.features.item_id).value == "int":
        return [_bytes("item_ids", "int64[N]. The item ids.")]
    offsets = _bytes("item_ids_offsets", "int32[N+1]. The offset at which each id begins.")
    return [_bytes("item_ids", "The item ids, UTF-8, one after another."), offsets]


def _label_columns(app: App, namespace: str) -> dict[str, Any]:
    fields = [
        {"name": "name", "type": "string", "doc": "The label."},
        _bytes("value", "uint8[N]. 1 positive, 0 negative; 0 where not settled."),
        _bytes("settles", "uint8[N]. 1 where this row settles the label."),
        _bytes("sample_rate", "float32[N]. The share of negatives kept; set for positives too."),
        _bytes("weight", "float32[N]. The weight of the row in training."),
        _bytes("served_score", f"float32[N]. The score that serving answered; NaN: {_NOT_SCORED}."),
    ]
    if app.has_numbers:
        fields.append(_bytes("number", "float32[N]. The value of the action; 0 without one."))
    return {"type": "record", "name": f"{namespace}.LabelColumns", "fields": fields}


def _segment_columns(namespace: str) -> dict[str, Any]:
    fields = [
        {"name": "name", "type": "string", "doc": "The segment."},
        {"name": "texts", "type": {"type": "array", "items": "string"}, "doc": "Its distinct texts."},
        _bytes("codes", "int32[N]. The index of each row's text."),
    ]
    return {"type": "record", "name": f"{namespace}.SegmentColumns", "fields": fields}


def _nested(namespace: str, side: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    record = {"type": "record", "name": f"{namespace}.Sample{side.capitalize()}", "fields": fields}
    return {"name": side, "type": record}


def _features(app: App, side: Any) -> list[dict[str, Any]]:
    rows = "U" if side == "user" else "N"
    slots = [column for slot in app.features.slots_of(side) for column in _slot_columns(slot, rows)]
    return slots + [_dense_column(column, rows) for column in app.features.dense_of(side)]


def _slot_columns(slot: Slot, rows: str) -> list[dict[str, Any]]:
    if not slot.multi:
        return [_bytes(slot.name, f"uint64[{rows}]. Keys.")]
    columns = [
        _bytes(slot.name, "uint64[M]. Keys of all rows, one after another."),
        _bytes(f"{slot.name}_offsets", f"int32[{rows}+1]. The offset at which each row's keys begin."),
    ]
    if slot.pooling == "weighted":
        columns.append(_bytes(f"{slot.name}_weights", "float32[M]. One weight for each key."))
    return columns


def _dense_column(column: Dense, rows: str) -> dict[str, Any]:
    return _bytes(column.name, f"float32[{rows}, {column.width}].")
