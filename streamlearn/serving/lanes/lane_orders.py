"""What a node and its lane processes say to each other: orders and answers in JSON, work and scores in a few bytes.

Tensors lie in memory that both have: only where they begin is said. A message is one packet of a Unix socket.
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
    "Birth",
    "Drop",
    "LaneAnswer",
    "LoadOrder",
    "Lying",
    "Make",
    "Order",
    "failed",
    "read_order",
    "read_scored",
    "read_work",
    "scored",
    "work_packet",
]

# Whoever has more to say is cut.
PACKET_BYTES_MAX = 1 << 16
_SAID_MAX = 4_000
# Weights, and how many tensors the user graph and both graphs take; of each: where, how many sizes, and these.
_WORK = struct.Struct("<QBB")
_TENSOR = struct.Struct("<QB3I")
# Whether it was scored; rows and columns.
_SCORED = struct.Struct("<BII")


class Birth(Struct, frozen=True):
    """What a lane process is started with: files by their numbers, which it inherits.

    Attributes:
        settings: Its settings.
        orders: The socket of orders.
        work: The socket of work.
        slabs: The memory that work lies in, which it reads.
        scores: The memory that it writes scores to.
    """

    settings: ServingSettings
    orders: int
    work: int
    slabs: int
    scores: int


class Make(Struct, frozen=True, tag=True):
    """Make the executables of a ladder.

    Attributes:
        graph: The id of the graphs.
        folder: Where they are.
        is_measured: Whether costs are wanted.
    """

    graph: str
    folder: str
    is_measured: bool


class LoadOrder(Struct, frozen=True, tag=True):
    """Load dense weights; they come as a file with the order, one after another in the order of the description.

    Attributes:
        weights: What they are called from now on.
        graph: The graphs they are for.
    """

    weights: int
    graph: str


class Drop(Struct, frozen=True, tag=True):
    """Let go of dense weights.

    Attributes:
        weights: Which.
    """

    weights: int


Order: TypeAlias = Make | LoadOrder | Drop


class LaneAnswer(Struct, frozen=True):
    """What became of an order, or of the start.

    Attributes:
        error: Why it failed; empty otherwise.
        is_spent: Whether the process may make too few executables for it yet.
        compiles: How many it made for it.
        compile_s: How long that took.
        costs: Microseconds of each bucket.
    """

    error: str = ""
    is_spent: bool = False
    compiles: int = 0
    compile_s: float = 0.0
    costs: list[tuple[Bucket, float]] = []


_ORDERS = decoder_of(Order)


class Lying(NamedTuple):
    """A tensor in memory that both have.

    Attributes:
        at: Where it begins, in bytes.
        shape: Its shape; at most three sizes.
    """

    at: int
    shape: Sequence[int]


def read_order(data: bytes) -> Order:
    """An order from its packet."""
    found: Order = _ORDERS.decode(data)
    return found


def work_packet(weights: int, user: Sequence[Lying], score: Sequence[Lying]) -> bytes:
    """The packet of some work.

    Args:
        weights: Whose weights it is scored with.
        user: What the user graph takes.
        score: The row of each candidate's user, and what else the score graph takes.

    Examples:
        >>> packet = work_packet(7, [], [Lying(0, (4,)), Lying(64, (4, 3))])
        >>> len(packet), read_work(packet)
        (52, (7, [], [Lying(at=0, shape=(4,)), Lying(at=64, shape=(4, 3))]))
    """
    parts = [_WORK.pack(weights, len(user), len(user) + len(score))]
    for at, shape in (*user, *score):
        parts.append(_TENSOR.pack(at, len(shape), *shape, *(0,) * (3 - len(shape))))
    return b"".join(parts)


def read_work(packet: bytes) -> tuple[int, list[Lying], list[Lying]]:
    """What `work_packet` was given."""
    weights, users, tensors = _WORK.unpack_from(packet)
    found = [
        Lying(at, tuple(sizes[:dimensions])) for at, dimensions, *sizes in _TENSOR.iter_unpack(packet[_WORK.size :])
    ]
    assert len(found) == tensors
    return weights, found[:users], found[users:]


def scored(rows: int, columns: int) -> bytes:
    """The packet that says that so many scores were written."""
    return _SCORED.pack(1, rows, columns)


def failed(said: str) -> bytes:
    """The packet that says why there are none."""
    return _SCORED.pack(0, 0, 0) + said.encode()[:_SAID_MAX]


def read_scored(packet: bytes) -> tuple[int, int] | str:
    """Rows and columns of scores, or why there are none."""
    is_scored, rows, columns = _SCORED.unpack_from(packet)
    return (rows, columns) if is_scored else packet[_SCORED.size :].decode(errors="replace")
