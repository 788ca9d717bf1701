"""The codec of a `SampleBatch` and one message; reading it is one Avro record and views of its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.errors import BadRecord, ConfigError, Oversize, UnknownSchema
from streamlearn.features import FeatureSpec, Label
from streamlearn.native import native
from streamlearn.samples.item_ids import ItemIds
from streamlearn.samples.rules import check_batch, quoted
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
from streamlearn.schemas.columns import write_columns
from streamlearn.schemas.record_prefix import read_framing
from streamlearn.schemas.sample import sample_schema
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.settings.events import SampleSettings

__all__ = ["SampleCodec"]

_REQUEST_DTYPES = {"partition": "<i4"} | dict.fromkeys(
    ("offset", "event_time_ms", "shown_wall_ms", "served_version"), "<i8"
)
_ROW_DTYPES = {"request_index": "<i4", "item_index": "<i4", "settle_time_ms": "<i8"}
_LABEL_DTYPES = {"value": "u1", "settles": "u1", "sample_rate": "<f4", "weight": "<f4", "served_score": "<f4"}
_DAMAGED = "the message was damaged, or its writer has a bug"
_HEADER = tuple(SampleHeader.__dataclass_fields__)


class SampleCodec:
    """Writes and reads the samples of one application.

    `old` are older sample schemas of the same features whose messages may still arrive.

    Raises:
        ConfigError: The current schema cannot read an older one; the message names the field.
    """

    def __init__(self, app: App, settings: SampleSettings, old: tuple[Schema, ...] = ()) -> None:
        self._app = app
        self._settings = settings
        self._schema = sample_schema(app)
        # Older messages have a schema with the application's name; their bytes after the prefix are the same.
        self._prefixes = (self._schema.prefix, sample_schema(app, f"streamlearn.{app.name}").prefix)
        self._writers = {schema.fingerprint: schema for schema in old}
        for schema in old:
            _require_readable(schema, self._schema)

    def encode(self, batch: SampleBatch) -> bytes:
        """Encode a batch as one message.

        Raises:
            BadRecord: The batch's columns contradict each other or the application.
            Oversize: The message is larger than allowed.
        """
        check_batch(self._app, batch)
        value: dict[str, Any] = {name: getattr(batch.header, name) for name in _HEADER}
        value |= {"requests": len(batch.requests), "rows": len(batch)}
        value |= _arrays_of(batch.requests, _REQUEST_DTYPES)
        value["user"] = _feature_arrays(batch.user)
        value |= _arrays_of(batch, _ROW_DTYPES)
        value["item"] = _feature_arrays(batch.item)
        if batch.item_ids is not None:
            value |= _id_arrays(batch.item_ids)
        value["labels"] = [self._label_value(label) for label in batch.labels]
        value["segments"] = [
            {"name": segment.name, "texts": list(segment.texts), "codes": _raw(segment.name, segment.codes, "<i4")}
            for segment in batch.segments
        ]
        message = write_columns(self._schema, value)
        self._check_size(len(message), len(batch))
        return message

    def decode(self, message: bytes) -> SampleBatch:
        """Decode a message as one batch of read-only arrays, which are views of its bytes.

        Raises:
            Oversize: The message is larger than allowed.
            UnknownSchema: Its schema, features or labels are not the application's.
            BadRecord: It was truncated or damaged, or its columns contradict each other.
        """
        self._check_size(len(message), 0)
        value = self._read(message)
        rows, requests = value["rows"], value["requests"]
        self._check_size(len(message), rows)
        self._check_fingerprint(value["feature_fingerprint"], [label["name"] for label in value["labels"]])
        spec = self._app.features
        batch = SampleBatch(
            header=SampleHeader(**{name: value[name] for name in _HEADER}),
            requests=RequestColumns(**_views(value, _REQUEST_DTYPES)),
            user=_features_views(spec, "user", value["user"], requests),
            **_views(value, _ROW_DTYPES),
            item=_features_views(spec, "item", value["item"], rows),
            labels=tuple(map(self._label_columns, self._app.labels, value["labels"])),
            segments=tuple(
                SegmentColumns(segment["name"], tuple(segment["texts"]), _view(segment, "codes", "<i4"))
                for segment in value["segments"]
            ),
            item_ids=_id_views(self._app, value),
        )
        if (len(batch.requests), len(batch)) != (requests, rows):
            error = f"{len(batch.requests)} requests and {len(batch)} rows; the message declares {requests} and {rows}"
            raise BadRecord(error, help=_DAMAGED)
        check_batch(self._app, batch)
        return batch

    def _label_value(self, label: LabelColumns) -> dict[str, Any]:
        value = {"name": label.name, **_arrays_of(label, _LABEL_DTYPES)}
        if self._app.has_numbers:
            value["number"] = b"" if label.number is None else _raw("number", label.number, "<f4")
        return value

    def _label_columns(self, declared: Label, value: Mapping[str, Any]) -> LabelColumns:
        columns = _views(value, _LABEL_DTYPES)
        if declared.number is not None:
            number = _view(value, "number", "<f4")
            if len(number) != len(columns["value"]):
                message = f"column number has {len(number)} values, expected {len(columns['value'])}"
                raise BadRecord(message, help=_DAMAGED)
            columns["number"] = declared.number.known(number, columns["value"] != 0)
            if declared.number.missing == "unlabelled":  # also in samples of before it was declared so
                columns["settles"] = columns["settles"] & columns["value"]
        return LabelColumns(value["name"], **columns)

    def _check_fingerprint(self, fingerprint: str, labels: list[str]) -> None:
        """Refuse samples of other features or labels; older messages have the fingerprint of the features alone."""
        app = self._app
        if fingerprint in (app.samples_fingerprint, app.features.fingerprint) and labels == list(app.label_names):
            return
        if labels != list(app.label_names):
            actual, expected = f"the labels {quoted(labels)}", ", ".join(app.label_names)
        else:
            actual, expected = f"the fingerprint {quoted([fingerprint])}", app.samples_fingerprint
        message = f"the message has {actual}; app {app.name!r} expects {expected}"
        hint = "ingest and this process run different versions of the application; replay the events"
        raise UnknownSchema(message, help=hint)

    def _check_size(self, message_bytes: int, rows: int) -> None:
        if message_bytes > self._settings.message_bytes_max:
            message = f"a message of {message_bytes} bytes"
            raise Oversize(message, help=f"a message may have at most {self._settings.message_bytes_max} bytes")
        if not 0 <= rows <= self._settings.message_rows_max:
            message = f"a message of {rows} rows"
            raise Oversize(message, help=f"samples.message_rows_max is {self._settings.message_rows_max}")

    def _read(self, message: bytes) -> dict[str, Any]:
        if message[:PREFIX_BYTES] in self._prefixes:
            return self._schema.read(memoryview(message)[PREFIX_BYTES:])
        framing = read_framing(message)
        writer = self._writers.get(framing.fingerprint or 0)
        if writer is None:
            error = f"no sample schema of app {self._app.name!r} has prefix {message[:PREFIX_BYTES].hex()}"
            hint = "the topic holds samples of another application, or of another version of this one"
            raise UnknownSchema(error, help=hint)
        return self._schema.read(memoryview(message)[framing.body_at :], writer)


def _require_readable(writer: Schema, reader: Schema) -> None:
    try:
        native.AvroPlan(writer.text, reader.text)
    except ValueError as error:
        message = f"cannot read the older sample schema {writer.fingerprint:016x} with the current one: {error}"
        raise ConfigError(message, help="make the samples again from their events") from error


def _raw(name: str, array: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    if array.dtype != np.dtype(dtype):
        message = f"column {name} is {array.dtype}, expected {np.dtype(dtype)}"
        raise BadRecord(message, help="casting would change values silently; give the column its declared type")
    return np.ascontiguousarray(array)


def _arrays_of(columns: Any, dtypes: Mapping[str, str]) -> dict[str, npt.NDArray[Any]]:
    return {name: _raw(name, getattr(columns, name), dtype) for name, dtype in dtypes.items()}


def _view(value: Mapping[str, Any], name: str, dtype: str) -> npt.NDArray[Any]:
    raw = value[name]
    try:
        return np.frombuffer(raw, dtype)
    except ValueError as error:
        message = f"column {name} has {len(raw)} bytes, not a whole number of {dtype}"
        raise BadRecord(message, help=_DAMAGED) from error


def _views(value: Mapping[str, Any], dtypes: Mapping[str, str]) -> dict[str, npt.NDArray[Any]]:
    return {name: _view(value, name, dtype) for name, dtype in dtypes.items()}


def _feature_arrays(features: FeatureColumns) -> dict[str, npt.NDArray[Any]]:
    value: dict[str, npt.NDArray[Any]] = {}
    for name, slot in features.slots.items():
        value[name] = _raw(name, slot.keys, "<u8")
        if slot.offsets is not None:
            value[f"{name}_offsets"] = _raw(f"{name}_offsets", slot.offsets, "<i4")
        if slot.weights is not None:
            value[f"{name}_weights"] = _raw(f"{name}_weights", slot.weights, "<f4")
    for name, numbers in features.dense.items():
        value[name] = _raw(name, numbers, "<f4")
    return value


def _id_arrays(ids: ItemIds) -> dict[str, npt.NDArray[Any]]:
    if ids.offsets is None:
        return {"item_ids": _raw("item_ids", ids.values, "<i8")}
    offsets = _raw("item_ids_offsets", ids.offsets, "<i4")
    return {"item_ids": _raw("item_ids", ids.values, "u1"), "item_ids_offsets": offsets}


def _id_views(app: App, value: Mapping[str, Any]) -> ItemIds | None:
    if app.retrieval is None:
        return None
    if "item_ids_offsets" in value:
        return ItemIds(_view(value, "item_ids", "u1"), _view(value, "item_ids_offsets", "<i4"))
    return ItemIds(_view(value, "item_ids", "<i8"))


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
            message = f"dense column {column.name} has {len(numbers)} numbers for {rows} rows of {column.width}"
            raise BadRecord(message, help=_DAMAGED)
        dense[column.name] = numbers.reshape(rows, column.width)
    return FeatureColumns(slots, dense)
