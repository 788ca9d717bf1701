"""Checks of graphs: that they depend on their arguments alone, and that XLA compiles them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from streamlearn.errors import SpecError
from streamlearn.features import FeatureSpec
from streamlearn.models.description import TensorNote
from streamlearn.models.graph_trace import Traced
from streamlearn.models.operations import ALLOWED
from streamlearn.models.protocol import Model, Tensor

__all__ = ["check_compiled", "check_graph", "check_weights_used"]

_USERS, _CANDIDATES = 2, 3
# TensorFlow calls these stateful for the functions they may hold, which are checked themselves.
_STATELESS = {"Assert", "Case", "If", "PartitionedCall", "Placeholder", "StatefulPartitionedCall", "While"}
_UNSUPPORTED = re.compile(r"unsupported operations.*? on \w+: (.*?)(?:\{\{|\n|$)", re.DOTALL)
_OPERATION = re.compile(r"(\w+) \(No registered")


def check_graph(model: Model, graph: Traced) -> None:
    """Raise a SpecError if a graph closes over a tensor or variable, or has operations with state or randomness."""
    what = f"{graph.name} of {type(model).__name__}"
    captured = [_captured(graph.concrete, captured_input) for captured_input in graph.concrete.captured_inputs]
    if captured:
        message = (
            f"{what} closes over {len(captured)} tensors instead of taking them as arguments: {'; '.join(captured)}"
        )
        hint = (
            "return learned values from `build` and take them from `weights`, otherwise every later version "
            "serves the old values; make a constant from Python or NumPy numbers inside the graph"
        )
        raise SpecError(message, help=hint)
    stateful = sorted({op for op in _operations(graph.concrete.graph.as_graph_def()) if _is_stateful(op)})
    if stateful:
        message = f"{what} has operations with state, chance or side effects: {', '.join(stateful)}"
        help = "a graph must give the same result for the same arguments and have no side effects"
        raise SpecError(message, help=help)


def check_weights_used(model: Model, weights: Sequence[TensorNote], graphs: Sequence[Traced]) -> None:
    """Raise a SpecError for a weight that no graph uses: the graphs must have taken its value from elsewhere."""
    idle = [
        weight.name
        for at, weight in enumerate(weights)
        if not any(graph.concrete.inputs[at].consumers() for graph in graphs)
    ]
    if idle:
        message = f"no graph of {type(model).__name__} uses the weights {', '.join(idle)}"
        hint = "use them from the `weights` argument of user and score, or remove them from `build`"
        raise SpecError(message, help=hint)


def check_compiled(
    model: Model, features: FeatureSpec, weights: Sequence[TensorNote], graphs: Sequence[Traced]
) -> None:
    """Compile graphs with XLA for a few rows, and run them.

    Raises:
        SpecError: XLA refuses an operation, which the message names; or serving nodes would; or the number of output
            rows is wrong.
    """
    length = max(1, features.pack.user.sequence_length // 2)
    for graph in graphs:
        rows = _USERS if graph.name == "user" else _CANDIDATES
        arguments = [tf.zeros(note.shape) for note in weights]
        arguments += [_zeros(note, rows, length) for note in graph.note.inputs]
        what = f"{graph.name} of {type(model).__name__}"
        for name, output in _run_compiled(what, graph.concrete, arguments).items():
            if output.shape[0] != rows:
                message = f"{what} returns `{name}` with {output.shape[0]} rows for {rows} input rows"
                raise SpecError(message, help="return one row for each input row")
        if refused := set(_operations(graph.concrete.graph.as_graph_def())) - ALLOWED:
            message = f"{what} has operations that nodes refuse to load: {', '.join(sorted(refused))}"
            raise SpecError(message, help="use TensorFlow operations that compute numbers from numbers")


def _run_compiled(what: str, concrete: Any, arguments: Sequence[Tensor]) -> dict[str, Tensor]:
    compiled = tf.function(lambda *given: concrete(*given), jit_compile=True, autograph=False)
    try:
        outputs: dict[str, Tensor] = compiled.get_concrete_function(*arguments)(*arguments)
    except tf.errors.OpError as error:
        message = f"XLA refuses {what}: {_reason(error.message)}"
        hint = (
            "serving compiles whole graphs: use operations that XLA supports, with static shapes except for "
            "the number of rows"
        )
        raise SpecError(message, help=hint) from error
    return outputs


def _reason(message: str) -> str:
    match = _UNSUPPORTED.search(message)
    if match is None:
        return message.strip().splitlines()[0]
    names = _OPERATION.findall(match[1])
    return f"it has no {', '.join(dict.fromkeys(names))}" if names else match[1].strip()


def _zeros(note: TensorNote, rows: int, length: int) -> Tensor:
    given = _USERS if note.name in ("user_flat", "user_sequence") else rows
    sizes = [given, length]
    return tf.zeros([sizes[at] if size is None else size for at, size in enumerate(note.shape)], note.dtype)


def _captured(concrete: Any, tensor: Any) -> str:
    for variable in concrete.graph.variables:
        if variable.handle is tensor:
            return f"the variable {variable.name} of shape {tuple(variable.shape)}"
    return f"a {tensor.dtype.name} tensor of shape {tuple(tensor.shape)}"


def _operations(graph: Any) -> Iterator[str]:
    yield from (node.op for node in graph.node)
    for function in graph.library.function:
        yield from (node.op for node in function.node_def)


def _is_stateful(operation: str) -> bool:
    known = op_def_registry.get(operation)
    return known is not None and known.is_stateful and operation not in _STATELESS
