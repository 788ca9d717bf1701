"""The computed columns of users as inputs of requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from streamlearn.features import Dense, FeatureSpec, Slot
from streamlearn.online import ComputedFeatures
from streamlearn.serving.infer import Tensor, numbers_tensor

__all__ = ["computed_inputs"]


def computed_inputs(read: FeatureSpec, found: ComputedFeatures) -> Iterator[tuple[Tensor, ...]]:
    """Yield the inputs of each user, of the columns that a model reads."""
    both: list[Slot | Dense] = [*read.slots_of("user"), *read.dense_of("user")]
    columns = [column for column in both if column.name in found.values]
    for row in range(len(found.outcomes)):
        yield tuple(_input(column, found.values[column.name][row]) for column in columns)


def _input(column: Slot | Dense, value: Any) -> Tensor:
    kind = np.int64 if isinstance(column, Slot) else np.float32
    return numbers_tensor(column.name, np.array(value, kind).reshape(-1))
