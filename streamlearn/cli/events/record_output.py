"""The content of a topic's records as plain values: events, also those that ingest refuses, samples and others.

Events are decoded as ingest does it. Samples and interactions are summarised: their columns are too long to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamlearn.errors import BadRecord, DataError
from streamlearn.events import EventDecoder
from streamlearn.events.event import text_at
from streamlearn.interactions import decode_interactions
from streamlearn.samples import SampleCodec
from streamlearn.schemas import CONTROL, DEAD_LETTER, PROGRESS, action_schema, impression_schema
from streamlearn.schemas.events import item_schema
from streamlearn.schemas.record_prefix import read_framing

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.events import EventColumns
    from streamlearn.events.event import Columns
    from streamlearn.interactions import InteractionBatch
    from streamlearn.samples import SampleBatch
    from streamlearn.schemas import Schema
    from streamlearn.topics import Records

__all__ = ["shown_records"]

HEAD_BYTES = 32
_Show = Callable[["Records"], Iterator[tuple[int, dict[str, Any]]]]


def shown_records(folder: AppFolder, topic: str, *, controls: bool) -> _Show:
    """Return a function that yields the contents of records of a topic, each with the index of its record.

    `controls` includes heartbeats and end marks of topics of events.

    Raises:
        ConfigError: A schema file is invalid.
    """
    if topic == "samples":
        codec = SampleCodec(folder.app, folder.settings.samples)
        return _guarded("samples", lambda value: _batch(codec.decode(value)))
    if topic == "interactions":
        return _guarded("interactions", lambda value: _interactions(decode_interactions(value)))
    if topic == "items":
        schema = item_schema(folder.app)
        return _guarded("item", lambda value: _decoded(schema, value))
    if topic == "progress":
        return _guarded("progress", lambda value: _decoded(PROGRESS, value))
    if topic == "dead_letters":
        return _guarded("dead_letter", lambda value: _letter(_decoded(DEAD_LETTER, value)))
    return _shown_events(folder, controls)


def _guarded(name: str, show: Callable[[bytes], dict[str, Any]]) -> _Show:
    def shown(records: Records) -> Iterator[tuple[int, dict[str, Any]]]:
        for index, (key, value) in enumerate(zip(records.keys, records.values, strict=True)):
            try:
                content = {"record": "deleted", "key": _text(key)} if value is None else {"record": name, **show(value)}
            except DataError as error:
                content = {"record": "unreadable", "detail": error.message}
            yield index, content

    return shown


def _shown_events(folder: AppFolder, controls: bool) -> _Show:
    decoder = EventDecoder.of(folder)
    schemas = (impression_schema(folder.app), action_schema(folder.app), CONTROL)

    def shown(records: Records) -> Iterator[tuple[int, dict[str, Any]]]:
        events = decoder.decode(records.values)
        kinds = (events.impressions, events.actions, *((events.controls,) if controls else ()))
        found = [event for schema, of_kind in zip(schemas, kinds, strict=False) for event in _events(schema, of_kind)]
        for failure in events.failures:
            fields = {"event": "unreadable", "reason": failure.reason, "detail": failure.detail}
            found.append((failure.record_index, failure.event_index, fields))
        for record, index, fields in sorted(found, key=lambda event: event[:2]):
            yield record, {"index": index, **fields}

    return shown


def _events(schema: Schema, events: EventColumns) -> Iterator[tuple[int, int, dict[str, Any]]]:
    for row in range(len(events)):
        fields = _value(schema.json, "", events.columns, row)
        yield int(events.record_index[row]), int(events.event_index[row]), {"event": schema.name.lower(), **fields}


def _value(kind: Any, path: str, columns: Columns, row: int) -> Any:
    """Read one value of a field from the columns of its schema's type."""
    if isinstance(kind, list):  # a union with null; see `EventColumns` for how columns are named
        present = bool(columns[f"{path}?"][row])
        return _value(kind[1], path, columns, row) if present else None
    if isinstance(kind, dict) and kind["type"] == "record":
        inside = f"{path}." if path else ""
        return {field["name"]: _value(field["type"], inside + field["name"], columns, row) for field in kind["fields"]}
    if isinstance(kind, dict) and kind["type"] == "array":
        begin, end = columns[f"{path}[]"][row : row + 2].tolist()
        return [_value(kind["items"], path, columns, item) for item in range(begin, end)]
    if isinstance(kind, dict) and kind["type"] == "enum":
        return kind["symbols"][columns[path][row]]
    if kind == "string":
        return text_at(columns, path, row)
    # Through the shortest text of the float32: 9.99 instead of 9.989999771118164.
    return float(str(columns[path][row])) if kind == "float" else int(columns[path][row])


def _decoded(schema: Schema, value: bytes) -> dict[str, Any]:
    framing = read_framing(value)
    if framing.fingerprint != schema.fingerprint:
        actual = f"registry id {framing.registry_id}"
        if framing.fingerprint is not None:
            actual = f"fingerprint {framing.fingerprint:016x}"
        message = f"the record's schema has {actual}, but {schema.name} has fingerprint {schema.fingerprint:016x}"
        raise BadRecord(message)
    return schema.read(value[framing.body_at :])


def _letter(value: Mapping[str, Any]) -> dict[str, Any]:
    head: bytes = value["head"]
    more = f" ... {len(head)} bytes kept" if len(head) > HEAD_BYTES else ""
    readable = {"sha256": value["sha256"].hex(), "head": head[:HEAD_BYTES].hex(" ") + more, "key": _text(value["key"])}
    return {**value, **readable}


def _text(key: bytes | None) -> str | None:
    """Return a key as text, or in hex if it is not UTF-8."""
    if key is None:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key.hex(" ")


def _mean(numbers: npt.NDArray[np.float32]) -> float | None:
    return round(float(numbers.mean()), 4) if len(numbers) else None


def _batch(batch: SampleBatch) -> dict[str, Any]:
    labels = {
        label.name: {
            "settled": int(np.count_nonzero(label.settles)),
            "positive": int(np.count_nonzero(label.value & label.settles)),
        }
        | ({} if label.number is None else {"mean": _mean(label.number[label.settles != 0])})
        for label in batch.labels
    }
    header = batch.header
    return {
        "lot": header.lot,
        "lots_count": header.lots_count,
        "watermark_ms": header.watermark_ms,
        "rows": len(batch),
        "requests": len(batch.requests),
        "labels": labels,
        "feature_fingerprint": header.feature_fingerprint,
        "window_settings": header.window_settings,
        "ingest_run": header.ingest_run,
    }


def _interactions(batch: InteractionBatch) -> dict[str, Any]:
    counts = np.bincount(batch.kind, minlength=len(batch.kinds)).tolist()
    times_ms = (int(batch.event_time_ms.min()), int(batch.event_time_ms.max())) if len(batch) else None
    return {
        "of": batch.side,
        "rows": len(batch),
        "kinds": {kind: count for kind, count in zip(batch.kinds, counts, strict=True) if count},
        "event_time_ms": times_ms,
        "sources": list(batch.sources),
        "ingest_run": batch.ingest_run,
    }
