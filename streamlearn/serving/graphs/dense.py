"""Dense: a version's dense weights on the devices that score, as graphs take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from streamlearn.models.description import Description
from streamlearn.models.protocol import Tensor
from streamlearn.serving.graphs.tensors import tensor_of
from streamlearn.serving.lanes.slab import aligned
from streamlearn.serving.lanes.tf_calls import Place

__all__ = ["Dense"]


class Dense:
    """The weights of one version; made once, before it answers.

    Args:
        described: What the graphs take.
        named: The weights by name, as versions keep them; they are copied.
        places: The devices.

    Attributes:
        described: As given.

    Raises:
        UsageError: One is missing, too many or of another shape.
    """

    def __init__(self, described: Description, named: Mapping[str, npt.NDArray[Any]], places: Iterable[Place]) -> None:
        self.described = described
        arrays = described.in_order(named)
        self._on: dict[str, tuple[Tensor, ...]] = {}
        for place in places:
            with tf.device(place.name):
                # Copied to memory on a boundary, which nobody else knows; on a GPU once more, by TensorFlow.
                self._on[place.name] = tuple(tf.identity(tensor_of(aligned(one))) for one in arrays)

    @classmethod
    def zeros(cls, described: Description, places: Iterable[Place]) -> Dense:
        """Weights of no version: to compile with."""
        named = {one.name: np.zeros([size or 0 for size in one.shape], np.float32) for one in described.weights}
        return cls(described, named, places)

    def on(self, place: Place) -> tuple[Tensor, ...]:
        """The weights on a device, in the order graphs take them."""
        return self._on[place.name]
