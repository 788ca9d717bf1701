"""Events for the benchmark of ingest, generated, encoded and written before the measurement."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np

from streamlearn.apps import AppFolder, app_module
from streamlearn.apps.folder import TOPICS
from streamlearn.events import EventEncoder
from streamlearn.events.encoder import EncodedEvents
from streamlearn.events.record_packer import Packed, pack_columns
from streamlearn.replay import History, HistoryBlock
from streamlearn.topics import Writer, create_topic

__all__ = ["ACTIONS_SHARE", "ITEMS", "EventCounts", "click_rate", "create_topics", "history_of", "write_events"]

ROOT = Path(__file__).parents[2]
SPAN_MS = 60_000
ITEMS, ACTIONS_SHARE = 1.4, 0.05
"""Items per request of the synthetic traffic, on average, and the wanted actions per impression."""
# Actions per click: the click, and a long view after some.
_ACTIONS_A_CLICK = 1.4


@dataclass(frozen=True)
class EventCounts:
    """The counts of written events.

    Attributes:
        impressions: Number of impressions.
        actions: Number of actions.
        items: Number of shown items, which is also the number of first rows.
        impressions_bytes: Bytes of the impressions' events, with framing.
        seconds: Duration.
    """

    impressions: int
    actions: int
    items: int
    impressions_bytes: int
    seconds: float

    @property
    def events(self) -> int:
        """Number of events."""
        return self.impressions + self.actions


def click_rate(actions_share: float) -> float:
    """Return the click rate of shown items that gives this share of actions per impression."""
    return actions_share / (ITEMS * _ACTIONS_A_CLICK)


def history_of(events: int, rate: float, **options: object) -> History:
    """Return traffic of about `events` events, `rate` per second of event time, with 5 actions per 100 impressions."""
    given = {"events": events, "rate": rate, "click_rate": f"{click_rate(ACTIONS_SHARE):.4f}", **options}
    module = app_module(ROOT / "examples" / "synthetic", "history")
    traffic: History = module.history({name: str(value) for name, value in given.items()})
    return traffic


def create_topics(folder: AppFolder, partitions: int) -> None:
    """Create the missing topics of an application, without retention limits."""
    for name in TOPICS:
        wanted = replace(folder.topic_settings(name, partitions), retention_ms=-1)
        create_topic(folder.topic_url(name), wanted, folder.access, exist_ok=True).close()


def write_events(folder: AppFolder, history: History, *, is_packed: bool) -> EventCounts:
    """Write a history with its end marks, in packs like the Producer's, or with one event per record."""
    settings, encoder = folder.settings.events, EventEncoder(folder.app, folder.settings.events)
    limits = (settings.record_events_max if is_packed else 1, settings.record_bytes_max)
    begin_s, until_ms = time.perf_counter(), history.begin_ms
    impressions = actions = items = impressions_bytes = 0
    with ExitStack() as stack:
        topics = [stack.enter_context(folder.open_topic(name)) for name in ("impressions", "actions")]
        writers = [stack.enter_context(topic.writer(folder.writer_settings)) for topic in topics]
        partitions = topics[0].partitions
        for block in history.blocks(SPAN_MS):
            shown, done = _encoded(encoder, block)
            for writer, encoded in zip(writers, (shown, done), strict=True):
                if encoded is not None:
                    _append(writer, pack_columns(encoded, partitions, *limits))
            if shown is not None:
                impressions += len(shown.items)
                items += int(shown.items.sum())
                impressions_bytes += len(shown.buffer)
            actions += 0 if done is None else len(done.items)
            until_ms = max(until_ms, block.until_ms)
        end = encoder.control("END", until_ms, until_ms, "benchmark")
        for writer in writers:
            for partition in range(partitions):
                writer.append(partition, [end], None, [until_ms])
    return EventCounts(impressions, actions, items, impressions_bytes, time.perf_counter() - begin_s)


def _encoded(encoder: EventEncoder, block: HistoryBlock) -> Iterator[EncodedEvents | None]:
    """Yield the encoded impressions, then the encoded actions of a block."""
    if block.impressions_rows:
        shown = np.full(block.impressions_rows, block.until_ms, np.int64)
        yield encoder.impressions({**block.impressions, "shown_wall_ms": shown}, block.impressions_rows)
    else:
        yield None
    yield encoder.actions(block.actions, block.actions_rows) if block.actions_rows else None


def _append(writer: Writer, records: list[Packed]) -> None:
    for partition, group in groupby(records, attrgetter("partition")):
        packed = list(group)
        keys, times = [record.key for record in packed], [record.time_ms for record in packed]
        writer.append(partition, [record.value for record in packed], keys, times)
