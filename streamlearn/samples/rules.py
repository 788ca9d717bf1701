"""The rules of a `SampleBatch`: columns agree with each other and with the application in names, lengths and ranges."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.errors import BadRecord
from streamlearn.features import FeatureSpec, keys_of
from streamlearn.samples.item_ids import ItemIds
from streamlearn.samples.sample import FeatureColumns, LabelColumns, SampleBatch
from streamlearn.settings.events import ITEM_ID_BYTES_MAX
from streamlearn.settings.ingest import LOTS_MAX
from streamlearn.settings.join import RECORD_ITEMS_MAX

__all__ = ["check_batch", "quoted"]

# The limits of what an error quotes of a message. An application has at most 32 labels.
_NAMES_MAX = 32
_NAME_CHARS_MAX = 80
TIME_MS_BOUND = 1 << 52  # the join and the marks take times below it


def check_batch(app: App, batch: SampleBatch) -> None:
    """Refuse a batch whose columns contradict each other or the application; raises BadRecord with the first one."""
    requests, rows, header = len(batch.requests), len(batch), batch.header
    for name, column in vars(batch.requests).items():
        _check_length(name, column, requests)
    for name in ("item_index", "settle_time_ms"):
        _check_length(name, getattr(batch, name), rows)
    _check_range("request_index", batch.request_index, requests)
    _check_range("item_index", batch.item_index, RECORD_ITEMS_MAX)
    _check_range("partition", batch.requests.partition, 1 << 31)
    _check_range("offset", batch.requests.offset, 1 << 63)
    if not 0 <= header.lot < header.lots_count <= LOTS_MAX:
        _refuse(f"lot {header.lot} of {header.lots_count} lots; at most {LOTS_MAX} are possible")
    _check_times("watermark_ms", np.array([header.watermark_ms]))
    _check_times("event_time_ms", batch.requests.event_time_ms)
    _check_times("settle_time_ms", batch.settle_time_ms)
    _check_features(app.features, "user", batch.user, requests)
    _check_features(app.features, "item", batch.item, rows)
    if app.retrieval is not None:
        _check_ids(app.features, batch.item_ids, batch.item.slots[app.features.item_id].keys)
    names = [label.name for label in batch.labels]
    others = f"but app {app.name!r} declares others"
    if names != list(app.label_names):
        _refuse(f"labels {quoted(names)}, {others}")
    for label, is_number in zip(batch.labels, (label.number is not None for label in app.labels), strict=True):
        _check_label(label, rows)
        if (label.number is not None) != is_number:
            _refuse(f"label {label.name} has numbers that it should not have, or lacks them")
    names = [segment.name for segment in batch.segments]
    declared = {segment.name for segment in app.features.segments}
    if not declared.issuperset(names) or len(set(names)) < len(names):
        _refuse(f"segments {quoted(names)}, {others}")
    for segment in batch.segments:
        _check_length(segment.name, segment.codes, rows)
        _check_range(segment.name, segment.codes, len(segment.texts))


def quoted(names: list[str]) -> str:
    """Return names of a message for an error: the first of them, each not longer than a line."""
    shown = ", ".join(name[:_NAME_CHARS_MAX] for name in names[:_NAMES_MAX]) or "none"
    return shown if len(names) <= _NAMES_MAX else f"{shown} and {len(names) - _NAMES_MAX} more"


def _refuse(message: str) -> NoReturn:
    raise BadRecord(message, help="the message was damaged, or its writer has a bug")


def _check_label(label: LabelColumns, rows: int) -> None:
    for name, column in vars(label).items():
        if name != "name" and column is not None:
            _check_length(f"{label.name}.{name}", column, rows)
    # NaN fails each of these comparisons.
    rules = (
        (label.settles <= 1, "settles is neither 0 nor 1"),
        (label.value <= label.settles, "it is positive but settles no label, or its value is neither 0 nor 1"),
        ((label.sample_rate > 0) & (label.sample_rate <= 1), "sample_rate is not above 0 and at most 1"),
        ((label.weight >= 0) & (label.weight < np.inf), "weight is negative or not finite"),
    )
    of_number = [] if label.number is None else [(np.isfinite(label.number), "its number is not finite")]
    for valid, rule in (*rules, *of_number):
        if not valid.all():
            _refuse(f"label {label.name}, row {int(np.argmin(valid))}: {rule}")


def _check_length(name: str, column: npt.NDArray[Any], expected: int) -> None:
    if len(column) != expected:
        _refuse(f"column {name} has {len(column)} values, expected {expected}")


def _check_range(name: str, column: npt.NDArray[Any], below: int) -> None:
    # One reduction: as unsigned, a negative index is larger than any bound.
    if len(column) and int(column.view(f"u{column.itemsize}").max()) >= below:
        _refuse(f"column {name} has an index outside [0, {below})")


def _check_times(name: str, times_ms: npt.NDArray[np.int64]) -> None:
    if len(times_ms) and not -TIME_MS_BOUND < times_ms.min() <= times_ms.max() < TIME_MS_BOUND:
        _refuse(f"{name} has a time outside (-{TIME_MS_BOUND}, {TIME_MS_BOUND})")


def _check_features(spec: FeatureSpec, side: Any, features: FeatureColumns, rows: int) -> None:
    declared = [slot.name for slot in spec.slots_of(side)] + [column.name for column in spec.dense_of(side)]
    names = [*features.slots, *features.dense]
    if sorted(names) != sorted(declared):
        _refuse(f"{side} columns {quoted(names)}, but {', '.join(declared) or 'none'} are declared")
    for column in spec.dense_of(side):
        shape, expected = features.dense[column.name].shape, (rows, column.width)
        if shape != expected:
            _refuse(f"dense column {column.name} has shape {shape}, expected {expected}")
    for slot in spec.slots_of(side):
        columns = features.slots[slot.name]
        has = (columns.offsets is not None, columns.weights is not None)
        if has != (slot.multi, slot.pooling == "weighted"):
            _refuse(f"slot {slot.name} has offsets or weights it should not have, or lacks some it needs")
        if columns.offsets is None:
            _check_length(slot.name, columns.keys, rows)
        else:
            _check_offsets(slot.name, columns.offsets, rows, len(columns.keys))
        if columns.weights is not None:
            _check_length(f"{slot.name}_weights", columns.weights, len(columns.keys))
    _check_history(spec, side, features)


def _check_ids(spec: FeatureSpec, ids: ItemIds | None, keys: npt.NDArray[np.uint64]) -> None:
    """Check that ids are those of the keys, which also tells that none is damaged."""
    slot = spec.slot(spec.item_id)
    if ids is None or (ids.offsets is None) != (slot.value == "int"):
        _refuse(f"the ids of items are missing, or not of type {slot.value}")
    if ids.offsets is None:
        _check_length("item_ids", ids.values, len(keys))
    else:
        _check_offsets("item_ids", ids.offsets, len(keys), len(ids.values))
        if len(keys) and int(np.diff(ids.offsets).max()) > ITEM_ID_BYTES_MAX:
            _refuse(f"the id of an item is longer than {ITEM_ID_BYTES_MAX} bytes")
    if not np.array_equal(keys_of(slot, ids.values, offsets=ids.offsets), keys):
        _refuse(f"the ids of items are not those of the keys of {slot.name}")


def _check_history(spec: FeatureSpec, side: Any, features: FeatureColumns) -> None:
    names = [slot.name for slot in spec.slots_of(side) if slot.pooling == "sequence"]
    for name in names[1:]:
        first, offsets = features.slots[names[0]].offsets, features.slots[name].offsets
        if first is not None and offsets is not None and not np.array_equal(offsets, first):
            _refuse(f"sequences {names[0]} and {name} are columns of one history, and their lengths differ")


def _check_offsets(name: str, offsets: npt.NDArray[np.int32], rows: int, length: int) -> None:
    _check_length(f"{name}_offsets", offsets, rows + 1)
    if offsets[0] != 0 or offsets[-1] != length or (offsets[1:] < offsets[:-1]).any():
        _refuse(f"column {name}_offsets does not increase from 0 to {length}")
