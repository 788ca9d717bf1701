"""Interactions as the native code folds them, and entities that are evaluated in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.features import Entity
from streamlearn.features.column_values import ColumnArrays, column_arrays
from streamlearn.interactions.batch import InteractionBatch

__all__ = ["evaluated", "fold_columns", "kind_numbers"]

Int64s = npt.NDArray[np.int64]
# The kind of a row that is an evaluation.
_EVALUATION = 255


def kind_numbers(entity: Entity, batch: InteractionBatch) -> Int64s:
    """Return the kind of each interaction as a definition numbers it; -1 for another."""
    numbers = [entity.kinds.index(name) if name in entity.kinds else -1 for name in batch.kinds]
    return np.array(numbers, np.int64)[batch.kind]


def fold_columns(entity: Entity, batches: Sequence[InteractionBatch]) -> tuple[npt.NDArray[Any], ...]:
    """Return a row for each interaction of batches: times, identities, kinds, numbers and values.

    The values are those of the definition's sources, as it numbers them; 0 for one that a batch lacks.
    """
    values = []
    for batch in batches:
        columns = np.zeros((len(batch), len(entity.sources)), np.int64)
        for place, source in enumerate(entity.sources):
            if source in batch.sources:
                columns[:, place] = batch.values[:, batch.sources.index(source)]
        values.append(columns)
    return (
        np.ascontiguousarray(np.concatenate([batch.event_time_ms for batch in batches]), np.int64),
        np.concatenate([batch.identity for batch in batches]).astype(np.uint64),
        np.concatenate([kind_numbers(entity, batch) for batch in batches]).astype(np.uint8),
        np.concatenate([batch.number for batch in batches]).astype(np.float32),
        np.concatenate(values).view(np.uint64),
    )


def evaluated(
    entity: Entity,
    states: Any,
    done: tuple[Sequence[InteractionBatch], Int64s],
    asked: tuple[npt.NDArray[np.uint64], Int64s, Int64s],
) -> list[ColumnArrays]:
    """Fold interactions and evaluate entities in one order; return the columns of the latter, in the order asked.

    Args:
        entity: The definition.
        states: A `MemoryStates` of it.
        done: Batches of interactions, at least one, and the place of each interaction in the order. Those of other
            kinds or of no entity count nothing.
        asked: Keys, times of evaluation, and the place of each. Interactions at an equal place come first.
    """
    (batches, done_places), (keys, at_ms, places) = done, asked
    entities = np.concatenate([batch.user if entity.side == "user" else batch.item for batch in batches])
    kind = np.concatenate([kind_numbers(entity, batch) for batch in batches])
    rows = np.flatnonzero((kind >= 0) & (entities != 0))
    times, identities, kinds, numbers, values = (column[rows] for column in fold_columns(entity, batches))
    count, none = len(rows), np.zeros(len(keys))
    order = np.argsort(np.concatenate((done_places[rows], places)), kind="stable")

    def ordered(of_done: npt.NDArray[Any], of_asked: npt.NDArray[Any]) -> Any:
        return np.ascontiguousarray(np.concatenate((of_done, of_asked.astype(of_done.dtype)))[order])

    found = states.run(
        (
            ordered(entities[rows], keys),
            ordered(times, at_ms),
            ordered(identities, none),
            ordered(kinds, none + _EVALUATION),
            ordered(numbers, none),
            ordered(values, np.zeros((len(keys), values.shape[1]))).reshape(-1),
        )
    )
    back = np.empty(len(keys), np.int64)
    back[order[order >= count] - count] = np.arange(len(keys))
    columns = zip(entity.columns, found, strict=True)
    return [_taken(column_arrays(column, arrays, len(keys)), back) for column, arrays in columns]


def _taken(column: ColumnArrays, rows: Int64s) -> ColumnArrays:
    """Return some rows of a column."""
    values, begins = column
    if begins is None:
        return values[rows], None
    counts = np.diff(begins)[rows]
    ends = np.append(0, np.cumsum(counts))
    at = np.repeat(begins[rows] - ends[:-1], counts) + np.arange(ends[-1])
    return values[at], ends.astype(np.int32)
