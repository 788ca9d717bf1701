"""Definitions: exported graphs as functions that run by name, each named by the hash of what it computes.

XLA's persistent cache finds an executable by its function's name among others. TensorFlow names functions by counters
of the process; under these names every process finds what any other compiled, whatever it made before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from streamlearn.errors import UsageError
from streamlearn.models import Graphs, PackedSide
from streamlearn.models.canonical import canonical_functions
from streamlearn.models.description import Description, TensorNote
from streamlearn.models.protocol import Tensor
from streamlearn.serving.graphs.ladder import Bucket
from streamlearn.serving.lanes.tf_calls import Kind, definitions_of, register

__all__ = ["Definition", "Definitions"]


@dataclass(frozen=True)
class Definition:
    """A graph as functions of the eager context: the weights one by one, then the inputs.

    Attributes:
        graph: Which.
        compiled: The function that XLA compiles for each shape it is called with.
        plain: The same, run as it is.
        inputs: What it takes after the weights.
        outputs: How many tensors it gives.
    """

    graph: Literal["user", "score"]
    compiled: bytes
    plain: bytes
    inputs: tuple[TensorNote, ...]
    outputs: int

    def check(self, kinds: Sequence[Kind]) -> None:
        """Refuse inputs that the graph does not take.

        Raises:
            UsageError: There are more or fewer, or one is of another type or width.
        """
        wanted = [(one.name, tf.as_dtype(one.dtype), one.shape) for one in self.inputs]
        found = [(tf.as_dtype(kind), shape) for kind, shape in kinds]
        is_fit = len(found) == len(wanted) and all(
            kind == wanted_kind and tf.TensorShape(wanted_shape).is_compatible_with(shape)
            for (kind, shape), (_, wanted_kind, wanted_shape) in zip(found, wanted, strict=True)
        )
        if not is_fit:
            takes = ", ".join(f"{name} {kind.name}{list(shape)}" for name, kind, shape in wanted)
            given = ", ".join(f"{kind.name}{list(shape)}" for kind, shape in found)
            message = f"the {self.graph} graph takes {takes}, but was given {given}"
            raise UsageError(message, help="pack the inputs that graphs.json of these graphs lists")


class Definitions:
    """The functions of exported graphs.

    Args:
        graphs: The graphs; they are not needed any more afterwards.
        users_max: To how many rows the user graph pads what it gives, so that the score graph is compiled for so many
            users and no other number.

    Attributes:
        described: What is known of the graphs.
        user: The user graph; None where there is none.
        score: The score graph.
        users_max: As given.
    """

    def __init__(self, graphs: Graphs, users_max: int) -> None:
        self.described: Description = graphs.described
        self.users_max = users_max
        weights, user, score = graphs.described.weights, graphs.described.user, graphs.described.score

        def user_padded(*given: Tensor) -> list[Tensor]:
            found = graphs.user(given[: len(weights)], _side("user", user, given[len(weights) :]))
            return [_padded(one, users_max) for one in found if one is not None]

        def scored(*given: Tensor) -> Tensor:
            named = dict(zip((one.name for one in score.inputs), given[len(weights) :], strict=True))
            of_user, of_item = (
                PackedSide(named.get(f"{side}_flat"), named.get(f"{side}_sequence")) for side in ("user", "item")
            )
            return graphs.score(given[: len(weights)], of_user, named["user_index"], of_item)

        self._length = int(self.described.pack["user"]["sequence_length"])
        self.user: Definition | None = None
        if user is not None:
            self.user = _define("user", user_padded, (weights, user.inputs), len(user.outputs))
        self.score = _define("score", scored, (weights, score.inputs), 1)

    def bucket(self, definition: Definition, kinds: Sequence[Kind]) -> Bucket | None:
        """What shape one of the graphs is called with; None where no executable could be of use to it."""
        shapes = {one.name: shape for one, (_, shape) in zip(definition.inputs, kinds, strict=True)}
        users = [shape[0] for name, shape in shapes.items() if name in ("user_flat", "user_sequence")]
        is_user = definition.graph == "user"
        if any(one > self.users_max if is_user else one != self.users_max for one in users):
            return None
        rows = users[0] if is_user else shapes["user_index"][0]
        length = shapes["user_sequence"][1] if "user_sequence" in shapes else self._length
        return Bucket(definition.graph, rows, length)


def _side(name: str, note: Any, tensors: Sequence[Tensor]) -> PackedSide:
    named = dict(zip((one.name for one in note.inputs), tensors, strict=True))
    return PackedSide(named.get(f"{name}_flat"), named.get(f"{name}_sequence"))


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """With rows of zeros; a tensor of more rows stays as it is."""
    missing = tf.maximum(rows - tf.shape(tensor)[0], 0)
    return tf.pad(tensor, [[0, missing]] + [[0, 0]] * (len(tensor.shape) - 1))


def _define(
    name: Literal["user", "score"],
    function: Callable[..., Any],
    takes: tuple[Sequence[TensorNote], Sequence[TensorNote]],
    outputs: int,
) -> Definition:
    weights, inputs = takes
    names = [*(f"weight_{at}" for at in range(len(weights))), *(one.name for one in inputs)]
    specs = [
        tf.TensorSpec(one.shape, one.dtype, name=named) for one, named in zip((*weights, *inputs), names, strict=True)
    ]
    concrete = tf.function(function, input_signature=specs, autograph=False).get_concrete_function()
    (plain,), functions = canonical_functions(definitions_of(concrete), {concrete.function_def.signature.name: name})
    by_name = {one.signature.name: one for one in functions}
    compiled = type(by_name[plain])()
    compiled.CopyFrom(by_name[plain])
    compiled.signature.name = f"compiled_{plain}"
    compiled.attr["_XlaMustCompile"].b = True
    register([*functions, compiled])
    return Definition(name, compiled.signature.name.encode(), plain.encode(), tuple(inputs), outputs)
