"""What the columns of a `SampleBatch` owe each other and the application: names, lengths, ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.errors import BadRecord
from streamlearn.features import FeatureSpec
from streamlearn.samples.sample import FeatureColumns, LabelColumns, SampleBatch

__all__ = ["check_batch"]


def check_batch(app: App, batch: SampleBatch) -> None:
    """Refuse a batch whose columns contradict each other or the application.

    Raises:
        BadRecord: With the first contradiction found.
    """
    requests, rows = len(batch.requests), len(batch)
    for name, column in vars(batch.requests).items():
        _length(name, column, requests)
    for name in ("item_index", "settle_time_ms"):
        _length(name, getattr(batch, name), rows)
    _range("request_index", batch.request_index, requests)
    _features(app.features, "user", batch.user, requests)
    _features(app.features, "item", batch.item, rows)
    names = [label.name for label in batch.labels]
    if names != [label.name for label in app.labels]:
        what = f"labels {', '.join(names) or 'none'}, but app {app.name!r} declares others"
        raise _bad(what)
    for label in batch.labels:
        _label(label, rows)
    names = [segment.name for segment in batch.segments]
    if set(names) - {segment.name for segment in app.features.segments} or len(set(names)) < len(names):
        what = f"segments {', '.join(names)}, but app {app.name!r} declares others"
        raise _bad(what)
    for segment in batch.segments:
        _length(segment.name, segment.codes, rows)
        _range(segment.name, segment.codes, len(segment.texts))


def _label(label: LabelColumns, rows: int) -> None:
    for name, column in vars(label).items():
        if name != "name":
            _length(f"{label.name}.{name}", column, rows)
    # Comparisons are turned so that NaN fails them.
    rules = (
        (label.settles <= 1, "settles is neither 0 nor 1"),
        (label.value <= label.settles, "it is positive but settles no label, or its value is neither 0 nor 1"),
        ((label.sample_rate > 0) & (label.sample_rate <= 1), "sample_rate is not above 0 and at most 1"),
        ((label.weight >= 0) & (label.weight < np.inf), "weight is negative or not finite"),
    )
    for good, rule in rules:
        if not good.all():
            what = f"label {label.name}, row {int(np.argmin(good))}: {rule}"
            raise _bad(what)


def _bad(what: str) -> BadRecord:
    return BadRecord(what, help="the message was damaged, or its writer has a bug")


def _length(name: str, column: npt.NDArray[Any], expected: int) -> None:
    if len(column) != expected:
        what = f"column {name} has {len(column)} values, expected {expected}"
        raise _bad(what)


def _range(name: str, column: npt.NDArray[np.int32], below: int) -> None:
    # One reduction: as unsigned, a negative index is larger than any bound.
    if len(column) and int(column.view(np.uint32).max()) >= below:
        what = f"column {name} has an index outside [0, {below})"
        raise _bad(what)


def _features(spec: FeatureSpec, side: Any, found: FeatureColumns, rows: int) -> None:
    declared = [slot.name for slot in spec.slots_of(side)]
    declared += [column.name for column in spec.dense_of(side)]
    names = [*found.slots, *found.dense]
    if sorted(names) != sorted(declared):
        what = f"{side} columns {', '.join(names) or 'none'}, but {', '.join(declared) or 'none'} are declared"
        raise _bad(what)
    for column in spec.dense_of(side):
        shape, expected = found.dense[column.name].shape, (rows, column.width)
        if shape != expected:
            what = f"dense column {column.name} has shape {shape}, expected {expected}"
            raise _bad(what)
    for slot in spec.slots_of(side):
        columns = found.slots[slot.name]
        if ((columns.offsets is None), (columns.weights is None)) != (
            not slot.multi,
            slot.pooling != "weighted",
        ):
            what = f"slot {slot.name} has offsets or weights it should not have, or lacks some it needs"
            raise _bad(what)
        if columns.offsets is None:
            _length(slot.name, columns.keys, rows)
        else:
            _offsets(slot.name, columns.offsets, rows, len(columns.keys))
        if columns.weights is not None:
            _length(f"{slot.name}_weights", columns.weights, len(columns.keys))
    _history(spec, side, found)


def _history(spec: FeatureSpec, side: Any, found: FeatureColumns) -> None:
    first: tuple[str, npt.NDArray[np.int32]] | None = None
    for slot in spec.slots_of(side):
        offsets = found.slots[slot.name].offsets
        if slot.pooling != "sequence" or offsets is None:
            continue
        if first is not None and not np.array_equal(offsets, first[1]):
            what = f"sequences {first[0]} and {slot.name} are columns of one history, and their lengths differ"
            raise _bad(what)
        first = first or (slot.name, offsets)


def _offsets(name: str, offsets: npt.NDArray[np.int32], rows: int, length: int) -> None:
    _length(f"{name}_offsets", offsets, rows + 1)
    if offsets[0] != 0 or offsets[-1] != length or bool((offsets[1:] < offsets[:-1]).any()):
        what = f"column {name}_offsets does not increase from 0 to {length}"
        raise _bad(what)
