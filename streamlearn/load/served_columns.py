"""Served columns: the computed columns of nodes' answers, as columns of the impressions that they are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.events.columns import text_columns
from streamlearn.events.event import Columns
from streamlearn.features import Dense, Slot
from streamlearn.load.requests import LoadRequests
from streamlearn.serving.infer import InferAnswer
from streamlearn.struct_decoder import from_json

__all__ = ["completed", "served_columns"]

Arrays = dict[str, npt.NDArray[Any]]
# A request without an answer has defaults too.
_UNANSWERED: Mapping[str, Any] = {"served_features": "unavailable", "user": {}, "items": ()}


def served_columns(app: App, impressions: Columns, answers: Sequence[Mapping[str, Any] | None]) -> Arrays:
    """Return the columns that impressions lack and their nodes computed, and what these came from.

    `answers` has the computed columns of each answer, in the form of its parameter `features`; None without an answer.
    """
    found = [_UNANSWERED if answer is None else answer for answer in answers]
    counts = np.diff(impressions["items[]"]).tolist()
    users = [answer.get("user", {}) for answer in found]
    items: list[Mapping[str, Any]] = []
    for answer, count in zip(found, counts, strict=True):
        items += list(answer.get("items") or [{}] * count)
    columns: Arrays = {}
    for entity in app.features.entities:
        rows, prefix = (users, "user") if entity.side == "user" else (items, "items")
        for column in entity.columns:
            path = f"{prefix}.{column.name}"
            if path not in impressions:
                columns |= _column(path, column, [row.get(column.name) for row in rows])
    columns |= text_columns("served_features", [answer.get("served_features", "") for answer in found])
    of_request = ("served_at_ms", "served_states", "served_position")
    for path, rows in (*((name, found) for name in of_request), ("items.served_position", items)):
        name = path.rpartition(".")[2]
        columns |= _optional(path, [row.get(name) for row in rows])
    return columns


def completed(app: App, message: bytes, answer: InferAnswer) -> bytes:
    """Return a request with the columns that a node computed for it, so that it gets the same answer again."""
    computed = from_json(answer.parameters.get("features", "{}"), dict[str, Any])
    if not computed.get("items"):
        return message
    offsets = np.array([0, len(computed["items"])])
    columns = served_columns(app, {"items[]": offsets}, [computed])
    is_away = computed["served_features"] == "unavailable"  # the defaults then
    given = computed["user"].keys() | computed["items"][0].keys()
    user, item = (
        {
            name.removeprefix(side): column
            for name, column in columns.items()
            if name.startswith(side) and (is_away or name.removeprefix(side).removesuffix("[]") in given)
        }
        for side in ("user.", "items.")
    )
    (request,) = LoadRequests(user, item, offsets).requests(app.features, "")
    return message + request.encode_inputs()


def _column(path: str, column: Slot | Dense, values: list[Any]) -> Arrays:
    """Return a column whose values are None where it has its default."""
    if isinstance(column, Slot) and column.multi:
        lists = [value or [] for value in values]
        return {
            path: np.array([one for values_of in lists for one in values_of], np.int64),
            f"{path}[]": _begins(list(map(len, lists))),
        }
    if isinstance(column, Slot):
        return {path: np.array([column.default if value is None else value for value in values], np.int64)}
    if column.width == 1:
        return {path: np.array([column.default if value is None else value for value in values], np.float32)}
    default = [column.default] * column.width
    numbers = [number for value in values for number in (default if value is None else value)]
    return {path: np.array(numbers, np.float32), f"{path}[]": _begins([column.width] * len(values))}


def _begins(counts: list[int]) -> npt.NDArray[np.int32]:
    return np.append(0, np.cumsum(counts)).astype(np.int32)


def _optional(path: str, values: list[int | None]) -> Arrays:
    return {path: np.array([value or 0 for value in values], np.int64),
            f"{path}?": np.array([value is not None for value in values], np.uint8)}  # fmt: skip
