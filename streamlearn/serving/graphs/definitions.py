"""Definitions: exported graphs as functions that run by name. The name is a hash of the computation.

XLA's persistent cache finds an executable by its function's name, among other things. TensorFlow names functions with
counters of the process; with hashes, every process finds what any other compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf
from msgspec import structs

from streamlearn.errors import UsageError
from streamlearn.models import Graphs, PackedSide
from streamlearn.models.canonical import canonical_functions
from streamlearn.models.description import Description, TensorNote
from streamlearn.models.protocol import Tensor
from streamlearn.models.tf_calls import Kind, definitions_of, register
from streamlearn.serving.graphs.ladder import Bucket

__all__ = ["Definition", "Definitions"]


@dataclass(frozen=True)
class Definition:
    """A graph as functions of the eager context, which take the weights one by one, then the inputs.

    XLA compiles the function named `compiled` for each shape; the one named `plain` runs uncompiled. Both return
    `outputs` tensors.
    """

    graph: Literal["user", "score"]
    compiled: bytes
    plain: bytes
    inputs: tuple[TensorNote, ...]
    outputs: int

    def check(self, kinds: Sequence[Kind]) -> None:
        """Check the types and shapes of inputs."""
        expected = [(note.name, tf.as_dtype(note.dtype), note.shape) for note in self.inputs]
        actual = [(tf.as_dtype(kind), shape) for kind, shape in kinds]
        is_fit = len(actual) == len(expected) and all(
            kind == expected_kind and tf.TensorShape(expected_shape).is_compatible_with(shape)
            for (kind, shape), (_, expected_kind, expected_shape) in zip(actual, expected, strict=True)
        )
        if not is_fit:
            takes = ", ".join(f"{name} {kind.name}{list(shape)}" for name, kind, shape in expected)
            given = ", ".join(f"{kind.name}{list(shape)}" for kind, shape in actual)
            message = f"the {self.graph} graph takes {takes}, but was given {given}"
            raise UsageError(message, help="pack the inputs that graphs.json of these graphs lists")


class Definitions:
    """The functions of exported graphs, which are not needed afterwards.

    With `has_long_index` the score graph takes `user_index` as int64: on GPUs TensorFlow keeps int32 tensors in host
    memory when it runs operations one by one, and in the GPU's memory when XLA compiled them. int64 has one place.

    The user graph, if any, pads its outputs to `users_max` rows, so that the score graph is compiled for this number of
    users alone.
    """

    def __init__(self, graphs: Graphs, users_max: int, *, has_long_index: bool = False) -> None:
        self.described: Description = graphs.described
        self.users_max = users_max
        weights, user, score = graphs.described.weights, graphs.described.user, graphs.described.score

        def user_padded(*arguments: Tensor) -> list[Tensor]:
            assert user is not None
            named = _by_name(user.inputs, arguments[len(weights) :])
            outputs = graphs.user(arguments[: len(weights)], _side("user", named))
            return [_padded(output, users_max) for output in outputs if output is not None]

        def scored(*arguments: Tensor) -> Tensor:
            named = _by_name(score.inputs, arguments[len(weights) :])
            sides = _side("user", named), tf.cast(named["user_index"], tf.int32), _side("item", named)
            return graphs.score(arguments[: len(weights)], *sides)

        self._length = int(self.described.pack["user"]["sequence_length"])
        self.user: Definition | None = None
        if user is not None:
            self.user = _define("user", user_padded, (weights, user.inputs), len(user.outputs))
        inputs = [_long(note) if has_long_index else note for note in score.inputs]
        self.score = _define("score", scored, (weights, inputs), 1)

    def bucket(self, definition: Definition, kinds: Sequence[Kind]) -> Bucket | None:
        """Return the shape of a call; None if no executable could ever serve it."""
        shapes = {note.name: shape for note, (_, shape) in zip(definition.inputs, kinds, strict=True)}
        users = [shape[0] for name, shape in shapes.items() if name in ("user_flat", "user_sequence")]
        is_user = definition.graph == "user"
        if any(rows > self.users_max if is_user else rows != self.users_max for rows in users):
            return None
        rows = users[0] if is_user else shapes["user_index"][0]
        length = shapes["user_sequence"][1] if "user_sequence" in shapes else self._length
        return Bucket(definition.graph, rows, length)


def _long(note: TensorNote) -> TensorNote:
    return structs.replace(note, dtype="int64") if note.name == "user_index" else note


def _by_name(notes: Sequence[TensorNote], tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return dict(zip((note.name for note in notes), tensors, strict=True))


def _side(name: str, named: dict[str, Tensor]) -> PackedSide:
    return PackedSide(named.get(f"{name}_flat"), named.get(f"{name}_sequence"))


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """Append rows of zeros; a tensor with more rows stays as it is."""
    missing = tf.maximum(rows - tf.shape(tensor)[0], 0)
    return tf.pad(tensor, [[0, missing]] + [[0, 0]] * (len(tensor.shape) - 1))


def _define(
    name: Literal["user", "score"],
    function: Callable[..., Any],
    takes: tuple[Sequence[TensorNote], Sequence[TensorNote]],
    outputs: int,
) -> Definition:
    weights, inputs = takes
    names = [*(f"weight_{at}" for at in range(len(weights))), *(note.name for note in inputs)]
    specs = [
        tf.TensorSpec(note.shape, note.dtype, name=argument)
        for note, argument in zip((*weights, *inputs), names, strict=True)
    ]
    concrete = tf.function(function, input_signature=specs, autograph=False).get_concrete_function()
    (plain,), functions = canonical_functions(definitions_of(concrete), {concrete.function_def.signature.name: name})
    by_name = {function.signature.name: function for function in functions}
    compiled = type(by_name[plain])()
    compiled.CopyFrom(by_name[plain])
    compiled.signature.name = f"compiled_{plain}"
    compiled.attr["_XlaMustCompile"].b = True
    register([*functions, compiled])
    return Definition(name, compiled.signature.name.encode(), plain.encode(), tuple(inputs), outputs)
