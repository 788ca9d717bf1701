"""Avro schemas of all records in topics, and the framing that identifies a record's schema."""

from streamlearn.schemas.events import action_schema, impression_schema
from streamlearn.schemas.fixed_schemas import CONTROL, DEAD_LETTER, EVENT_PACK, PROGRESS
from streamlearn.schemas.schema import Schema, schema_of

__all__ = [
    "CONTROL",
    "DEAD_LETTER",
    "EVENT_PACK",
    "PROGRESS",
    "Schema",
    "action_schema",
    "impression_schema",
    "schema_of",
]
