"""Speed of the generator: events per second, generated and encoded to framed records, on one core."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from streamlearn.events import EventEncoder
from streamlearn.settings import EventSettings

from .app import app
from .history import history

__all__ = ["generator_events_per_s"]


def generator_events_per_s(options: Mapping[str, str] | None = None, *, span_ms: int = 10_000) -> dict[str, float]:
    """Generate a history in blocks of `span_ms`, encode every event, and measure the speed.

    Returns:
        events, seconds, events_per_s, generated_events_per_s (without encoding) and impression_bytes, the mean size of
        an impression.
    """
    encoder = EventEncoder(app, EventSettings())
    begun_s = time.perf_counter()
    events = impressions = impressions_bytes = 0
    encoding_s = 0.0
    for block in history(options or {}).blocks(span_ms):
        before_s = time.perf_counter()
        rows = block.impressions_rows
        if rows:
            shown = np.full(rows, block.until_ms, np.int64)
            encoded = encoder.impressions({**block.impressions, "shown_wall_ms": shown}, rows)
            impressions_bytes += len(encoded.buffer)
        if block.actions_rows:
            encoder.actions(block.actions, block.actions_rows)
        encoding_s += time.perf_counter() - before_s
        impressions += rows
        events += rows + block.actions_rows
    seconds = time.perf_counter() - begun_s
    return {
        "events": events,
        "seconds": seconds,
        "events_per_s": events / seconds,
        "generated_events_per_s": events / (seconds - encoding_s),
        "impression_bytes": impressions_bytes / max(1, impressions),
    }
