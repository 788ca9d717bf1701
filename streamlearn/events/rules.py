"""The rules of impressions and actions beyond their schemas, checked on columns: which rows break which rule."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.events.event import Columns
from streamlearn.features import FeatureSpec, Slot
from streamlearn.schemas.events import library_keys, score_field
from streamlearn.settings.events import ITEM_ID_BYTES_MAX

__all__ = ["REQUEST_ID_BYTES_MAX", "WEIGHT_MAX", "Broken", "broken_actions", "broken_impressions", "broken_side"]

REQUEST_ID_BYTES_MAX = 256
# A step with a row of a much larger weight is not finite, and all its rows would be lost.
WEIGHT_MAX = 1_000_000

Bools = npt.NDArray[np.bool_]
# (rows that break the rule, the rule)
Broken = Iterator[tuple[Bools, str]]


def broken_impressions(app: App, columns: Columns, items_max: int) -> Broken:
    """Yield every rule with the rows that break it; an absent column holds its default and breaks none."""
    offsets = columns["items[]"]
    items = np.diff(offsets)
    yield from _broken_envelope(columns)
    yield items == 0, "it has no items"
    yield items > items_max, f"it has more than {items_max} items"
    yield from broken_side(app.features, columns, "user", items_max)
    for bad, rule in broken_side(app.features, columns, "item", items_max):
        yield _any_item(bad, offsets), rule
    for name, slot in library_keys(app).items():
        if f"items.{name}" in columns:
            keys, at = np.diff(columns[f"items.{name}[]"]), f"items.{slot.name}[]"
            count = np.diff(columns[at]) if at in columns else np.int32(0 if slot.multi else 1)
            yield _any_item((keys > 0) & (keys != count), offsets), f"{name} does not have one key for each value"
    ids_at = f"items.{app.features.item_id}$"
    if app.retrieval is not None and ids_at in columns:
        lengths = np.diff(columns[ids_at])
        rule = f"the id of an item is empty, or longer than {ITEM_ID_BYTES_MAX} bytes"
        yield _any_item((lengths == 0) | (lengths > ITEM_ID_BYTES_MAX), offsets), rule
    for label in app.labels:
        path = f"items.{score_field(label.name)}"
        if path in columns:
            bad = ~np.isfinite(columns[path]) & (columns[f"{path}?"] == 1)
            yield _any_item(bad, offsets), f"{score_field(label.name)} is not finite"


def broken_actions(columns: Columns) -> Broken:
    """Yield every rule with the rows that break it."""
    yield from _broken_envelope(columns)
    yield np.diff(columns["action$"]) == 0, "its action is empty"
    if "weight" in columns:
        valid = (columns["weight"] >= 0) & (columns["weight"] <= WEIGHT_MAX)  # NaN fails both
        yield ~valid, f"its weight is negative, above {WEIGHT_MAX:,} or not a number"
    if "value" in columns:
        yield ~np.isfinite(columns["value"]) & (columns["value?"] == 1), "its value is not finite"


def _broken_envelope(columns: Columns) -> Broken:
    yield columns["event_time_ms"] < 0, "its event_time_ms is before 1970"
    length = np.diff(columns["request_id$"])
    yield length == 0, "its request_id is empty"
    yield length > REQUEST_ID_BYTES_MAX, f"its request_id is longer than {REQUEST_ID_BYTES_MAX} bytes"


def broken_side(features: FeatureSpec, columns: Columns, side: str, values_max: int) -> Broken:
    """Yield the rules of one side's features; of items, the rows are those of all items."""
    prefix = "user" if side == "user" else "items"
    sequences: list[tuple[Slot, npt.NDArray[np.int32]]] = []
    for slot in features.slots:
        path = f"{prefix}.{slot.name}"
        if slot.side != side or not slot.multi or path not in columns:
            continue
        count = np.diff(columns[f"{path}[]"])
        yield count > values_max, f"{slot.name} has more than {values_max} values"
        if slot.pooling == "weighted":
            yield from _broken_weights(columns, path, slot.name, count)
        if slot.pooling == "sequence":
            sequences.append((slot, count))
    for slot, count in sequences[1:]:
        first, expected = sequences[0]
        yield count != expected, f"{slot.name} and {first.name} are columns of one history, and their lengths differ"
    for column in features.dense:
        path = f"{prefix}.{column.name}"
        if column.side == side and path in columns:
            yield from _broken_dense(columns, path, column.width)


def _broken_weights(columns: Columns, path: str, name: str, count: npt.NDArray[np.int32]) -> Broken:
    if f"{path}_weights" not in columns:
        yield count > 0, f"{name} has values but no {name}_weights"
        return
    offsets = columns[f"{path}_weights[]"]
    yield np.diff(offsets) != count, f"{name}_weights does not have one weight for each value of {name}"
    yield _any_item(~np.isfinite(columns[f"{path}_weights"]), offsets), f"{name}_weights is not finite"


def _broken_dense(columns: Columns, path: str, width: int) -> Broken:
    name = path.rpartition(".")[2]
    bad = ~np.isfinite(columns[path])
    if width == 1:
        yield bad, f"{name} is not finite"
        return
    offsets = columns[f"{path}[]"]
    yield np.diff(offsets) != width, f"{name} does not have {width} numbers"
    yield _any_item(bad, offsets), f"{name} is not finite"


def _any_item(bad: Bools, offsets: npt.NDArray[np.int32]) -> Bools:
    """Return the rows with a bad item."""
    if not bad.any():  # the usual case, which is cheaper to test than to sum
        return np.zeros(len(offsets) - 1, np.bool_)
    before = np.concatenate(([0], np.cumsum(bad)))
    return before[offsets[1:]] > before[offsets[:-1]]
