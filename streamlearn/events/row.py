"""One event given as plain Python values, checked against the application before it is written.

This is the convenient way in; `EventEncoder` takes whole columns where speed matters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamlearn.apps import App
from streamlearn.errors import BadRecord
from streamlearn.events.rules import REQUEST_ID_BYTES_MAX
from streamlearn.features import Dense, Segment, Slot
from streamlearn.schemas.events import score_field

__all__ = ["action_row", "impression_row"]

_INT64 = range(-(2**63), 2**63)
_FLOAT32_MAX = float(np.finfo(np.float32).max)


def impression_row(app: App, given: Mapping[str, Any], items_max: int) -> dict[str, Any]:
    """The Avro value of an impression.

    Args:
        app: The application.
        given: request_id, event_time_ms, shown_wall_ms, served_version, user, items, segments.
        items_max: The most items, and the most values of one slot.

    Raises:
        BadRecord: A value is missing, of a wrong type, unknown, or too many; the message names it.
    """
    what = f"impression {given['request_id']!r}"
    items: Sequence[Mapping[str, Any]] = given["items"]
    if not 1 <= len(items) <= items_max:
        raise _bad(what, f"it has {len(items)} items", f"an impression has 1 to {items_max} items")
    row = _envelope(what, given, ("event_time_ms", "shown_wall_ms"))
    version = given["served_version"]
    row["served_version"] = None if version is None else _int(f"{what}: served_version", version)
    row.update(_request_segments(app, what, given["segments"] or {}))
    _require_mapping(what, "user", given["user"])
    user = _features(app, "user", what, given["user"], items_max)
    _check_history(app, what, user)
    if user:
        row["user"] = user
    row["items"] = [_item(app, f"{what}: item {index}", item, items_max) for index, item in enumerate(items)]
    return row


def action_row(app: App, given: Mapping[str, Any]) -> dict[str, Any]:
    """The Avro value of an action.

    Args:
        app: The application.
        given: request_id, event_time_ms, item_id, action, weight.

    Raises:
        BadRecord: A value is missing or of a wrong type; the message names it.
    """
    what = f"action on {given['request_id']!r}"
    row = _envelope(what, given, ("event_time_ms",))
    row["item_id"] = _value(f"{what}: item_id", app.features.slot(app.features.item_id), given["item_id"])
    if not isinstance(given["action"], str) or not given["action"]:
        raise _bad(what, f"action is {given['action']!r}", "an action is a text such as 'click'")
    row["action"] = given["action"]
    row["weight"] = _number(f"{what}: weight", given["weight"])
    if row["weight"] < 0:
        raise _bad(what, f"weight is {row['weight']}", "a weight is at least 0")
    return row


def _bad(what: str, found: str, hint: str) -> BadRecord:
    return BadRecord(f"{what}: {found}", help=hint)


def _require_mapping(what: str, field: str, found: object) -> None:
    if not isinstance(found, Mapping):
        raise _bad(what, f"{field} is {found!r:.80} ({type(found).__name__})", "a mapping by name")


def _utf8_bytes(text: str) -> int:
    # What is no UTF-8 at all is refused where it is written.
    return len(text.encode("utf-8", "surrogatepass"))


def _envelope(what: str, given: Mapping[str, Any], times: Sequence[str]) -> dict[str, Any]:
    request_id = given["request_id"]
    if not isinstance(request_id, str) or not 1 <= _utf8_bytes(request_id) <= REQUEST_ID_BYTES_MAX:
        raise _bad(what, f"request_id is {request_id!r}", f"a text of 1 to {REQUEST_ID_BYTES_MAX} bytes")
    row: dict[str, Any] = {"request_id": request_id}
    for name in times:
        row[name] = _int(f"{what}: {name}", given[name], "milliseconds since 1970 UTC, a whole number")
    if row["event_time_ms"] < 0:
        raise _bad(what, f"event_time_ms {row['event_time_ms']} is before 1970", "milliseconds since 1970 UTC")
    return row


def _request_segments(app: App, what: str, given: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    _require_mapping(what, "segments", given)
    segments = app.features.segments_of("user")
    names = [segment.name for segment in segments]
    unknown = given.keys() - set(names)
    if unknown:
        raise _bad(what, f"unknown user segment {min(unknown)!r}", f"the segments are {', '.join(names) or 'none'}")
    return {"segments": _texts(what, segments, given, "")} if segments else {}


def _item(app: App, what: str, item: Mapping[str, Any], values_max: int) -> dict[str, Any]:
    _require_mapping(what, "the item", item)
    segments = app.features.segments_of("item")
    scores = [score_field(label.name) for label in app.labels]
    apart = {*scores, *(f"segment_{segment.name}" for segment in segments)}
    features = {name: value for name, value in item.items() if name not in apart}
    row = _features(app, "item", what, features, values_max)
    row.update(_texts(what, segments, item, "segment_"))
    for name in scores:
        score = item.get(name)
        row[name] = None if score is None else _number(f"{what}: {name}", score)
    return row


def _features(app: App, side: Any, what: str, given: Mapping[str, Any], values_max: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for slot in app.features.slots_of(side):
        row.update(_slot(what, slot, given, values_max))
    for column in app.features.dense_of(side):
        row[column.name] = _dense(what, column, given)
    unknown = given.keys() - row.keys()
    if unknown:
        raise _bad(what, f"unknown {side} feature {min(unknown)!r}", _known(app, side, list(row)))
    return row


def _known(app: App, side: Any, names: list[str]) -> str:
    """What may be given on one side, for whoever gave something else."""
    if side == "item":
        names += [f"segment_{segment.name}" for segment in app.features.segments_of(side)]
        return (
            f"an item has {', '.join(names)}, and optionally {', '.join(score_field(one.name) for one in app.labels)}"
        )
    segments = ", ".join(segment.name for segment in app.features.segments_of(side))
    return f"the features are {', '.join(names) or 'none'}" + (
        f"; pass the segments {segments} as segments=" if segments else ""
    )


def _slot(what: str, slot: Slot, given: Mapping[str, Any], values_max: int) -> dict[str, Any]:
    where = f"{what}: {slot.name}"
    if not slot.multi:
        value = given.get(slot.name)
        value = slot.default if value is None else value
        if value is None:
            raise _bad(what, f"{slot.name} is missing", "give it a value, or declare a default for the slot")
        return {slot.name: _value(where, slot, value)}
    values = given.get(slot.name, ())
    if isinstance(values, str | bytes) or not hasattr(values, "__len__") or len(values) > values_max:
        raise _bad(what, f"{slot.name} is {values!r:.80}", f"a list of at most {values_max} values")
    row: dict[str, Any] = {slot.name: [_value(where, slot, value) for value in values]}
    if slot.pooling == "weighted":
        weights = given.get(f"{slot.name}_weights", ())
        if isinstance(weights, str | bytes) or not hasattr(weights, "__len__"):
            raise _bad(what, f"{slot.name}_weights is {weights!r:.80}", "give one weight for each value")
        if len(weights) != len(values):
            found = f"{slot.name} has {len(values)} values and {len(weights)} weights"
            raise _bad(what, found, "give one weight for each value")
        row[f"{slot.name}_weights"] = [_number(f"{where}_weights", weight) for weight in weights]
    return row


def _check_history(app: App, what: str, user: Mapping[str, Any]) -> None:
    lengths = {slot.name: len(user[slot.name]) for slot in app.features.slots_of("user") if slot.pooling == "sequence"}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} has {length} values" for name, length in lengths.items())
        raise _bad(what, found, "sequence slots are columns of one history: they all have its length")


def _dense(what: str, column: Dense, given: Mapping[str, Any]) -> Any:
    value = given.get(column.name)
    defaulted = value is None
    value = column.default if defaulted else value
    where = f"{what}: {column.name}"
    if value is None:
        raise _bad(what, f"{column.name} is missing", "give it a value, or declare a default for the dense column")
    if column.width == 1:
        return _number(where, value)
    numbers: Any = [value] * column.width if defaulted else value
    if isinstance(numbers, str | bytes) or not hasattr(numbers, "__len__"):
        raise _bad(what, f"{column.name} is {numbers!r:.80}", f"give a list of {column.width} numbers")
    if len(numbers) != column.width:
        raise _bad(what, f"{column.name} has {len(numbers)} numbers", f"the column has {column.width} numbers")
    return [_number(where, number) for number in numbers]


def _texts(what: str, segments: Sequence[Segment], given: Mapping[str, Any], prefix: str) -> dict[str, str]:
    row = {}
    for segment in segments:
        text = given.get(f"{prefix}{segment.name}", "")
        if not isinstance(text, str):
            raise _bad(what, f"segment {segment.name} is {text!r}", "segments are texts")
        row[f"{prefix}{segment.name}"] = text
    return row


def _value(where: str, slot: Slot, value: Any) -> int | str:
    if slot.value == "int":
        return _int(where, value)
    if not isinstance(value, str):
        raise _bad(
            where,
            f"expected a text, got {value!r:.80} ({type(value).__name__})",
            "see the slot's type in the FeatureSpec",
        )
    return value


def _int(where: str, value: Any, hint: str = "see the slot's type in the FeatureSpec") -> int:
    # operator.index would take NumPy integers too; bool is an int by accident only.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _bad(where, f"expected an int, got {value!r:.80} ({type(value).__name__})", hint)
    number = int(value)
    if number not in _INT64:
        raise _bad(where, f"{number} does not fit 64 bits", "integers are signed 64-bit")
    return number


def _number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise _bad(
            where,
            f"expected a number, got {value!r:.80} ({type(value).__name__})",
            "see the slot's type in the FeatureSpec",
        )
    number = float(value)
    if not abs(number) <= _FLOAT32_MAX:
        raise _bad(where, f"{number} is not finite as float32", "numbers are finite float32")
    return number
