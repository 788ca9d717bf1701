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
    """Two graphs that were exported, called as a model's are.

    Args:
        described: What is known of them.
        user: The user graph, of flat arguments; None where there is none.
        score: The score graph, of flat arguments.
    """

    def __init__(self, described: Description, user: Any, score: Any) -> None:
        self.described = described
        self._user, self._score = user, score

    @property
    def weights_bytes(self) -> int:
        """How large the weights are."""
        return self.described.weights_bytes

    def weights(self, named: Mapping[str, npt.NDArray[Any]]) -> list[Tensor]:
        """The dense weights of a version, in the order both graphs take them.

        Args:
            named: The weights by name, as versions keep them.

        Raises:
            UsageError: One is missing, too many or of another shape.
        """
        return [tf.constant(one) for one in self.described.in_order(named)]

    def user(self, weights: Sequence[Tensor], inputs: PackedSide) -> PackedSide:
        """Once a request: what `score` takes of the user."""
        if self._user is None:
            return PackedSide(None, None)
        found = self._user(*weights, *_there(inputs))
        return PackedSide(found.get("flat"), found.get("sequence"))

    def score(self, weights: Sequence[Tensor], user: PackedSide, user_index: Tensor, inputs: PackedSide) -> Tensor:
        """Once a candidate: (N, labels) logits."""
        given = [*_there(user), tf.convert_to_tensor(user_index, tf.int32), *_there(inputs)]
        return self._score(*weights, *given)["scores"]


def load_graphs(folder: Path, *, compiled: bool = False) -> Graphs:
    """Load graphs that `export_graphs` wrote.

    Args:
        folder: Where they are.
        compiled: Whether XLA compiles them, once for each shape they are called with; as they are otherwise.

    Raises:
        BadRecord: The folder holds no exported graphs, or something that exported graphs do not have.
    """
    described = read_description(folder)
    check_saved_model(folder)
    # Graphs hold no variables; nothing is restored, and no initializer is run.
    options = tf.saved_model.LoadOptions(experimental_skip_checkpoint=True)
    try:
        found = tf.saved_model.load(str(folder), options=options)
        score = _callable(found.score, compiled)
        user = None if described.user is None else _callable(found.user, compiled)
    except Exception as error:  # TensorFlow raises what it likes for a graph that it cannot follow
        message = f"{folder} holds no graphs TensorFlow can load: {type(error).__name__}: {error}"
        raise BadRecord(message, help="export the graphs again, or restore them from the store") from error
    return Graphs(described, user, score)


def _callable(function: Any, compiled: bool) -> Any:
    # The one there is, called without looking for it among others.
    concrete = function.concrete_functions[0]
    if not compiled:
        return concrete
    specs = [tf.TensorSpec(one.shape, one.dtype, one.name.split(":")[0]) for one in concrete.inputs]
    return tf.function(lambda *given: concrete(*given), jit_compile=True, autograph=False).get_concrete_function(*specs)


def _there(side: PackedSide) -> list[Tensor]:
    return [tf.convert_to_tensor(one, tf.float32) for one in side if one is not None]
