"""The content of records of the topics that ingest writes, as plain values: samples, dead letters, progress.

It summarises a message of samples, because its columns are too long to read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from streamlearn.errors import BadRecord, DataError
from streamlearn.samples import SampleCodec
from streamlearn.schemas import DEAD_LETTER, PROGRESS
from streamlearn.schemas.record_prefix import read_framing

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.samples import SampleBatch
    from streamlearn.schemas import Schema

__all__ = ["shown_record"]

HEAD_BYTES = 32


def shown_record(folder: AppFolder, topic: str) -> Callable[[bytes | None, bytes | None], dict[str, Any]]:
    """Return a function of key and value that shows a record of topic "samples", "dead_letters" or "progress"."""
    if topic == "samples":
        codec = SampleCodec(folder.app, folder.settings.samples)
        return _guarded("samples", lambda value: _batch(codec.decode(value)))
    if topic == "progress":
        return _guarded("progress", lambda value: _decoded(PROGRESS, value))
    return _guarded("dead_letter", lambda value: _letter(_decoded(DEAD_LETTER, value)))


def _guarded(
    name: str, show: Callable[[bytes], dict[str, Any]]
) -> Callable[[bytes | None, bytes | None], dict[str, Any]]:
    def shown(key: bytes | None, value: bytes | None) -> dict[str, Any]:
        if value is None:
            return {"record": "deleted", "key": _text(key)}
        try:
            return {"record": name, **show(value)}
        except DataError as error:
            return {"record": "unreadable", "detail": error.message}

    return shown


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


def _batch(batch: SampleBatch) -> dict[str, Any]:
    labels = {
        label.name: {
            "settled": int(np.count_nonzero(label.settles)),
            "positive": int(np.count_nonzero(label.value & label.settles)),
        }
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
