"""TensorFlow's private calls, all that nodes and trainers make; a contract test fails if TensorFlow changes one.

The public calls look up functions and check and sort arguments every time. These take a function by its name and
tensors in a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, tensorflow_server_pb2
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.framework.ops import EagerTensor

from streamlearn.errors import ExecutionFailed, GroupLost, UsageError
from streamlearn.models.canonical import Proto
from streamlearn.models.protocol import Tensor

__all__ = [
    "Kind", "Place", "TracedFunction", "abort_collectives", "definitions_of", "join_cluster", "kind_of",
    "operations_of", "register",
]  # fmt: skip

# TensorFlow's number of a type, and a shape.
Kind: TypeAlias = tuple[int, tuple[int, ...]]
# The process's own config holds its devices and threads. The config is part of the cache's keys, so use a fixed one.
_CONFIG: bytes = config_pb2.ConfigProto(allow_soft_placement=True).SerializeToString(deterministic=True)

# Operations that call functions, which may branch or loop.
_BRANCHES = frozenset((
    "Case", "If", "PartitionedCall", "StatefulPartitionedCall", "StatelessCase", "StatelessIf", "StatelessWhile",
    "While",
))  # fmt: skip


class Place:
    """A device on which functions run, such as "/CPU:0"; `name` is its full name, `is_cpu` whether it is a CPU."""

    def __init__(self, device: str) -> None:
        eager = context.context()
        eager.ensure_initialized()
        with tf.device(device):
            self.name: str = eager.device_name
        self._handle = eager._handle
        self.is_cpu = ":CPU:" in self.name
        self._attributes = ("executor_type", "", "config_proto", _CONFIG)
        self._in_order = ("executor_type", "SINGLE_THREADED_EXECUTOR" if self.is_cpu else "", "config_proto", _CONFIG)

    def run(self, function: bytes, inputs: list[Tensor], outputs: int, *, in_order: bool = False) -> list[Tensor]:
        """Run a registered function that returns `outputs` tensors here; any thread may call.

        With `in_order`, a processor runs one operation after the other, without handing them to other threads. A
        function that branches or loops must not run so.

        Raises:
            ExecutionFailed: TensorFlow or XLA failed; the message has its reason.
        """
        try:
            tensors: list[Tensor] = pywrap_tfe.TFE_Py_Execute(
                self._handle, self.name, function, inputs, self._in_order if in_order else self._attributes, outputs
            )
        except tf.errors.OpError as error:
            message = f"{function.decode()} failed on {self.name}: {error.message}"
            raise ExecutionFailed(message) from None
        return tensors

    def lowered(
        self, function: bytes, inputs: Sequence[Tensor], captured: Sequence[Tensor] = (), *, stage: str
    ) -> bytes:
        """Return a registered function as XLA compiles it for inputs of these shapes; TensorFlow names the stages."""
        lowered: bytes | str = context.context().get_compiler_ir(
            self.name, None, function.decode(), list(inputs), list(captured), stage
        )
        return lowered.encode() if isinstance(lowered, str) else lowered

    def entered(self) -> AbstractContextManager[object]:
        """Return a context in which TensorFlow places tensors here by default, not on the first device."""
        device: AbstractContextManager[object] = tf.device(self.name)
        return device

    def tensors(self, arrays: Iterable[npt.NDArray[Any]]) -> list[Tensor]:
        """Return arrays as tensors here; they may share their memory, so do not change the arrays any more."""
        return [EagerTensor(array, self.name, None) for array in arrays]

    def wait(self) -> None:
        """Wait for all devices to finish; only a GPU may still have something to do."""
        if not self.is_cpu:
            tf.test.experimental.sync_devices()


class TracedFunction:
    """A function that was traced, with `captured`: the variables and constants that it uses besides its inputs."""

    def __init__(self, concrete: Any) -> None:
        self._concrete = concrete  # TensorFlow forgets the function with its last user
        self._name: bytes = concrete.function_def.signature.name.encode()
        self.captured: list[Tensor] = [*concrete.captured_inputs]
        self._outputs = len(concrete.outputs)
        self._branches = any(operation.type in _BRANCHES for operation in concrete.graph.get_operations())

    def run(
        self, place: Place, inputs: list[Tensor], *, is_small: bool = False, captured: list[Tensor] | None = None
    ) -> list[Tensor]:
        """Run it with its inputs in order, nested ones flat, as `Place.run` does; a small one in order if it can.

        Others may be given in place of what it captured.
        """
        in_order = is_small and not self._branches
        captured = self.captured if captured is None else captured
        return place.run(self._name, inputs + captured, self._outputs, in_order=in_order)

    def lowered(self, place: Place, inputs: Sequence[Tensor], stage: str) -> bytes:
        """See `Place.lowered`; the variables follow the inputs."""
        return place.lowered(self._name, inputs, self.captured, stage=stage)

    def operations(self) -> list[str]:
        """See `operations_of`."""
        return operations_of(self._name)


def operations_of(function: bytes) -> list[str]:
    """Return the types of a registered function's operations, with those of the functions that it calls."""
    return list(_operations(function.decode()))


def _operations(function: str) -> Iterator[str]:
    for node in context.context().get_function_def(function).node_def:
        yield node.op
        if "f" in node.attr:
            yield from _operations(node.attr["f"].func.name)


def definitions_of(concrete: Any) -> list[Proto]:
    """Return the definitions of a traced function and of all functions that it calls."""
    return [concrete.function_def, *concrete.graph.as_graph_def().library.function]


def register(definitions: Iterable[Proto]) -> None:
    """Register functions under their names; those that are registered already stay as they are."""
    eager = context.context()
    eager.ensure_initialized()
    for definition in definitions:
        if not eager.has_function(definition.signature.name):
            eager.add_function_def(definition)


def kind_of(tensor: Tensor) -> Kind:
    """Return a tensor's type and shape without creating TensorFlow's objects for them."""
    return tensor._datatype_enum(), tensor._shape_tuple()


def join_cluster(addresses: Sequence[str], own: int) -> None:
    """Make this process one of several that run collective operations together; `own` is its place in the addresses.

    TensorFlow then listens at the port of its address, on all interfaces.

    Raises:
        UsageError: TensorFlow has run operations in this process already.
        GroupLost: It cannot listen.
    """
    eager, leader, this = context.context(), "/job:worker/replica:0/task:0", f"/job:worker/task:{own}"
    if eager._context_handle is not None:
        message = "TensorFlow has begun already, and cannot become a part of a group any more"
        raise UsageError(message, help="let model.py create no tensors when it is imported")
    eager.configure_collective_ops(collective_leader=leader, device_filters=(this,))
    server = tensorflow_server_pb2.ServerDef(job_name="worker", task_index=own, protocol="grpc")
    server.cluster.job.add(name="worker", tasks=dict(enumerate(addresses)))
    server.default_session_config.CopyFrom(eager.config)
    eager.enable_collective_ops(server)
    try:
        eager.ensure_initialized()
    except tf.errors.OpError as error:
        message = f"TensorFlow cannot listen at {addresses[own]}: {error.message}"
        raise GroupLost(message, help="it is started again, with another port") from None


def abort_collectives(reason: str) -> None:
    """End the collective operations that wait for other processes, and let all further ones fail."""
    context.context().abort_collective_ops(tf.errors.CANCELLED, reason)
