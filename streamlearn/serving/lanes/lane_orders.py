"""Lane orders: the messages between a node and its lane processes, each one packet of a Unix socket.

Orders and answers are JSON; work and scores are a few bytes. Tensors are in shared memory: messages only say where.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from streamlearn.serving.graphs.ladder import Bucket
from streamlearn.settings import ServingSettings
from streamlearn.struct_decoder import decoder_of

__all__ = [
    "PACKET_BYTES_MAX",
    "Drop",
    "LaneAnswer",
    "LaneStart",
    "LoadOrder",
    "Make",
    "Order",
    "TensorSpan",
    "failed",
    "read_order",
    "read_scored",
    "read_work",
    "scored",
    "work_packet",
]

# Longer packets are truncated.
PACKET_BYTES_MAX = 1 << 16
_ERROR_BYTES_MAX = 4_000
# The weights, and the number of tensors of the user graph and of both graphs.
_WORK = struct.Struct("<QBB")
# Of each tensor: its offset, the number of its dimensions, and these.
_TENSOR = struct.Struct("<QB3I")
# Whether the work was scored; rows and columns.
_SCORED = struct.Struct("<BII")


class LaneStart(Struct, frozen=True):
    """The settings of a lane process, and descriptors that it inherits.

    They are the sockets of orders and of work, the memory with the tensors of work, and the memory for scores.
    """

    settings: ServingSettings
    orders: int
    work: int
    slabs: int
    scores: int


class Make(Struct, frozen=True, tag=True):
    """Make the executables of the graphs in `folder`, which have the id `graph`, and perhaps measure their costs."""

    graph: str
    folder: str
    is_measured: bool


class LoadOrder(Struct, frozen=True, tag=True):
    """Load dense weights of the graphs with the id `graph`, and number them `weights`.

    The file that comes with the order holds them in the order of the description.
    """

    weights: int
    graph: str


class Drop(Struct, frozen=True, tag=True):
    """Free the dense weights with this number."""

    weights: int


Order: TypeAlias = Make | LoadOrder | Drop


class LaneAnswer(Struct, frozen=True):
    """The result of an order, or of the start.

    Attributes:
        error: Why it failed; empty otherwise.
        is_spent: Whether the process may not make as many executables as the order needs.
        compiles: The number of executables it made.
        compile_s: The time that took.
        costs: The cost of each bucket in microseconds.
    """

    error: str = ""
    is_spent: bool = False
    compiles: int = 0
    compile_s: float = 0.0
    costs: list[tuple[Bucket, float]] = []


_ORDERS = decoder_of(Order)


class TensorSpan(NamedTuple):
    """A tensor in shared memory: its offset in bytes, and its shape of at most three dimensions."""

    at: int
    shape: Sequence[int]


def read_order(data: bytes) -> Order:
    """Decode the packet of an order."""
    order: Order = _ORDERS.decode(data)
    return order


def work_packet(weights: int, user: Sequence[TensorSpan], score: Sequence[TensorSpan]) -> bytes:
    """Encode work: the number of its weights and the inputs of both graphs; those of `score` begin with `user_index`.

    Examples:
        >>> packet = work_packet(7, [], [TensorSpan(0, (4,)), TensorSpan(64, (4, 3))])
        >>> len(packet), read_work(packet)
        (52, (7, [], [TensorSpan(at=0, shape=(4,)), TensorSpan(at=64, shape=(4, 3))]))
    """
    parts = [_WORK.pack(weights, len(user), len(user) + len(score))]
    for at, shape in (*user, *score):
        parts.append(_TENSOR.pack(at, len(shape), *shape, *(0,) * (3 - len(shape))))
    return b"".join(parts)


def read_work(packet: bytes) -> tuple[int, list[TensorSpan], list[TensorSpan]]:
    """Decode the arguments of `work_packet`."""
    weights, users, tensors = _WORK.unpack_from(packet)
    spans = [
        TensorSpan(at, tuple(sizes[:dimensions]))
        for at, dimensions, *sizes in _TENSOR.iter_unpack(packet[_WORK.size :])
    ]
    assert len(spans) == tensors
    return weights, spans[:users], spans[users:]


def scored(rows: int, columns: int) -> bytes:
    """Encode the shape of scores that were written."""
    return _SCORED.pack(1, rows, columns)


def failed(error: str) -> bytes:
    """Encode why there are no scores."""
    return _SCORED.pack(0, 0, 0) + error.encode()[:_ERROR_BYTES_MAX]


def read_scored(packet: bytes) -> tuple[int, int] | str:
    """Decode the shape of scores, or why there are none."""
    is_scored, rows, columns = _SCORED.unpack_from(packet)
    return (rows, columns) if is_scored else packet[_SCORED.size :].decode(errors="replace")
