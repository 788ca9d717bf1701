"""The schemas that are the same for every application."""

from __future__ import annotations

from typing import Any

from streamlearn.schemas.schema import Schema, schema_of

__all__ = ["CONTROL", "CONTROL_KINDS", "DEAD_LETTER", "DEAD_LETTER_REASONS", "EVENT_PACK", "INTERACTIONS", "PROGRESS"]

# Reasons for a dead letter. Append new ones; readers of older ones see "other".
DEAD_LETTER_REASONS = (
    "other", "garbage", "unknown_schema", "malformed", "bad_value", "oversize",
    "impossible_time", "late", "orphan", "excess", "gone",
)  # fmt: skip


# Append new kinds; readers of older ones see UNKNOWN, which promises nothing.
CONTROL_KINDS = ("UNKNOWN", "HEARTBEAT", "END")


def _record(name: str, doc: str, *fields: dict[str, Any]) -> Schema:
    return schema_of({"type": "record", "name": name, "namespace": "streamlearn", "doc": doc, "fields": list(fields)})


def _field(name: str, kind: Any, doc: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "doc": doc, **more}


EVENT_PACK = _record(
    "EventPack",
    "Many events of one partition in one record, in the order they were produced.",
    _field("events", {"type": "array", "items": "bytes"}, "Each event with its own framing."),
    _field(
        "items",
        {"type": "array", "items": "int"},
        "How many items each event shows (0 for an action), so that an item keeps its index within the "
        "record whether or not every event before it can be read.",
    ),
)

CONTROL = _record(
    "Control",
    "Advances the watermark of an event topic's partition while it has no events.",
    _field(
        "kind",
        {"type": "enum", "name": "ControlKind", "symbols": list(CONTROL_KINDS), "default": "UNKNOWN"},
        "HEARTBEAT: no event before event_time_ms will follow here. END: nothing will follow here. UNKNOWN: a "
        "kind this reader does not know; ignore it.",
    ),
    _field("event_time_ms", "long", "Event time, milliseconds since 1970 UTC."),
    _field("wall_ms", "long", "Wall time at which it was written."),
    _field("source", "string", "The name of the writer."),
)

PROGRESS = _record(
    "Progress",
    "The progress of one lot: samples acknowledged so far; the record's key is the lot, as decimal text.",
    _field("lot", "int", "The lot."),
    _field("lots_count", "int", "The number of lots, fixed for a job's state."),
    _field("ingest_run", "long", "The ingest run that wrote it."),
    _field(
        "watermark_ms",
        "long",
        "Every sample due before this event time is acknowledged, by this run or an earlier one.",
    ),
    _field(
        "reached_ms",
        "long",
        "Every sample due before this event time is acknowledged by this run; below watermark_ms while it "
        "reads again events of an earlier run.",
        default=0,
    ),
    _field("window_settings", "string", "The id of the label windows of the join."),
    _field("feature_fingerprint", "string", "The fingerprint of the samples."),
    _field("events_topic_id", "string", "The id of the impressions topic."),
    _field("actions_topic_id", "string", "The id of the actions topic."),
    _field("wall_ms", "long", "Wall time at which it was written."),
)

DEAD_LETTER = _record(
    "DeadLetter",
    "A record or event that could not become a sample, with its origin and the reason.",
    _field("topic", "string", "Origin: the topic's name."),
    _field("topic_id", "string", "Origin: the topic's id."),
    _field("partition", "int", "Origin: the partition."),
    _field("offset", "long", "Origin: the record's offset."),
    _field("timestamp_ms", "long", "Origin: the record's timestamp."),
    _field("event_index", "int", "Origin: which event of the record, -1 for the record as a whole."),
    _field(
        "reason",
        {"type": "enum", "name": "Reason", "symbols": list(DEAD_LETTER_REASONS), "default": "other"},
        "The reason.",
    ),
    _field("detail", "string", "Details, for people."),
    _field("length", "long", "The number of its bytes."),
    _field("sha256", "bytes", "The SHA-256 of all its bytes."),
    _field("head", "bytes", "Its first bytes; all of them unless it is oversize."),
    _field("key", ["null", "bytes"], "The record's key."),
    _field("wall_ms", "long", "Wall time at which the dead letter was written."),
)

INTERACTIONS = _record(
    "Interactions",
    "Impressions of items and actions on them, as columns: the little-endian bytes of one array each.",
    _field("side", "string", "user or item: whose key chose the partition, which has all of that user or item."),
    _field("kinds", {"type": "array", "items": "string"}, "The names of kinds: impression, and actions."),
    _field(
        "sources",
        {"type": "array", "items": "string"},
        "The slots whose values are here, each by its first name.",
    ),
    _field("ingest_run", "long", "The ingest run that wrote it."),
    _field("rows", "int", "N, the number of interactions."),
    _field("identity", "bytes", "uint64[N]. The same for the same interaction, which may come more than once."),
    _field("user", "bytes", "uint64[N]. The key of the user; 0 if no slot is known to name one."),
    _field("item", "bytes", "uint64[N]. The key of the item."),
    _field("kind", "bytes", "uint8[N]. The index of its kind."),
    _field("event_time_ms", "bytes", "int64[N]. When it happened, event time."),
    _field("weight", "bytes", "float32[N]. The weight of an action; 1 for an impression."),
    _field("number", "bytes", "float32[N]. The number of an action; NaN without one."),
    _field("values", "bytes", "int64[N, sources]. The value of each source."),
)
