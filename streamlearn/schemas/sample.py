"""The schema of an application's samples: one record is one columnar `SampleBatch`.

Every column is the little-endian bytes of one array, so that reading it is a view and not a loop.
"""

from __future__ import annotations

from typing import Any

from streamlearn.apps import App
from streamlearn.features import Dense, Slot
from streamlearn.schemas.schema import Schema, schema_of

__all__ = ["sample_schema"]


def sample_schema(app: App) -> Schema:
    """The schema of the application's SampleBatch."""
    text = [
        ("feature_fingerprint", "The fingerprint of the features packed here."),
        ("window_settings", "The id of the label windows the rows were joined with."),
        ("events_topic_id", "Identity: the id of the impressions topic."),
    ]
    numbers = [
        ("lot", "int", "The lot it was joined in."),
        ("lots_count", "int", "How many lots there are."),
        ("ingest_run", "long", "The ingest run that joined it."),
        ("watermark_ms", "long", "Ingest's watermark, event time, when it was written."),
        ("requests", "int", "U, the requests whose user columns are here."),
        ("rows", "int", "N, the rows."),
    ]
    fields = [
        *({"name": name, "type": "string", "doc": doc} for name, doc in text),
        *({"name": name, "type": kind, "doc": doc} for name, kind, doc in numbers),
        *_request_columns(),
        _nested(app, "user", "User", _features(app, "user")),
        *_row_columns(),
        _nested(app, "item", "Item", _features(app, "item")),
        {"name": "labels", "type": {"type": "array", "items": _label_columns(app)}},
        {"name": "segments", "type": {"type": "array", "items": _segment_columns(app)}, "default": []},
    ]
    doc = "Rows of requests and items with some of their labels settled."
    name = f"streamlearn.{app.name}.SampleBatch"
    return schema_of({"type": "record", "name": name, "doc": doc, "fields": fields})


def _bytes(name: str, doc: str) -> dict[str, Any]:
    return {"name": name, "type": "bytes", "doc": doc}


def _request_columns() -> list[dict[str, Any]]:
    return [
        _bytes("partition", "int32[U]. Identity: the impression's partition."),
        _bytes("offset", "int64[U]. Identity: the offset of the impression's record."),
        _bytes("event_time_ms", "int64[U]. When it was shown, event time."),
        _bytes("shown_wall_ms", "int64[U]. When it was shown, wall time."),
        _bytes("served_version", "int64[U]. The version that scored it; -1: not scored by us."),
    ]


def _row_columns() -> list[dict[str, Any]]:
    return [
        _bytes("request_index", "int32[N]. The request of each row."),
        _bytes("item_index", "int32[N]. Identity: the item's index within the impression's record."),
        _bytes("settle_time_ms", "int64[N]. Event time at which the row was settled."),
    ]


def _label_columns(app: App) -> dict[str, Any]:
    fields = [
        {"name": "name", "type": "string", "doc": "The label."},
        _bytes("value", "uint8[N]. 1 positive, 0 negative; 0 where not settled."),
        _bytes("settles", "uint8[N]. 1 where this row settles the label."),
        _bytes("sample_rate", "float32[N]. The share of negatives kept; on positives too."),
        _bytes("weight", "float32[N]. How much the row weighs."),
        _bytes("served_score", "float32[N]. What serving answered; NaN: not scored by us."),
    ]
    return {"type": "record", "name": f"streamlearn.{app.name}.LabelColumns", "fields": fields}


def _segment_columns(app: App) -> dict[str, Any]:
    fields = [
        {"name": "name", "type": "string", "doc": "The segment."},
        {"name": "texts", "type": {"type": "array", "items": "string"}, "doc": "Its distinct texts."},
        _bytes("codes", "int32[N]. Which text each row has."),
    ]
    return {"type": "record", "name": f"streamlearn.{app.name}.SegmentColumns", "fields": fields}


def _nested(app: App, field: str, name: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    record = {"type": "record", "name": f"streamlearn.{app.name}.Sample{name}", "fields": fields}
    return {"name": field, "type": record}


def _features(app: App, side: Any) -> list[dict[str, Any]]:
    rows = "U" if side == "user" else "N"
    fields: list[dict[str, Any]] = []
    for slot in app.features.slots_of(side):
        fields.extend(_slot_columns(slot, rows))
    fields.extend(_dense_column(column, rows) for column in app.features.dense_of(side))
    return fields


def _slot_columns(slot: Slot, rows: str) -> list[dict[str, Any]]:
    if not slot.multi:
        return [_bytes(slot.name, f"uint64[{rows}]. Keys.")]
    columns = [
        _bytes(slot.name, "uint64[M]. Keys of all rows, one after another."),
        _bytes(f"{slot.name}_offsets", f"int32[{rows}+1]. Where each row's keys begin."),
    ]
    if slot.pooling == "weighted":
        columns.append(_bytes(f"{slot.name}_weights", "float32[M]. A weight per key."))
    return columns


def _dense_column(column: Dense, rows: str) -> dict[str, Any]:
    return _bytes(column.name, f"float32[{rows}, {column.width}].")
