"""The messages of ModelInfer as protobuf's own library reads and writes them, and a node that speaks them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

__all__ = ["Node", "answer_class", "answer_of", "request_class", "serving"]

_FIELD = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "bool": _FIELD.TYPE_BOOL,
    "bytes": _FIELD.TYPE_BYTES,
    "double": _FIELD.TYPE_DOUBLE,
    "int64": _FIELD.TYPE_INT64,
    "string": _FIELD.TYPE_STRING,
    "uint64": _FIELD.TYPE_UINT64,
}
# Messages and their fields: number, name, type; a star where there are many.
_PARAMETERS = (4, "parameters", "*Entry")
_MESSAGES = {
    "Parameter": (
        (1, "bool_param", "bool"),
        (2, "int64_param", "int64"),
        (3, "string_param", "string"),
        (4, "double_param", "double"),
        (5, "uint64_param", "uint64"),
    ),
    "Entry": ((1, "key", "string"), (2, "value", "Parameter")),
    "Tensor": ((1, "name", "string"), (2, "datatype", "string"), (3, "shape", "*int64"), _PARAMETERS),
    "Request": (
        (1, "model_name", "string"),
        (2, "model_version", "string"),
        (3, "id", "string"),
        _PARAMETERS,
        (5, "inputs", "*Tensor"),
        (7, "raw_input_contents", "*bytes"),
    ),
    "Answer": (
        (1, "model_name", "string"),
        (2, "model_version", "string"),
        (3, "id", "string"),
        _PARAMETERS,
        (5, "outputs", "*Tensor"),
        (6, "raw_output_contents", "*bytes"),
    ),
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="inference.proto", package="inference", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind in fields:
            one = message.field.add(name=field, number=number)
            one.label = _FIELD.LABEL_REPEATED if kind.startswith("*") else _FIELD.LABEL_OPTIONAL
            kind = kind.removeprefix("*")
            if kind in _KINDS:
                one.type = _KINDS[kind]
            else:
                one.type, one.type_name = _FIELD.TYPE_MESSAGE, f".inference.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"inference.{name}")) for name in _MESSAGES
    }


_CLASSES = _classes()
request_class: Any = _CLASSES["Request"]
answer_class: Any = _CLASSES["Answer"]


def answer_of(model: str, version: str, outputs: dict[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """An answer's bytes: of each output its datatype, shape and raw values."""
    answer = _CLASSES["Answer"](model_name=model, model_version=version)
    for name, (datatype, shape, raw) in outputs.items():
        answer.outputs.add(name=name, datatype=datatype, shape=shape)
        answer.raw_output_contents.append(raw)
    whole: bytes = answer.SerializeToString()
    return whole


class Node:
    """Answers every request with an empty score, or refuses it; keeps what it was asked.

    Args:
        refuses: What it refuses each request with.
    """

    def __init__(self, refuses: grpc.StatusCode | None = None) -> None:
        self.address = ""
        self.asked: list[Any] = []
        self.metadata: dict[str, str] = {}
        self._refuses = refuses

    def answer(self, message: bytes, context: Any) -> bytes:
        """What a request is answered with."""
        self.asked.append(request_class.FromString(message))
        self.metadata = dict(context.invocation_metadata())
        if self._refuses is not None:
            context.abort(self._refuses, "as told")
        return answer_of(self.asked[-1].model_name, "7", {"click": ("FP32", (1,), bytes(4))})


@contextmanager
def serving(node: Node) -> Iterator[Node]:
    """The node at an address of its own, while the context lasts."""
    handler = grpc.method_handlers_generic_handler(
        "inference.GRPCInferenceService", {"ModelInfer": grpc.unary_unary_rpc_method_handler(node.answer)}
    )
    server = grpc.server(ThreadPoolExecutor(4), handlers=[handler])
    node.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield node
    finally:
        server.stop(None).wait()
