"""Dense: the dense weights of a version on the devices that score, as graphs take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from streamlearn.models.description import Description
from streamlearn.models.protocol import Tensor
from streamlearn.models.tf_calls import Place
from streamlearn.serving.graphs.tensors import tensor_of
from streamlearn.serving.lanes.slab import aligned

__all__ = ["Dense"]


class Dense:
    """The weights of one version, given by name, copied to each device of `places`."""

    def __init__(self, described: Description, named: Mapping[str, npt.NDArray[Any]], places: Iterable[Place]) -> None:
        self.described = described
        arrays = described.in_order(named)
        self._on: dict[str, tuple[Tensor, ...]] = {}
        for place in places:
            with tf.device(place.name):
                # Copied to aligned memory that only the tensor uses; for a GPU, TensorFlow copies it once more.
                self._on[place.name] = tuple(tf.identity(tensor_of(aligned(array))) for array in arrays)

    @classmethod
    def zeros(cls, described: Description, places: Iterable[Place]) -> Dense:
        """Return zeros, to compile and to measure with."""
        named = {note.name: np.zeros([size or 0 for size in note.shape], np.float32) for note in described.weights}
        return cls(described, named, places)

    def on(self, place: Place) -> tuple[Tensor, ...]:
        """Return the weights on a device, in the order of the graphs."""
        return self._on[place.name]
