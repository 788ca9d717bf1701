"""Samples the slow way: one event at a time as plain values, and every sample row by row, to hold others against."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamlearn.apps import App
from streamlearn.features import Slot, keys_of
from streamlearn.ingest import Joined
from streamlearn.samples import FeatureColumns, SampleBatch
from streamlearn.schemas import EVENT_PACK, impression_schema
from streamlearn.schemas.schema import PREFIX_BYTES


class SlowRow(NamedTuple):
    """One row of a sample, all of it."""

    identity: tuple[int, int, int]
    times: tuple[int, int, int]
    served_version: int
    user: bytes
    item: bytes
    labels: tuple[tuple[int, int, float, float, float | None], ...]
    segments: tuple[str, ...]


Source = Mapping[tuple[int, int], bytes]


def impression_at(app: App, record: bytes, first_item: int) -> dict[str, Any]:
    """The impression of a record whose first item has that index in it."""
    events = [record]
    if record.startswith(EVENT_PACK.prefix):
        events = EVENT_PACK.read(record[PREFIX_BYTES:])["events"]
    schema, before = impression_schema(app), 0
    for event in events:
        assert event.startswith(schema.prefix)
        value = schema.read(event[PREFIX_BYTES:])
        if before == first_item:
            return value
        before += len(value["items"])
    message = f"no impression begins at item {first_item}"
    raise AssertionError(message)


def rows_made(batches: Iterable[SampleBatch]) -> list[SlowRow]:
    """The rows of batches, in their order."""
    return [_made(batch, row) for batch in batches for row in range(len(batch))]


def rows_expected(app: App, joined: Iterable[Joined], records: Source) -> list[SlowRow]:
    """The rows that must be made of what a join gave, read from the records that were written."""
    return [_expected(app, one, row, records) for one in joined for row in range(len(one.rows))]


def _expected(app: App, joined: Joined, row: int, records: Source) -> SlowRow:
    requests, rows = joined.requests, joined.rows
    request, position = int(rows.request_index[row]), int(rows.position[row])
    origin = int(requests.partition[request]), int(requests.offset[request])
    first_item = int(requests.first_item[request])
    value = impression_at(app, records[origin], first_item)
    item = value["items"][position]
    labels = []
    for bit, label in enumerate(app.labels):
        score = item[f"served_score_{label.name}"]
        settles, positive = (int(mask[row]) >> bit & 1 for mask in (rows.settles, rows.labels))
        rate, weight = float(np.float32(label.sample_rate)), float(rows.weights[row, bit])
        labels.append((positive, settles, rate, weight, score))
    return SlowRow(
        (*origin, first_item + position),
        (value["event_time_ms"], value["shown_wall_ms"], int(rows.settle_time_ms[row])),
        -1 if value["served_version"] is None else value["served_version"],
        slow_features(app, "user", value.get("user", {})),
        slow_features(app, "item", item),
        tuple(labels),
        tuple(
            value["segments"][one.name] if one.side == "user" else item[f"segment_{one.name}"]
            for one in app.features.segments
        ),
    )


def slow_features(app: App, side: Any, value: Mapping[str, Any]) -> bytes:
    """One side's features of an event, as bytes."""
    parts = []
    for slot in app.features.slots_of(side):
        weights = np.array(value.get(f"{slot.name}_weights", ()), np.float32)
        parts.append(_slot_bytes(_slow_keys(slot, value[slot.name]), weights))
    parts += [np.ravel(np.array(value[one.name], np.float32)).tobytes() for one in app.features.dense_of(side)]
    return b"|".join(parts)


def _slow_keys(slot: Slot, value: Any) -> Sequence[int]:
    values = value if slot.multi else [value]
    return [int(keys_of(slot, [one])[0]) for one in (values[-slot.length :] if slot.length else values)]


def _slot_bytes(keys: Sequence[int], weights: np.ndarray[Any, Any]) -> bytes:
    return len(keys).to_bytes(4, "little") + np.array(keys, np.uint64).tobytes() + weights.tobytes()


def _made(batch: SampleBatch, row: int) -> SlowRow:
    requests, request = batch.requests, int(batch.request_index[row])
    labels = []
    for label in batch.labels:
        score = float(label.served_score[row])
        said = int(label.value[row]), int(label.settles[row]), float(label.sample_rate[row]), float(label.weight[row])
        labels.append((*said, None if math.isnan(score) else score))
    return SlowRow(
        (int(requests.partition[request]), int(requests.offset[request]), int(batch.item_index[row])),
        (
            int(requests.event_time_ms[request]),
            int(requests.shown_wall_ms[request]),
            int(batch.settle_time_ms[row]),
        ),
        int(requests.served_version[request]),
        _made_features(batch.user, request),
        _made_features(batch.item, row),
        tuple(labels),
        tuple(segment.texts[segment.codes[row]] for segment in batch.segments),
    )


def _made_features(features: FeatureColumns, row: int) -> bytes:
    parts = []
    for slot in features.slots.values():
        begin, end = (row, row + 1) if slot.offsets is None else slot.offsets[row : row + 2].tolist()
        weights = np.empty(0, np.float32) if slot.weights is None else slot.weights[begin:end]
        parts.append(_slot_bytes(slot.keys[begin:end].tolist(), weights))
    parts += [numbers[row].tobytes() for numbers in features.dense.values()]
    return b"|".join(parts)
