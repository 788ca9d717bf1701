"""All schemas of an application, by the names of their files."""

from __future__ import annotations

from streamlearn.apps import App
from streamlearn.schemas.events import action_schema, impression_schema, item_schema
from streamlearn.schemas.fixed_schemas import CONTROL, DEAD_LETTER, EVENT_PACK, INTERACTIONS, PROGRESS
from streamlearn.schemas.sample import sample_schema
from streamlearn.schemas.schema import Schema

__all__ = ["app_schemas"]


def app_schemas(app: App) -> dict[str, Schema]:
    """Return the application's own schemas, then those that are the same for every application."""
    return {
        "impression": impression_schema(app),
        "action": action_schema(app),
        "sample": sample_schema(app),
        **({} if app.retrieval is None else {"item": item_schema(app)}),
        "control": CONTROL,
        "event_pack": EVENT_PACK,
        "progress": PROGRESS,
        "dead_letter": DEAD_LETTER,
        "interactions": INTERACTIONS,
    }
