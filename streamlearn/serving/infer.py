"""ModelInfer of the Open Inference Protocol for clients: requests are encoded, answers decoded."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.errors import BadRecord
from streamlearn.serving.protobuf import double, fields_of, integer, integers, integers_of, nested

__all__ = ["InferAnswer", "InferRequest", "Tensor", "numbers_tensor", "texts_tensor"]

_Parameter = bool | int | float | str

_DATATYPES = {"INT32": "<i4", "INT64": "<i8", "FP32": "<f4", "FP64": "<f8", "BOOL": "?"}
_HELP = "check that the other side runs a compatible version"
_NAMES = {np.dtype(kind): name for name, kind in _DATATYPES.items()}


@dataclass(frozen=True)
class Tensor:
    """A named array with a datatype such as "INT64", "FP32" or "BYTES".

    `raw` holds the values end to end, little-endian; each text follows four bytes with its length.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes = field(repr=False)

    @property
    def numbers(self) -> npt.NDArray[Any]:
        """The values of a tensor of numbers; raises BadRecord if they do not fit its datatype and shape."""
        kind = _DATATYPES.get(self.datatype)
        is_shape = min(self.shape, default=0) >= 0
        if kind is None or not is_shape or len(self.raw) != math.prod(self.shape) * np.dtype(kind).itemsize:
            message = f"tensor {self.name!r} of {self.datatype}{list(self.shape)} has {len(self.raw)} bytes"
            raise BadRecord(message, help=_HELP)
        try:
            return np.frombuffer(self.raw, kind).reshape(self.shape)
        except ValueError as error:  # no values in more dimensions, or larger ones, than NumPy has
            message = f"tensor {self.name!r} has a shape that no array has: {error}"
            raise BadRecord(message, help=_HELP) from None

    @property
    def values(self) -> list[Any]:
        """The values as a flat list for JSON, numbers or texts; raises BadRecord if they are neither."""
        if self.datatype != "BYTES":
            numbers: list[Any] = self.numbers.reshape(-1).tolist()
            return numbers
        texts, at = [], 0
        while at < len(self.raw):
            end = at + 4 + int.from_bytes(self.raw[at : at + 4], "little")
            if end > len(self.raw):
                message = f"tensor {self.name!r} ends inside a text, at byte {len(self.raw)} of {end}"
                raise BadRecord(message, help=_HELP)
            texts.append(_text(self.raw[at + 4 : end]))
            at = end
        return texts


def numbers_tensor(name: str, values: npt.NDArray[Any], shape: Sequence[int] | None = None) -> Tensor:
    """Make a tensor of int32, int64, float32, float64 or bool; its shape is that of `values` by default."""
    datatype = _NAMES[values.dtype.newbyteorder("<")]
    return Tensor(name, datatype, tuple(values.shape if shape is None else shape), values.tobytes())


def texts_tensor(name: str, texts: Sequence[bytes], shape: Sequence[int] | None = None) -> Tensor:
    """Make a tensor of UTF-8 texts; it has one dimension by default."""
    raw = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return Tensor(name, "BYTES", (len(texts),) if shape is None else tuple(shape), raw)


@dataclass(frozen=True)
class InferRequest:
    """A ModelInferRequest; an empty `version` means the served one, and `id` is the caller's."""

    model: str
    inputs: tuple[Tensor, ...]
    version: str = ""
    id: str = ""
    parameters: Mapping[str, _Parameter] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Encode the request for gRPC."""
        parts = [nested(1, self.model.encode())]
        parts += [nested(number, text.encode()) for number, text in ((2, self.version), (3, self.id)) if text]
        parts += [
            nested(4, nested(1, name.encode()) + nested(2, _value(value))) for name, value in self.parameters.items()
        ]
        return b"".join(parts) + self.encode_inputs()

    def encode_inputs(self) -> bytes:
        """Encode the inputs alone; appended to an encoded request they are further inputs of it."""
        heads = [nested(5, _head(tensor)) for tensor in self.inputs]
        return b"".join([*heads, *(nested(7, tensor.raw) for tensor in self.inputs)])

    @property
    def path(self) -> str:
        """The path to post the request to over HTTP."""
        version = f"/versions/{quote(self.version, safe='')}" if self.version else ""
        return f"/v2/models/{quote(self.model, safe='')}{version}/infer"

    def body(self) -> bytes:
        """Encode the request as JSON, to post over HTTP."""
        inputs = [
            {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, "data": tensor.values}
            for tensor in self.inputs
        ]
        optional = {"id": self.id, "parameters": dict(self.parameters)}
        return msgspec.json.encode({name: value for name, value in optional.items() if value} | {"inputs": inputs})


def _head(tensor: Tensor) -> bytes:
    return nested(1, tensor.name.encode()) + nested(2, tensor.datatype.encode()) + integers(3, tensor.shape)


def _value(value: _Parameter) -> bytes:
    match value:
        case bool():
            return integer(1, value)
        case int():
            return integer(2, value)
        case float():
            return double(4, struct.pack("<d", value))
        case str():
            return nested(3, value.encode())


@dataclass(frozen=True)
class InferAnswer:
    """A ModelInferResponse: the model and the version that answered, outputs by name, and parameters.

    Parameters are those that are texts or whole numbers, as texts.
    """

    model: str
    version: str
    outputs: Mapping[str, Tensor]
    parameters: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def decode(cls, message: bytes) -> InferAnswer:
        """Decode a response with raw outputs, which servers send to raw requests.

        Raises:
            BadRecord: It is not a response, or its outputs are not raw.
        """
        texts = {1: "", 2: ""}
        heads: list[bytes] = []
        raws: list[bytes] = []
        parameters: dict[str, str] = {}
        for number, value in fields_of(message):
            if isinstance(value, bytes) and number in texts:
                texts[number] = _text(value)
            elif isinstance(value, bytes) and number in (5, 6):
                (heads if number == 5 else raws).append(value)
            elif isinstance(value, bytes) and number == 4:
                parameters |= _text_parameter(value)
        if len(heads) != len(raws):
            reason = f"an answer has {len(heads)} outputs but raw bytes for {len(raws)}"
            raise BadRecord(reason, help="only outputs in raw_output_contents can be read")
        outputs = [_output(head, raw) for head, raw in zip(heads, raws, strict=True)]
        return cls(texts[1], texts[2], {output.name: output for output in outputs}, parameters)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        message = f"an answer has {len(value)} bytes that are not a text: {error}"
        raise BadRecord(message, help=_HELP) from None


def _text_parameter(entry: bytes) -> dict[str, str]:
    """Return a parameter that is a text or a whole number, by its name; nothing for another one."""
    parts = {number: value for number, value in fields_of(entry) if isinstance(value, bytes)}
    name, found = _text(parts.get(1, b"")), dict[str, str]()
    for number, value in fields_of(parts.get(2, b"")):
        if number == 3 and isinstance(value, bytes):
            found[name] = _text(value)
        elif number == 2 and isinstance(value, int):
            found[name] = str(value)
    return found


def _output(head: bytes, raw: bytes) -> Tensor:
    name, datatype, shape = "", "", []
    for number, value in fields_of(head):
        if number == 1 and isinstance(value, bytes):
            name = _text(value)
        elif number == 2 and isinstance(value, bytes):
            datatype = _text(value)
        elif number == 3:
            shape += integers_of(value)
    return Tensor(name, datatype, tuple(shape), raw)
