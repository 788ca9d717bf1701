"""The codec of an `InteractionBatch` and one message."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamlearn.errors import BadRecord, UnknownSchema
from streamlearn.interactions.batch import InteractionBatch
from streamlearn.schemas.fixed_schemas import INTERACTIONS
from streamlearn.schemas.record_prefix import read_framing

__all__ = ["decode_interactions", "encode_interactions"]

_DTYPES = {
    "identity": "<u8",
    "user": "<u8",
    "item": "<u8",
    "kind": "u1",
    "event_time_ms": "<i8",
    "weight": "<f4",
    "number": "<f4",
    "values": "<i8",
}
_DAMAGED = "the message was damaged, or its writer has a bug"


def encode_interactions(batch: InteractionBatch) -> bytes:
    """Encode a batch as one message."""
    value: dict[str, Any] = {name: getattr(batch, name) for name in ("side", "ingest_run")}
    value |= {"kinds": list(batch.kinds), "sources": list(batch.sources), "rows": len(batch)}
    return INTERACTIONS.write(value | {name: _bytes(batch, name) for name in _DTYPES})


def decode_interactions(message: bytes) -> InteractionBatch:
    """Decode a message as one batch of read-only arrays, which are views of its bytes.

    Raises:
        UnknownSchema: It has another schema.
        BadRecord: It was truncated or damaged, or its columns contradict each other.
    """
    framing = read_framing(message)
    if framing.fingerprint != INTERACTIONS.fingerprint:
        error = f"the record has a schema other than {INTERACTIONS.name}"
        raise UnknownSchema(error, help="the topic holds something else, or interactions of a later version")
    value = INTERACTIONS.read(memoryview(message)[framing.body_at :])
    rows, sources, kinds = value["rows"], tuple(value["sources"]), tuple(value["kinds"])
    columns = {}
    for name, dtype in _DTYPES.items():
        width = len(sources) if name == "values" else 1
        data = value[name]
        if rows < 0 or len(data) != rows * width * np.dtype(dtype).itemsize:
            error = f"interactions: {name} has {len(data)} bytes for {rows} rows"
            raise BadRecord(error, help=_DAMAGED)
        columns[name] = np.frombuffer(data, dtype)
    columns["values"] = columns["values"].reshape(rows, len(sources))
    if rows and int(columns["kind"].max()) >= len(kinds):
        error = f"interactions: a kind is {columns['kind'].max()} of {len(kinds)}"
        raise BadRecord(error, help=_DAMAGED)
    if value["side"] not in ("user", "item"):
        error = f"interactions: side is {value['side']!r:.40}"
        raise BadRecord(error, help=_DAMAGED)
    return InteractionBatch(value["side"], kinds, sources, value["ingest_run"], **columns)


def _bytes(batch: InteractionBatch, name: str) -> bytes:
    return np.ascontiguousarray(getattr(batch, name), _DTYPES[name]).tobytes()
