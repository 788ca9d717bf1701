"""One event from plain Python values, checked against the application before it is written.

This is the convenient way; `EventEncoder` takes whole columns where speed matters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamlearn.apps import App
from streamlearn.errors import BadRecord
from streamlearn.events.rules import REQUEST_ID_BYTES_MAX, WEIGHT_MAX
from streamlearn.features import Dense, Segment, Slot
from streamlearn.features.entity import OUTCOMES
from streamlearn.schemas.events import library_keys, score_field
from streamlearn.settings.events import ITEM_ID_BYTES_MAX

__all__ = ["action_row", "impression_row", "item_row"]

_INT64 = range(-(2**63), 2**63)
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_COMPUTED = ("served_at_ms", "served_states", "served_position")
_SEE_SPEC = "see the slot's type in the FeatureSpec"


def impression_row(app: App, given: Mapping[str, Any], items_max: int) -> dict[str, Any]:
    """Return the Avro value of an impression.

    `given` holds request_id, event_time_ms, shown_wall_ms, served_version, user, items, segments and computed.
    `items_max` bounds the items, and the values of one slot.

    Raises:
        BadRecord: A value is missing, invalid or unknown, or there are too many; the message names it.
    """
    event = f"impression {given['request_id']!r}"
    items: Sequence[Mapping[str, Any]] = given["items"]
    if not 1 <= len(items) <= items_max:
        raise _bad(event, f"it has {len(items)} items", f"an impression has 1 to {items_max} items")
    row = _envelope(event, given, ("event_time_ms", "shown_wall_ms"))
    row["served_version"] = _optional_int(event, given, "served_version")
    row.update(_computed(app, event, given.get("computed") or {}))
    row.update(_request_segments(app, event, given["segments"] or {}))
    _require_mapping(event, "user", given["user"])
    user = _features(app, "user", event, given["user"], items_max)
    _check_history(app, event, user)
    if user:
        row["user"] = user
    row["items"] = [_item(app, f"{event}: item {index}", item, items_max) for index, item in enumerate(items)]
    return row


def action_row(app: App, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Avro value of an action; `given` holds its fields, perhaps without a value.

    Raises:
        BadRecord: A value is missing or invalid; the message names it.
    """
    event = f"action on {given['request_id']!r}"
    row = _envelope(event, given, ("event_time_ms",))
    row["item_id"] = _value(f"{event}: item_id", app.features.slot(app.features.item_id), given["item_id"])
    if not isinstance(given["action"], str) or not given["action"]:
        raise _bad(event, f"action is {given['action']!r}", "an action is a text such as 'click'")
    row["action"] = given["action"]
    row["weight"] = _number(f"{event}: weight", given["weight"])
    if not 0 <= row["weight"] <= WEIGHT_MAX:
        raise _bad(event, f"weight is {row['weight']}", f"a weight is at least 0 and at most {WEIGHT_MAX:,}")
    needing = app.number_actions
    if given.get("value") is not None:
        if not needing:
            raise _bad(event, "it has a value", f"no label of app {app.name!r} is a number: leave the value out")
        row["value"] = _number(f"{event}: value", given["value"])
    elif given["action"] in needing:
        raise _bad(event, f"action {given['action']!r} has no value", "a label is made of its value, so give one")
    return row


def item_row(app: App, given: Mapping[str, Any], items_max: int) -> dict[str, Any]:
    """Return the Avro value of an item of the library.

    `given` holds item_id, event_time_ms and features, None for an item that is removed. `items_max` bounds the values
    of one slot.

    Raises:
        BadRecord: A value is missing, invalid or unknown; the message names it.
    """
    event = f"item {given['item_id']!r:.80}"
    item_id = _value(f"{event}: item_id", app.features.slot(app.features.item_id), given["item_id"])
    _check_id(event, item_id)
    row: dict[str, Any] = {"item_id": item_id, "event_time_ms": _time(event, "event_time_ms", given), "features": None}
    if given["features"] is None:
        return row
    _require_mapping(event, "features", given["features"])
    row["features"] = _columns(event, app.features.of_library, given["features"], items_max)
    if unknown := given["features"].keys() - row["features"].keys():
        names = f"its features are {', '.join(row['features']) or 'none'}"
        raise _bad(event, f"unknown feature {min(unknown)!r}", names)
    return row


def _bad(where: str, problem: str, hint: str) -> BadRecord:
    return BadRecord(f"{where}: {problem}", help=hint)


def _wrong_type(where: str, expected: str, value: object, hint: str) -> BadRecord:
    return _bad(where, f"expected {expected}, got {value!r:.80} ({type(value).__name__})", hint)


def _require_mapping(where: str, field: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise _bad(where, f"{field} is {value!r:.80} ({type(value).__name__})", "a mapping by name")


def _is_list(values: Any) -> bool:
    return not isinstance(values, str | bytes) and hasattr(values, "__len__")


def _utf8_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))  # the encoder refuses surrogates


def _envelope(event: str, given: Mapping[str, Any], times: Sequence[str]) -> dict[str, Any]:
    request_id = given["request_id"]
    if not isinstance(request_id, str) or not 1 <= _utf8_bytes(request_id) <= REQUEST_ID_BYTES_MAX:
        raise _bad(event, f"request_id is {request_id!r}", f"a text of 1 to {REQUEST_ID_BYTES_MAX} bytes")
    row: dict[str, Any] = {"request_id": request_id}
    return row | {name: _time(event, name, given) for name in times}


def _time(event: str, name: str, given: Mapping[str, Any]) -> int:
    time_ms = _int(f"{event}: {name}", given[name], "milliseconds since 1970 UTC, a whole number")
    if name == "event_time_ms" and time_ms < 0:
        raise _bad(event, f"event_time_ms {time_ms} is before 1970", "milliseconds since 1970 UTC")
    return time_ms


def _check_id(where: str, item_id: int | str) -> None:
    if isinstance(item_id, str) and not 1 <= _utf8_bytes(item_id) <= ITEM_ID_BYTES_MAX:
        problem = f"the id of an item has {_utf8_bytes(item_id)} bytes"
        raise _bad(where, problem, f"give texts of 1 to {ITEM_ID_BYTES_MAX} bytes, so that a library can hold them")


def _computed(app: App, event: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that say how columns were computed."""
    _require_mapping(event, "computed", given)
    names = ("served_features", *_COMPUTED) if app.features.entities else ()
    if unknown := given.keys() - set(names):
        help = f"it has {', '.join(names)}" if names else f"no column of app {app.name!r} is computed"
        raise _bad(event, f"computed has {min(unknown)!r:.80}", help)
    if not names:
        return {}
    outcome = given.get("served_features") or ""
    if outcome not in ("", *OUTCOMES):
        raise _bad(event, f"served_features is {outcome!r:.80}", f"one of {', '.join(OUTCOMES)}")
    return {"served_features": outcome} | {name: _optional_int(event, given, name) for name in _COMPUTED}


def _request_segments(app: App, event: str, given: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    _require_mapping(event, "segments", given)
    segments = app.features.segments_of("user")
    names = [segment.name for segment in segments]
    if unknown := given.keys() - set(names):
        raise _bad(event, f"unknown user segment {min(unknown)!r}", f"the segments are {', '.join(names) or 'none'}")
    return {"segments": _texts(event, segments, given, "")} if segments else {}


def _item(app: App, where: str, item: Mapping[str, Any], values_max: int) -> dict[str, Any]:
    _require_mapping(where, "the item", item)
    segments = app.features.segments_of("item")
    scores = [score_field(label.name) for label in app.labels]
    others = {*scores, *(f"segment_{segment.name}" for segment in segments)}
    if app.features.entities:
        others.add("served_position")
    features = {name: value for name, value in item.items() if name not in others}
    row = _features(app, "item", where, features, values_max)
    if app.retrieval is not None:
        _check_id(where, row[app.features.item_id])
    row.update({name: [] for name in library_keys(app)})
    row.update(_texts(where, segments, item, "segment_"))
    if app.features.entities:
        row["served_position"] = _optional_int(where, item, "served_position")
    for name in scores:
        score = item.get(name)
        row[name] = None if score is None else _number(f"{where}: {name}", score)
    return row


def _features(app: App, side: Any, where: str, given: Mapping[str, Any], values_max: int) -> dict[str, Any]:
    row = _columns(where, (app.features.slots_of(side), app.features.dense_of(side)), given, values_max)
    if unknown := given.keys() - row.keys():
        raise _bad(where, f"unknown {side} feature {min(unknown)!r}", _known(app, side, list(row)))
    return row


def _columns(
    where: str, columns: tuple[Sequence[Slot], Sequence[Dense]], given: Mapping[str, Any], values_max: int
) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for slot in columns[0]:
        row.update(_slot(where, slot, given, values_max))
    for column in columns[1]:
        row[column.name] = _dense(where, column, given)
    return row


def _known(app: App, side: Any, names: list[str]) -> str:
    """Return the help for an unknown feature: the names that one side may have."""
    segments = [segment.name for segment in app.features.segments_of(side)]
    if side == "item":
        names += [f"segment_{name}" for name in segments]
        scores = ", ".join(score_field(label.name) for label in app.labels)
        return f"an item has {', '.join(names)}, and optionally {scores}"
    more = f"; pass the segments {', '.join(segments)} as segments=" if segments else ""
    return f"the features are {', '.join(names) or 'none'}{more}"


def _slot(where: str, slot: Slot, given: Mapping[str, Any], values_max: int) -> dict[str, Any]:
    name, column = slot.name, f"{where}: {slot.name}"
    if not slot.multi:
        value = given.get(name)
        value = slot.default if value is None else value
        if value is None:
            raise _bad(where, f"{name} is missing", "give it a value, or declare a default for the slot")
        return {name: _value(column, slot, value)}
    values = given.get(name, ())
    if not _is_list(values) or len(values) > values_max:
        raise _bad(where, f"{name} is {values!r:.80}", f"a list of at most {values_max} values")
    row: dict[str, Any] = {name: [_value(column, slot, value) for value in values]}
    if slot.pooling == "weighted":
        weights, hint = given.get(f"{name}_weights", ()), "give one weight for each value"
        if not _is_list(weights):
            raise _bad(where, f"{name}_weights is {weights!r:.80}", hint)
        if len(weights) != len(values):
            raise _bad(where, f"{name} has {len(values)} values and {len(weights)} weights", hint)
        row[f"{name}_weights"] = [_number(f"{column}_weights", weight) for weight in weights]
    return row


def _check_history(app: App, event: str, user: Mapping[str, Any]) -> None:
    lengths = {slot.name: len(user[slot.name]) for slot in app.features.slots_of("user") if slot.pooling == "sequence"}
    if len(set(lengths.values())) > 1:
        problem = ", ".join(f"{name} has {length} values" for name, length in lengths.items())
        raise _bad(event, problem, "sequence slots are columns of one history: they all have its length")


def _dense(where: str, column: Dense, given: Mapping[str, Any]) -> Any:
    name, width = column.name, column.width
    value = given.get(name)
    is_default = value is None
    value = column.default if is_default else value
    if value is None:
        raise _bad(where, f"{name} is missing", "give it a value, or declare a default for the dense column")
    if width == 1:
        return _number(f"{where}: {name}", value)
    numbers: Any = [value] * width if is_default else value
    if not _is_list(numbers):
        raise _bad(where, f"{name} is {numbers!r:.80}", f"give a list of {width} numbers")
    if len(numbers) != width:
        raise _bad(where, f"{name} has {len(numbers)} numbers", f"the column has {width} numbers")
    return [_number(f"{where}: {name}", number) for number in numbers]


def _texts(where: str, segments: Sequence[Segment], given: Mapping[str, Any], prefix: str) -> dict[str, str]:
    row = {}
    for segment in segments:
        text = given.get(f"{prefix}{segment.name}", "")
        if not isinstance(text, str):
            raise _bad(where, f"segment {segment.name} is {text!r}", "segments are texts")
        row[f"{prefix}{segment.name}"] = text
    return row


def _value(where: str, slot: Slot, value: Any) -> int | str:
    if slot.value == "int":
        return _int(where, value)
    if not isinstance(value, str):
        raise _wrong_type(where, "a text", value, _SEE_SPEC)
    return value


def _int(where: str, value: Any, hint: str = _SEE_SPEC) -> int:
    # NumPy integers have __index__ too; bool also has it, but is a mistake.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong_type(where, "an int", value, hint)
    number = int(value)
    if number not in _INT64:
        raise _bad(where, f"{number} does not fit 64 bits", "integers are signed 64-bit")
    return number


def _optional_int(where: str, given: Mapping[str, Any], name: str) -> int | None:
    value = given.get(name)
    return None if value is None else _int(f"{where}: {name}", value)


def _number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise _wrong_type(where, "a number", value, _SEE_SPEC)
    number = float(value)
    if not abs(number) <= _FLOAT32_MAX:
        raise _bad(where, f"{number} is not finite as float32", "numbers are finite float32")
    return number
