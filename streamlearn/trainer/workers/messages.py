"""Messages between the leader and its workers, as bytes: a head in MessagePack, then arrays one after another.

A leader answers what a worker asks; it never calls a worker. Both ends refuse what does not fit.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from streamlearn.errors import BadRecord
from streamlearn.ps.orders import Epoch
from streamlearn.samples import FeatureColumns, SlotColumns
from streamlearn.struct_decoder import packed_decoder_of
from streamlearn.trainer.columns import Inputs

__all__ = [
    "Answer", "Array", "Ask", "Group", "Idle", "Leave", "Members", "Message", "Report", "Setup", "Side", "SliceWork",
    "Welcome", "Who", "WorkerState", "arrays_of", "decode", "encode", "inputs_of",
]  # fmt: skip

Array: TypeAlias = npt.NDArray[Any]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Id: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{1,32}\Z")]
_Text: TypeAlias = Annotated[str, Meta(max_length=256)]
_Address: TypeAlias = Annotated[str, Meta(pattern=r"\A(?:[0-9.]{7,15}:[0-9]{1,5})?\Z")]
_Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
_KINDS = {"f4": np.float32, "u8": np.uint64, "i4": np.int32}
_SYMBOLS = {np.dtype(kind): symbol for symbol, kind in _KINDS.items()}
_ARRAYS_MAX, _DIMENSIONS_MAX = 8_192, 4
_LENGTH = struct.Struct("<I")
_ALIGN = 8


class Message(Struct, frozen=True, forbid_unknown_fields=True, tag_field="message"):
    """The head of a message."""


class Setup(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """What must be equal in all processes of a job, as digests."""

    settings: _Text  # of the release, the features and the settings
    bits: _Text  # of the gradients of fixed numbers; empty for a leader that learns nothing


class Ask(Message, frozen=True, tag="ask"):
    """A worker is there and asks for a slice.

    Attributes:
        worker: The client id of its connection, in hexadecimal.
        name: Its host and process, for people.
        setup: What must be equal in all processes of a job.
        number: Counts its questions: the same one, asked again, gets the same answer.
        session: The session that it has weights of; 0 for none.
        applied: The newest step that its weights have learned.
        leaves: Whether it only waits for the release of what it holds.
        address: Where TensorFlow's server will listen, if it asks who are the members of a group.
    """

    worker: _Id
    name: _Text
    setup: Setup
    number: _Count
    session: _Count = 0
    applied: _Count = 0
    leaves: bool = False
    address: _Address = ""


class Report(Message, frozen=True, tag="report"):
    """A worker has learned a slice: all shards have its rows and its part of the dense gradient.

    Its array is float32[rows, labels], the predictions.
    """

    worker: _Id
    session: _Count
    step: _Count
    slice: _Count
    loss: float
    is_finite: bool
    keys: _Count  # the rows that it pushed
    busy_s: _Seconds  # how long it worked on it


class Leave(Message, frozen=True, tag="leave"):
    """A worker asks for nothing more. `error` says why, if it cannot go on."""

    worker: _Id
    error: _Text = ""


class Who(Message, frozen=True, tag="who"):
    """Somebody wants to know who learns."""


class WorkerState(Struct, frozen=True, forbid_unknown_fields=True):
    """A worker, for metrics and people."""

    name: str
    slices: int  # how many it has learned
    slice_s: float  # the moving average of the time that it works on a slice
    held: int  # how many it has now


class Members(Message, frozen=True, tag="members"):
    """The answer to `Who`.

    Attributes:
        workers: The processes that learn slices now, the leader among them if it learns.
        wanted: How many there should be; 0 if that is not known.
        short_s: For how long there have been fewer; 0 if there are not.
    """

    workers: list[WorkerState]
    wanted: _Count = 0
    short_s: _Seconds = 0.0


class Welcome(Message, frozen=True, tag="welcome"):
    """The state of a job, for a worker that joins. Its arrays are the weights, then the optimizer's slots."""

    session: _Count
    epoch: Epoch
    applied: _Count
    steps: _Count  # the steps that the weights have learned in the life of the model
    slices: _Count


class Idle(Message, frozen=True, tag="idle"):
    """There is no slice now. `complete` and `released` are as in `SliceWork`."""

    session: _Count
    complete: _Count
    released: _Count


class Group(Message, frozen=True, tag="group"):
    """The members of a group, for a worker that waits for them, or that is none of them."""

    addresses: Annotated[list[_Address], Meta(max_length=128)]  # of TensorFlow's servers; empty if the group is over


class Side(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The names of a side's features, and which arrays each slot has."""

    slots: list[tuple[str, bool, bool]]  # the name, whether it has offsets, and whether it has weights
    dense: list[str]


class SliceWork(Message, frozen=True, tag="slice"):
    """A slice to learn. Its arrays are those of `arrays_of`.

    Attributes:
        complete: The newest step that all shards have in full.
        released: The newest step whose results may be given to the shards.
        step_rows: The rows of the whole step.
        now_ms: Table time.
    """

    session: _Count
    complete: _Count
    released: _Count
    step: _Count
    slice: _Count
    step_rows: _Count
    now_ms: int
    requests: _Count
    user: Side
    item: Side


Answer: TypeAlias = Welcome | Idle | SliceWork | Group
_Shape: TypeAlias = Annotated[list[_Count], Meta(max_length=_DIMENSIONS_MAX)]
_Shapes: TypeAlias = Annotated[list[tuple[Literal["f4", "u8", "i4"], _Shape]], Meta(max_length=_ARRAYS_MAX)]
_DECODERS = {
    "ask": packed_decoder_of(tuple[Ask | Report | Leave | Who, _Shapes]),
    "answer": packed_decoder_of(tuple[Welcome | Idle | SliceWork | Group | Members, _Shapes]),
}
_ENCODER = msgspec.msgpack.Encoder()


def encode(head: Message, arrays: Sequence[Array] = ()) -> bytes:
    """Return a message as bytes; arrays are float32, uint64 or int32."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    bytes_of_head = _ENCODER.encode((head, [(_SYMBOLS[array.dtype], array.shape) for array in arrays]))
    parts: list[Any] = [_LENGTH.pack(len(bytes_of_head)), bytes_of_head]
    at = _LENGTH.size + len(bytes_of_head)
    for array in arrays:
        parts += [bytes(-at % _ALIGN), array.data.cast("B") if array.size else b""]
        at += -at % _ALIGN + array.nbytes
    return b"".join(parts)


def decode(data: bytes, of: str) -> tuple[Any, list[Array]]:
    """Return the head and the arrays of an `ask` or an `answer`; anything else raises a BadRecord.

    The arrays are views of the bytes.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        head, shapes = _DECODERS[of].decode(memoryview(data)[_LENGTH.size : _LENGTH.size + length])
        return head, list(_arrays(data, _LENGTH.size + length, shapes))
    except (struct.error, msgspec.MsgspecError, ValueError, KeyError) as error:
        message = f"{len(data)} bytes are not a message of a leader or a worker: {error}"
        raise BadRecord(message, help="leader and workers must be of one release") from None


def _arrays(data: bytes, at: int, shapes: list[tuple[str, list[int]]]) -> Iterator[Array]:
    for symbol, shape in shapes:
        count, kind = math.prod(shape), np.dtype(_KINDS[symbol])
        at += -at % _ALIGN
        if count * kind.itemsize > len(data) - at:
            message = f"an array of shape {shape} does not fit"
            raise ValueError(message)
        yield np.frombuffer(data, kind, count, at).reshape(shape)
        at += count * kind.itemsize
    if at != len(data):
        message = f"{len(data) - at} bytes are left over"
        raise ValueError(message)


def arrays_of(inputs: Inputs) -> tuple[Side, Side, list[Array]]:
    """Return the names of both sides and all arrays of a slice, in the order in which `inputs_of` takes them."""
    arrays = [inputs.request_index, inputs.targets]
    return _side(inputs.user, arrays), _side(inputs.item, arrays), arrays


def _side(side: FeatureColumns, arrays: list[Array]) -> Side:
    slots = []
    for name, slot in side.slots.items():
        slots.append((name, slot.offsets is not None, slot.weights is not None))
        arrays += [array for array in (slot.keys, slot.offsets, slot.weights) if array is not None]
    arrays += side.dense.values()
    return Side(slots, list(side.dense))


def inputs_of(work: SliceWork, arrays: Sequence[Array]) -> Inputs:
    """Return the slice of a message; arrays that do not fit its head raise a BadRecord."""
    rest = iter(arrays)
    try:
        index, targets = next(rest), next(rest)
        user, item = _columns(work.user, rest), _columns(work.item, rest)
    except StopIteration:
        message = f"slice {work.slice} of step {work.step} has {len(arrays)} arrays, fewer than its head names"
        raise BadRecord(message, help="leader and workers must be of one release") from None
    return Inputs(work.requests, user, item, index, targets)


def _columns(side: Side, arrays: Iterator[Array]) -> FeatureColumns:
    def slot(has_offsets: bool, has_weights: bool) -> SlotColumns:
        keys = next(arrays)
        offsets = next(arrays) if has_offsets else None
        return SlotColumns(keys, offsets, next(arrays) if has_weights else None)

    slots = {name: slot(has_offsets, has_weights) for name, has_offsets, has_weights in side.slots}
    return FeatureColumns(slots, {name: next(arrays) for name in side.dense})
