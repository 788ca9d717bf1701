"""Interactions of a join's output, with the values of slots that columns are computed from."""

from __future__ import annotations

import numpy as np

from streamlearn.apps import App
from streamlearn.features.behaviour import IMPRESSION
from streamlearn.ingest.join.columns import IMPRESSION_KIND, JoinedInteractions
from streamlearn.ingest.output.impression_features import ImpressionFeatures, Places
from streamlearn.interactions import InteractionBatch

__all__ = ["interactions_of"]


def interactions_of(
    app: App, run: int, shown: ImpressionFeatures, made: JoinedInteractions, places: Places
) -> InteractionBatch:
    """Return interactions of an application, whose impressions are all there, as those of users."""
    spec = app.features
    named = {slot.first_name: slot for slot in spec.slots}
    sources = tuple(dict.fromkeys(source for entity in spec.entities for source in entity.sources))
    values = np.empty((len(made), len(sources)), np.int64)
    for place, source in enumerate(sources):
        slot = named[source]
        of_user = slot.side == "user"
        column = shown.columns[f"{'user' if of_user else 'items'}.{slot.name}"]
        values[:, place] = column[places.request if of_user else places.item]
    user = spec.user_slot
    return InteractionBatch(
        side="user",
        kinds=(*app.actions, IMPRESSION),
        sources=sources,
        ingest_run=run,
        identity=made.identity,
        user=shown.user.slots[user].keys[places.request] if user else np.zeros(len(made), np.uint64),
        item=made.item,
        # Codes number the actions in their order.
        kind=np.where(made.kind == IMPRESSION_KIND, len(app.actions), made.kind).astype(np.uint8),
        event_time_ms=made.event_time_ms,
        weight=made.weight,
        number=made.number,
        values=values,
    )
