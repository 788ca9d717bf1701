"""Requests: users and their candidates as columns of features, and the messages that carry them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.events.event import Columns
from streamlearn.features import Dense, FeatureSpec, Slot
from streamlearn.serving.infer import InferRequest, Tensor, numbers_tensor, texts_tensor

__all__ = ["LoadRequests", "candidate_counts"]

_Rows = tuple[int, int]
_SIGMA = 0.8


@dataclass(frozen=True)
class LoadRequests:
    """Requests, each with one user and some candidates.

    Attributes:
        user: Features of the users, one row a request. Columns have the names of event columns, without `user.`.
        item: Features of the candidates, request after request, named in the same way without `items.`.
        offsets: The first candidate of each request, and the end of the last one.
    """

    user: Columns
    item: Columns
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def candidates(self) -> npt.NDArray[np.int64]:
        """The number of candidates of each request."""
        return np.diff(self.offsets)

    def messages(self, features: FeatureSpec, model: str, version: str = "") -> list[bytes]:
        """Encode each request as a ModelInferRequest; the arguments are those of `requests`."""
        return [request.encode() for request in self.requests(features, model, version)]

    def requests(self, features: FeatureSpec, model: str, version: str = "") -> Iterator[InferRequest]:
        """Yield each request.

        Features without a column are left out, so the node uses their defaults. An empty version means the served one.
        """
        for row in range(len(self)):
            yield InferRequest(model, tuple(self.inputs(features, row)), version, f"load-{row}")

    def inputs(self, features: FeatureSpec, row: int) -> Iterator[Tensor]:
        """Yield the inputs of a request."""
        items = int(self.offsets[row]), int(self.offsets[row + 1])
        for slot in features.slots:
            if slot.side == "user" and slot.name in self.user:
                yield from _slot(self.user, slot, (row, row + 1))
            elif slot.side == "item" and slot.name in self.item:
                yield from _slot(self.item, slot, items)
        for column in features.dense:
            columns, rows = (self.user, (row, row + 1)) if column.side == "user" else (self.item, items)
            if column.name in columns:
                yield _numbers(columns, column, rows)


def _slot(columns: Columns, slot: Slot, rows: _Rows) -> Iterator[Tensor]:
    """Yield the values of a slot, before them the lengths per candidate and the weights, where it has such."""
    values = rows
    if slot.multi:
        offsets = columns[f"{slot.name}[]"]
        values = int(offsets[rows[0]]), int(offsets[rows[1]])
        if slot.side == "item":
            lengths = np.diff(offsets[rows[0] : rows[1] + 1]).astype(np.int32)
            yield numbers_tensor(f"{slot.name}.lengths", lengths)
        if slot.pooling == "weighted":
            weights = columns[f"{slot.name}_weights"][slice(*values)]
            yield numbers_tensor(f"{slot.name}.weights", weights.astype(np.float32, copy=False))
    if slot.value == "str":
        yield texts_tensor(slot.name, _texts(columns, slot.name, values))
    else:
        yield numbers_tensor(slot.name, columns[slot.name][slice(*values)].astype(np.int64, copy=False))


def _texts(columns: Columns, name: str, values: _Rows) -> list[bytes]:
    bounds = columns[f"{name}$"][values[0] : values[1] + 1].tolist()
    raw: npt.NDArray[Any] = columns[name]
    return [raw[begin:end].tobytes() for begin, end in pairwise(bounds)]


def _numbers(columns: Columns, column: Dense, rows: _Rows) -> Tensor:
    width = column.width
    values = columns[column.name].astype(np.float32, copy=False)[rows[0] * width : rows[1] * width]
    shape = (width,) if column.side == "user" else (rows[1] - rows[0], width)
    return numbers_tensor(column.name, values, shape)


def candidate_counts(
    mean: float, candidates_max: int, count: int, random: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw how many candidates each of `count` requests has: most have few, some have many.

    The numbers have a lognormal distribution of this mean, clipped to 1..candidates_max.
    """
    drawn = random.lognormal(np.log(mean) - _SIGMA**2 / 2, _SIGMA, count)
    return np.clip(np.rint(drawn), 1, candidates_max).astype(np.int64)
