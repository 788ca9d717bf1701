"""TensorFlow's private calls that serving makes, all of them; a contract test says when TensorFlow changes one.

Public calls look functions up, check arguments and bring them into order at every call; what is called here takes a
function by its name and tensors in a list.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context

from streamlearn.errors import ExecutionFailed
from streamlearn.models.canonical import Proto
from streamlearn.models.protocol import Tensor

__all__ = ["Kind", "Place", "definitions_of", "kind_of", "register"]

# A type by TensorFlow's number for it, and a shape.
Kind: TypeAlias = tuple[int, tuple[int, ...]]
# The process's own, which TensorFlow would hand over, has its devices and threads in it; it is in the cache's keys.
_CONFIG: bytes = config_pb2.ConfigProto(allow_soft_placement=True).SerializeToString(deterministic=True)


class Place:
    """A device, and how functions run there.

    Args:
        device: TensorFlow's name of it, such as "/CPU:0".

    Attributes:
        name: Its whole name.
    """

    def __init__(self, device: str) -> None:
        known = context.context()
        known.ensure_initialized()
        with tf.device(device):
            self.name: str = known.device_name
        self._handle = known._handle
        self._is_cpu = ":CPU:" in self.name
        self._attributes = ("executor_type", "", "config_proto", _CONFIG)

    def run(self, function: bytes, inputs: list[Tensor], outputs: int) -> list[Tensor]:
        """Run a registered function here; whatever thread asks.

        Args:
            function: Its name.
            inputs: Its arguments, one by one.
            outputs: How many it gives.

        Raises:
            ExecutionFailed: TensorFlow or XLA says why.
        """
        try:
            found: list[Tensor] = pywrap_tfe.TFE_Py_Execute(
                self._handle, self.name, function, inputs, self._attributes, outputs
            )
        except tf.errors.OpError as error:
            message = f"{function.decode()} failed on {self.name}: {error.message}"
            raise ExecutionFailed(message) from None
        return found

    def entered(self) -> AbstractContextManager[object]:
        """What TensorFlow makes of a thread's own accord in it is made here too, and not on the first device."""
        found: AbstractContextManager[object] = tf.device(self.name)
        return found

    def wait(self) -> None:
        """Until all that was begun on any device is done; only a GPU has anything left to do by then."""
        if not self._is_cpu:
            tf.test.experimental.sync_devices()


def definitions_of(concrete: Any) -> list[Proto]:
    """The definition of a traced function and of all that it calls."""
    return [concrete.function_def, *concrete.graph.as_graph_def().library.function]


def register(definitions: Iterable[Proto]) -> None:
    """Let functions be run by their names; those that are known already are not touched."""
    known = context.context()
    known.ensure_initialized()
    for one in definitions:
        if not known.has_function(one.signature.name):
            known.add_function_def(one)


def kind_of(tensor: Tensor) -> Kind:
    """A tensor's type and shape, without making objects of TensorFlow's for them."""
    return tensor._datatype_enum(), tensor._shape_tuple()
