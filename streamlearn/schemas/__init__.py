"""Avro schemas of everything that crosses a topic, and the framing that says which schema wrote a record."""

from streamlearn.schemas.app import app_schemas
from streamlearn.schemas.events import action_schema, impression_schema
from streamlearn.schemas.fixed import CONTROL, DEAD_LETTER, EVENT_PACK, PROGRESS
from streamlearn.schemas.framing import Framing, read_framing
from streamlearn.schemas.sample import sample_schema
from streamlearn.schemas.schema import Schema, schema_of

__all__ = [
    "CONTROL",
    "DEAD_LETTER",
    "EVENT_PACK",
    "PROGRESS",
    "Framing",
    "Schema",
    "action_schema",
    "app_schemas",
    "impression_schema",
    "read_framing",
    "sample_schema",
    "schema_of",
]
