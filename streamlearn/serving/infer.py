"""ModelInfer of the Open Inference Protocol: what is asked, as bytes, and what an answer's bytes hold."""

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

__all__ = ["InferAnswer", "InferRequest", "Parameter", "Tensor", "numbers_tensor", "texts_tensor"]

Parameter = bool | int | float | str

_DATATYPES = {"INT32": "<i4", "INT64": "<i8", "FP32": "<f4", "FP64": "<f8", "BOOL": "?"}
_HELP = "check that the other side runs a compatible version"
_NAMES = {np.dtype(kind): name for name, kind in _DATATYPES.items()}


@dataclass(frozen=True)
class Tensor:
    """A named array as the protocol carries it.

    Attributes:
        name: What the model calls it.
        datatype: "INT64", "FP32", "BYTES", ...
        shape: Its dimensions.
        raw: Its values end to end, little-endian; texts each behind four bytes that say how long it is.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes = field(repr=False)

    @property
    def numbers(self) -> npt.NDArray[Any]:
        """Its values, where they are numbers.

        Raises:
            BadRecord: They are none, or not as many as its shape says.
        """
        kind = _DATATYPES.get(self.datatype)
        is_shape = min(self.shape, default=0) >= 0
        if kind is None or not is_shape or len(self.raw) != math.prod(self.shape) * np.dtype(kind).itemsize:
            message = f"tensor {self.name!r} of {self.datatype}{list(self.shape)} has {len(self.raw)} bytes"
            raise BadRecord(message, help=_HELP)
        return np.frombuffer(self.raw, kind).reshape(self.shape)

    @property
    def values(self) -> list[Any]:
        """Its values one after another, as JSON has them: numbers, or texts.

        Raises:
            BadRecord: They are none.
        """
        if self.datatype != "BYTES":
            found: list[Any] = self.numbers.reshape(-1).tolist()
            return found
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
    """A tensor of numbers.

    Args:
        name: What the model calls it.
        values: int32, int64, float32, float64 or bool.
        shape: Its dimensions; those of `values` by default.
    """
    datatype = _NAMES[values.dtype.newbyteorder("<")]
    return Tensor(name, datatype, tuple(values.shape if shape is None else shape), values.tobytes())


def texts_tensor(name: str, texts: Sequence[bytes], shape: Sequence[int] | None = None) -> Tensor:
    """A tensor of texts.

    Args:
        name: What the model calls it.
        texts: Their UTF-8.
        shape: Its dimensions; one by default.
    """
    raw = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return Tensor(name, "BYTES", (len(texts),) if shape is None else tuple(shape), raw)


@dataclass(frozen=True)
class InferRequest:
    """A ModelInferRequest.

    Attributes:
        model: The model's name.
        inputs: What it is asked with.
        version: The version that is to answer; empty: the one that is served.
        id: What the caller names it.
        parameters: What is said beside the inputs.
    """

    model: str
    inputs: tuple[Tensor, ...]
    version: str = ""
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Its bytes."""
        parts = [nested(1, self.model.encode())]
        parts += [nested(number, text.encode()) for number, text in ((2, self.version), (3, self.id)) if text]
        parts += [nested(4, nested(1, name.encode()) + nested(2, _value(one))) for name, one in self.parameters.items()]
        parts += [nested(5, _head(one)) for one in self.inputs]
        parts += [nested(7, one.raw) for one in self.inputs]
        return b"".join(parts)

    @property
    def path(self) -> str:
        """Where it is posted over HTTP."""
        version = f"/versions/{quote(self.version, safe='')}" if self.version else ""
        return f"/v2/models/{quote(self.model, safe='')}{version}/infer"

    def body(self) -> bytes:
        """What is posted there: JSON."""
        inputs = [
            {"name": one.name, "datatype": one.datatype, "shape": one.shape, "data": one.values} for one in self.inputs
        ]
        said = {"id": self.id, "parameters": dict(self.parameters)}
        return msgspec.json.encode({name: one for name, one in said.items() if one} | {"inputs": inputs})


def _head(tensor: Tensor) -> bytes:
    return nested(1, tensor.name.encode()) + nested(2, tensor.datatype.encode()) + integers(3, tensor.shape)


def _value(value: Parameter) -> bytes:
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
    """What a ModelInferResponse holds.

    Attributes:
        model: The model that answered.
        version: The version that did.
        outputs: What it said, by name.
    """

    model: str
    version: str
    outputs: Mapping[str, Tensor]

    @classmethod
    def decode(cls, message: bytes) -> InferAnswer:
        """Read one whose outputs are raw, as servers answer raw requests.

        Raises:
            BadRecord: It is none, or its outputs are not raw.
        """
        texts = {1: "", 2: ""}
        heads: list[bytes] = []
        raws: list[bytes] = []
        for number, value in fields_of(message):
            if isinstance(value, bytes) and number in texts:
                texts[number] = _text(value)
            elif isinstance(value, bytes) and number in (5, 6):
                (heads if number == 5 else raws).append(value)
        if len(heads) != len(raws):
            found = f"an answer has {len(heads)} outputs but raw bytes for {len(raws)}"
            raise BadRecord(found, help="only outputs in raw_output_contents can be read")
        outputs = [_output(head, raw) for head, raw in zip(heads, raws, strict=True)]
        return cls(texts[1], texts[2], {one.name: one for one in outputs})


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        message = f"an answer has {len(value)} bytes that are not a text: {error}"
        raise BadRecord(message, help=_HELP) from None


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
