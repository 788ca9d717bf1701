"""A `SampleBatch` to the bytes of one message and back; reading is one Avro record and views of its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.errors import BadRecord, ConfigError, Oversize, UnknownSchema
from streamlearn.features import FeatureSpec
from streamlearn.native import native
from streamlearn.samples.rules import check_batch
from streamlearn.samples.sample import (
    FeatureColumns,
    LabelColumns,
    RequestColumns,
    SampleBatch,
    SampleHeader,
    SegmentColumns,
    SlotColumns,
)
from streamlearn.schemas import Schema
from streamlearn.schemas.record_prefix import read_framing
from streamlearn.schemas.sample import sample_schema
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.settings.events import SampleSettings

__all__ = ["SampleCodec"]

_REQUEST_DTYPES = {
    "partition": "<i4",
    "offset": "<i8",
    "event_time_ms": "<i8",
    "shown_wall_ms": "<i8",
    "served_version": "<i8",
}
_LABEL_DTYPES = {"value": "u1", "settles": "u1", "sample_rate": "<f4", "weight": "<f4", "served_score": "<f4"}
_HEADER = tuple(SampleHeader.__dataclass_fields__)


class SampleCodec:
    """Writes and reads the samples of one application.

    Args:
        app: The application.
        settings: The bounds a message must keep.
        old: Older sample schemas of the same features whose messages may still come.

    Raises:
        ConfigError: An older schema cannot be read as today's; the message names the field.
    """

    def __init__(self, app: App, settings: SampleSettings, old: tuple[Schema, ...] = ()) -> None:
        self._app = app
        self._settings = settings
        self._schema = sample_schema(app)
        # Before, the schema had the application's name; what follows the prefix is the same.
        self._prefixes = (self._schema.prefix, sample_schema(app, f"streamlearn.{app.name}").prefix)
        self._writers = {schema.fingerprint: schema for schema in old}
        for schema in old:
            _require_readable(schema, self._schema)

    def encode(self, batch: SampleBatch) -> bytes:
        """One message.

        Raises:
            BadRecord: The batch's columns contradict each other or the application.
            Oversize: It is larger than a message may be.
        """
        check_batch(self._app, batch)
        value = {name: getattr(batch.header, name) for name in _HEADER}
        value |= {"requests": len(batch.requests), "rows": len(batch)}
        value |= _bytes_of(batch.requests, _REQUEST_DTYPES)
        value["user"] = _features_bytes(batch.user)
        value["request_index"] = _raw("request_index", batch.request_index, "<i4")
        value["item_index"] = _raw("item_index", batch.item_index, "<i4")
        value["settle_time_ms"] = _raw("settle_time_ms", batch.settle_time_ms, "<i8")
        value["item"] = _features_bytes(batch.item)
        value["labels"] = [{"name": one.name, **_bytes_of(one, _LABEL_DTYPES)} for one in batch.labels]
        value["segments"] = [
            {"name": one.name, "texts": list(one.texts), "codes": _raw(one.name, one.codes, "<i4")}
            for one in batch.segments
        ]
        message = self._schema.write(value)
        self._check_size(len(message), len(batch))
        return message

    def decode(self, message: bytes) -> SampleBatch:
        """One batch, its arrays views of the message's bytes and read-only.

        Raises:
            Oversize: It is larger than a message may be.
            UnknownSchema: It was written by a schema, or with features or labels, other than the application's.
            BadRecord: It was cut or damaged, or its columns contradict each other.
        """
        self._check_size(len(message), 0)
        value = self._read(message)
        rows, requests = value["rows"], value["requests"]
        self._check_size(len(message), rows)
        self._check_fingerprint(value["feature_fingerprint"], [one["name"] for one in value["labels"]])
        spec = self._app.features
        request_columns = {name: _view(value, name, kind) for name, kind in _REQUEST_DTYPES.items()}
        batch = SampleBatch(
            header=SampleHeader(**{name: value[name] for name in _HEADER}),
            requests=RequestColumns(**request_columns),
            user=_features_views(spec, "user", value["user"], requests),
            request_index=_view(value, "request_index", "<i4"),
            item_index=_view(value, "item_index", "<i4"),
            settle_time_ms=_view(value, "settle_time_ms", "<i8"),
            item=_features_views(spec, "item", value["item"], rows),
            labels=tuple(
                LabelColumns(one["name"], **{field: _view(one, field, kind) for field, kind in _LABEL_DTYPES.items()})
                for one in value["labels"]
            ),
            segments=tuple(
                SegmentColumns(one["name"], tuple(one["texts"]), _view(one, "codes", "<i4"))
                for one in value["segments"]
            ),
        )
        if (len(batch.requests), len(batch)) != (requests, rows):
            what = f"{len(batch.requests)} requests and {len(batch)} rows; the message declares {requests} and {rows}"
            raise BadRecord(what, help="the message was damaged, or its writer has a bug")
        check_batch(self._app, batch)
        return batch

    def _check_fingerprint(self, fingerprint: str, labels: list[str]) -> None:
        """Refuse samples of other features or labels. Before, the fingerprint was that of the features alone."""
        app = self._app
        if fingerprint in (app.samples_fingerprint, app.features.fingerprint) and labels == list(app.label_names):
            return
        if labels != list(app.label_names):
            found, wanted = f"the labels {', '.join(labels) or 'none'}", ", ".join(app.label_names)
        else:
            found, wanted = f"the fingerprint {fingerprint}", app.samples_fingerprint
        message = f"the message has {found}; app {app.name!r} expects {wanted}"
        hint = "ingest and this process run different versions of the application; replay the events"
        raise UnknownSchema(message, help=hint)

    def _check_size(self, message_bytes: int, rows: int) -> None:
        if message_bytes > self._settings.message_bytes_max:
            what = f"a message of {message_bytes} bytes"
            raise Oversize(what, help=f"a message may have at most {self._settings.message_bytes_max} bytes")
        if not 0 <= rows <= self._settings.message_rows_max:
            what = f"a message of {rows} rows"
            raise Oversize(what, help=f"samples.message_rows_max is {self._settings.message_rows_max}")

    def _read(self, message: bytes) -> dict[str, Any]:
        if message[:PREFIX_BYTES] in self._prefixes:
            return self._schema.read(memoryview(message)[PREFIX_BYTES:])
        framing = read_framing(message)
        writer = self._writers.get(framing.fingerprint or 0)
        if writer is None:
            what = f"no sample schema of app {self._app.name!r} has prefix {message[:PREFIX_BYTES].hex()}"
            hint = "the topic holds samples of another application, or of another version of this one"
            raise UnknownSchema(what, help=hint)
        return self._schema.read(memoryview(message)[framing.body_at :], writer)


def _require_readable(writer: Schema, reader: Schema) -> None:
    try:
        native.AvroPlan(writer.text, reader.text)
    except ValueError as error:
        message = f"cannot read the older sample schema {writer.fingerprint:016x} with the current one: {error}"
        raise ConfigError(message, help="make the samples again from their events") from error


def _raw(name: str, array: npt.NDArray[Any], dtype: str) -> bytes:
    if array.dtype != np.dtype(dtype):
        what = f"column {name} is {array.dtype}, expected {np.dtype(dtype)}"
        raise BadRecord(what, help="casting would change values silently; give the column its declared type")
    return array.tobytes()


def _bytes_of(columns: Any, dtypes: Mapping[str, str]) -> dict[str, bytes]:
    return {name: _raw(name, getattr(columns, name), dtype) for name, dtype in dtypes.items()}


def _view(value: Mapping[str, Any], name: str, dtype: str) -> npt.NDArray[Any]:
    raw = value[name]
    try:
        return np.frombuffer(raw, dtype)
    except ValueError as error:
        what = f"column {name} has {len(raw)} bytes, not a whole number of {dtype}"
        raise BadRecord(what, help="the message was damaged, or its writer has a bug") from error


def _features_bytes(features: FeatureColumns) -> dict[str, bytes]:
    value: dict[str, bytes] = {}
    for name, slot in features.slots.items():
        value[name] = _raw(name, slot.keys, "<u8")
        if slot.offsets is not None:
            value[f"{name}_offsets"] = _raw(f"{name}_offsets", slot.offsets, "<i4")
        if slot.weights is not None:
            value[f"{name}_weights"] = _raw(f"{name}_weights", slot.weights, "<f4")
    for name, numbers in features.dense.items():
        value[name] = _raw(name, numbers, "<f4")
    return value


def _features_views(spec: FeatureSpec, side: Any, value: Mapping[str, Any], rows: int) -> FeatureColumns:
    slots = {
        slot.name: SlotColumns(
            _view(value, slot.name, "<u8"),
            _view(value, f"{slot.name}_offsets", "<i4") if slot.multi else None,
            _view(value, f"{slot.name}_weights", "<f4") if slot.pooling == "weighted" else None,
        )
        for slot in spec.slots_of(side)
    }
    dense = {}
    for column in spec.dense_of(side):
        numbers = _view(value, column.name, "<f4")
        if len(numbers) != rows * column.width:
            what = f"dense column {column.name} has {len(numbers)} numbers for {rows} rows of {column.width}"
            raise BadRecord(what, help="the message was damaged, or its writer has a bug")
        dense[column.name] = numbers.reshape(rows, column.width)
    return FeatureColumns(slots, dense)
