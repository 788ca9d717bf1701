"""Exported graphs, loaded: two functions of weights and packed inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from streamlearn.errors import BadRecord
from streamlearn.models.admission import check_saved_model
from streamlearn.models.description import Description, read_description
from streamlearn.models.protocol import PackedSide, Tensor

__all__ = ["Graphs", "load_graphs"]


class Graphs:
    """Two loaded graphs, called like those of a model. `user` is None if there is no such graph."""

    def __init__(self, described: Description, user: Any, score: Any) -> None:
        self.described = described
        self._user, self._score = user, score

    @property
    def weights_bytes(self) -> int:
        """The size of the weights."""
        return self.described.weights_bytes

    def weights(self, named: Mapping[str, npt.NDArray[Any]]) -> list[Tensor]:
        """Return a version's dense weights in the order of the graphs' arguments; wrong ones raise a UsageError."""
        return [tf.constant(weight) for weight in self.described.in_order(named)]

    def user(self, weights: Sequence[Tensor], inputs: PackedSide) -> PackedSide:
        """Return what `score` takes of the user; called once a request."""
        if self._user is None:
            return PackedSide(None, None)
        outputs = self._user(*weights, *_tensors(inputs))
        return PackedSide(outputs.get("flat"), outputs.get("sequence"))

    def score(self, weights: Sequence[Tensor], user: PackedSide, user_index: Tensor, inputs: PackedSide) -> Tensor:
        """Return (N, labels) logits; called once a candidate."""
        given = [*_tensors(user), tf.convert_to_tensor(user_index, tf.int32), *_tensors(inputs)]
        return self._score(*weights, *given)["scores"]


def load_graphs(folder: Path) -> Graphs:
    """Load graphs that `export_graphs` wrote.

    Raises:
        BadRecord: The folder holds no exported graphs, or something that exported graphs do not have.
    """
    described = read_description(folder)
    check_saved_model(folder)
    # Graphs hold no variables: nothing is restored, and no initializer runs.
    options = tf.saved_model.LoadOptions(experimental_skip_checkpoint=True)
    try:
        loaded = tf.saved_model.load(str(folder), options=options)
        # The only concrete function is called directly, which skips TensorFlow's dispatch.
        score = loaded.score.concrete_functions[0]
        user = None if described.user is None else loaded.user.concrete_functions[0]
    except Exception as error:  # TensorFlow raises errors of any type for a broken graph
        message = f"{folder} holds no graphs TensorFlow can load: {type(error).__name__}: {error}"
        raise BadRecord(message, help="export the graphs again, or restore them from the store") from error
    return Graphs(described, user, score)


def _tensors(side: PackedSide) -> list[Tensor]:
    return [tf.convert_to_tensor(block, tf.float32) for block in side if block is not None]
