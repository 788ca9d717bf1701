"""The schemas that are the same for every application."""

from __future__ import annotations

from typing import Any

from streamlearn.schemas.schema import Schema, schema_of

__all__ = ["CONTROL", "CONTROL_KINDS", "DEAD_LETTER", "DEAD_LETTER_REASONS", "EVENT_PACK", "PROGRESS"]

NAMESPACE = "streamlearn"

# Why a record or an event was set aside. New reasons are appended; readers of older ones see "other".
DEAD_LETTER_REASONS = (
    "other",
    "garbage",
    "unknown_schema",
    "malformed",
    "bad_value",
    "oversize",
    "impossible_time",
    "late",
    "orphan",
    "excess",
    "gone",
)


# New kinds are appended; readers of older ones see UNKNOWN, which promises nothing.
CONTROL_KINDS = ("UNKNOWN", "HEARTBEAT", "END")


def _record(name: str, doc: str, *fields: dict[str, Any]) -> Schema:
    return schema_of({"type": "record", "name": name, "namespace": NAMESPACE, "doc": doc, "fields": list(fields)})


def _field(name: str, kind: Any, doc: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "doc": doc}


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
    "Moves the clock of an event topic's partition where no event does.",
    _field(
        "kind",
        {"type": "enum", "name": "ControlKind", "symbols": list(CONTROL_KINDS), "default": "UNKNOWN"},
        "HEARTBEAT: no event before event_time_ms will follow here. END: nothing will follow here. "
        "UNKNOWN: a kind this reader does not know, to be ignored.",
    ),
    _field("event_time_ms", "long", "Event time, milliseconds since 1970 UTC."),
    _field("wall_ms", "long", "Wall time at which it was written."),
    _field("source", "string", "Who wrote it."),
)

PROGRESS = _record(
    "Progress",
    "How far one lot's samples are acknowledged; the record's key is the lot, as decimal text.",
    _field("lot", "int", "The lot."),
    _field("lots_count", "int", "How many lots there are, fixed for a job's state."),
    _field("ingest_run", "long", "The ingest run that wrote it."),
    _field("watermark_ms", "long", "Every sample due before this event time is acknowledged, by whichever run."),
    {
        "name": "reached_ms",
        "type": "long",
        "doc": "What this run alone has acknowledged: below watermark_ms while it reads again what one before it did.",
        "default": 0,
    },
    _field("window_settings", "string", "The id of the label windows it was joined with."),
    _field("feature_fingerprint", "string", "The fingerprint of the features it was joined with."),
    _field("events_topic_id", "string", "The id of the impressions topic it was read from."),
    _field("actions_topic_id", "string", "The id of the actions topic it was read from."),
    _field("wall_ms", "long", "Wall time at which it was written."),
)

DEAD_LETTER = _record(
    "DeadLetter",
    "A record or event that could not become a sample, with where it came from and why.",
    _field("topic", "string", "Origin: the topic's name."),
    _field("topic_id", "string", "Origin: the topic's id."),
    _field("partition", "int", "Origin: the partition."),
    _field("offset", "long", "Origin: the record's offset."),
    _field("timestamp_ms", "long", "Origin: the record's timestamp."),
    _field("event_index", "int", "Origin: which event of the record, -1 for the record as a whole."),
    _field(
        "reason",
        {"type": "enum", "name": "Reason", "symbols": list(DEAD_LETTER_REASONS), "default": "other"},
        "Why it was set aside.",
    ),
    _field("detail", "string", "What exactly was found, for people."),
    _field("length", "long", "How many bytes it has."),
    _field("sha256", "bytes", "The SHA-256 of all its bytes."),
    _field("head", "bytes", "Its first bytes; all of them unless it is oversize."),
    _field("key", ["null", "bytes"], "The record's key."),
    _field("wall_ms", "long", "Wall time at which it was set aside."),
)
