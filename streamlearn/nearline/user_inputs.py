"""The computed columns of users as inputs of requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from streamlearn.apps import App
from streamlearn.features import Dense, Slot
from streamlearn.online import ComputedFeatures
from streamlearn.serving.infer import Tensor, numbers_tensor

__all__ = ["computed_inputs"]


def computed_inputs(app: App, found: ComputedFeatures) -> Iterator[tuple[Tensor, ...]]:
    """Yield the inputs of each user, of the columns that the user tower reads."""
    assert app.towers is not None
    read: list[Slot | Dense] = [*app.towers.slots_of("user"), *app.towers.dense_of("user")]
    columns = [column for column in read if column.name in found.values]
    for row in range(len(found.outcomes)):
        yield tuple(_input(column, found.values[column.name][row]) for column in columns)


def _input(column: Slot | Dense, value: Any) -> Tensor:
    kind = np.int64 if isinstance(column, Slot) else np.float32
    return numbers_tensor(column.name, np.array(value, kind).reshape(-1))
