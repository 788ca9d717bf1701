"""Orders: what a trainer asks of every shard now and then, and what shards answer; JSON on its way.

Rows and gradients have frames of their own; this is for what comes once a version.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from streamlearn import errors
from streamlearn.errors import BadRecord, StreamlearnError, VersionDefect
from streamlearn.ps.epoch import Epoch
from streamlearn.struct_decoder import Decoder, decoder_of
from streamlearn.table import Expiry
from streamlearn.versions import Head
from streamlearn.versions.format.manifest import FileEntry

__all__ = [
    "Abandon",
    "Answer",
    "Commit",
    "Done",
    "Expire",
    "ExpiredKeys",
    "Export",
    "Exported",
    "Failed",
    "Order",
    "Restore",
    "Restored",
    "Seal",
    "ShardStats",
    "Stats",
    "TableCount",
    "decode_answer",
    "decode_order",
    "encode",
]

_Version: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class _Order(Struct, frozen=True, forbid_unknown_fields=True, tag_field="order"):
    """What is asked."""


class Restore(_Order, frozen=True, tag="restore"):
    """Stand at a committed version, and at nothing else, in a new epoch.

    Attributes:
        epoch: The new one; higher than any the shard has stood in.
        version: The version; None for empty tables.
        sha256: The digest of its manifest, so that no shard takes another version of the same number.
        number: Chosen by the client: an order that comes again is answered, another one of its epoch refused.
    """

    epoch: Epoch
    version: _Version | None = None
    sha256: str = ""
    number: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0


class Seal(_Order, frozen=True, tag="seal"):
    """Close the version that is open.

    Attributes:
        epoch: The trainer's.
        version: Its number.
        committed: The newest version that is committed in the store; a shard that was not told keeps it now.
    """

    epoch: Epoch
    version: _Version
    committed: _Version | None = None


class Export(_Order, frozen=True, tag="export"):
    """Write the files of the sealed version.

    Attributes:
        epoch: The trainer's.
        head: What is known of the version; its parent is what the files are written against.
    """

    epoch: Epoch
    head: Head


class Commit(_Order, frozen=True, tag="commit"):
    """The sealed version has a manifest.

    Attributes:
        epoch: The trainer's.
        version: The version.
        sha256: The digest of its manifest.
        keep: Versions whose images are kept beside it; those of all others go.
    """

    epoch: Epoch
    version: _Version
    sha256: str
    keep: tuple[_Version, ...] = ()


class Abandon(_Order, frozen=True, tag="abandon"):
    """The sealed version will have no manifest: what it wrote belongs to the next.

    Attributes:
        epoch: The trainer's.
        version: The version.
    """

    epoch: Epoch
    version: _Version


class Expire(_Order, frozen=True, tag="expire"):
    """Look at some keys, and let those leave that are to.

    Attributes:
        epoch: The trainer's.
        number: Counts these orders of an epoch: one that comes again is answered and not done again.
        expiries: By table.
        now_ms: Table time.
        budget_keys: How many keys of each table a shard looks at.
    """

    epoch: Epoch
    number: Annotated[int, Meta(ge=1)]
    expiries: dict[str, Expiry]
    now_ms: Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)]
    budget_keys: Annotated[int, Meta(ge=0)]


class Stats(_Order, frozen=True, tag="stats"):
    """Say how it is; of any epoch and of none."""


class _Answer(Struct, frozen=True, tag_field="answer"):
    """What is answered."""


class Done(_Answer, frozen=True, tag="done"):
    """It is done, or was before."""


class Failed(_Answer, frozen=True, tag="failed"):
    """It could not be done.

    Attributes:
        kind: The name of the error in `streamlearn.errors`.
        message: What happened.
        help: What to do.
        defect: Of a `VersionDefect`, what is wrong.
        path: Of a `VersionDefect`, where.
    """

    kind: str
    message: str
    help: str
    defect: str = ""
    path: str = ""

    @classmethod
    def of(cls, error: StreamlearnError, place: str) -> Failed:
        """What a shard says of an error."""
        defect, path = (error.defect, error.path) if isinstance(error, VersionDefect) else ("", "")
        return cls(type(error).__name__, f"shard {place}: {error.message}", error.help, defect, path)

    def error(self) -> StreamlearnError:
        """The error as it was."""
        kind = getattr(errors, self.kind, errors.PsError)
        if kind is VersionDefect:
            return VersionDefect(self.message, help=self.help, defect=self.defect, path=self.path)
        is_plain = isinstance(kind, type) and issubclass(kind, StreamlearnError) and kind is not errors.NotDelivered
        made: StreamlearnError = (kind if is_plain else errors.PsError)(self.message, help=self.help)
        return made


class Restored(_Answer, frozen=True, tag="restored"):
    """The shard stands at the version.

    Attributes:
        rows: Rows that were read from files; none where the version was still in memory.
        bytes: Bytes of those files.
        seconds: How long it took.
    """

    rows: int
    bytes: int
    seconds: float


class Exported(_Answer, frozen=True, tag="exported"):
    """Files that are whole in the store.

    Attributes:
        files: As they are to stand in the manifest.
        rows: Rows in them.
        seconds: How long it took.
    """

    files: tuple[FileEntry, ...]
    rows: int
    seconds: float


class ExpiredKeys(_Answer, frozen=True, tag="expired"):
    """Keys looked at, and those that left, by table: scanned, idle, rare, over."""

    counts: dict[str, tuple[int, int, int, int]]


class TableCount(Struct, frozen=True):
    """What a table of a shard holds.

    Attributes:
        keys: Keys there are.
        rows: Rows in use, those of older images among them.
        images: Images that not every reader sees.
        bytes: Memory.
    """

    keys: int
    rows: int
    images: int
    bytes: int


class ShardStats(_Answer, frozen=True, tag="stats"):
    """How a shard is.

    Attributes:
        place: Such as `0/2`.
        epoch: The epoch it stands in; None before the first restore.
        sealed: The version that is sealed and not committed.
        retained: Committed versions it has images of.
        tables: By name.
        served: Requests, errors, rows, bytes and seconds by verb, connections and refusals; empty in process.
        exports_left: Exports that were given up and have not ended, for their store does not answer.
        exports_left_max: How many of those there may be.
    """

    place: str
    epoch: Epoch | None
    sealed: int | None
    retained: tuple[int, ...]
    tables: dict[str, TableCount]
    served: dict[str, float]
    exports_left: int
    exports_left_max: int


Order: TypeAlias = Restore | Seal | Export | Commit | Abandon | Expire | Stats
Answer: TypeAlias = Done | Failed | Restored | Exported | ExpiredKeys | ShardStats

Said = TypeVar("Said")

_orders: Decoder[Order] = decoder_of(Order)
_answers: Decoder[Answer] = decoder_of(Answer)


def encode(said: Order | Answer) -> bytes:
    """The bytes of an order or an answer."""
    return msgspec.json.encode(said)


def decode_order(data: bytes) -> Order:
    """The order of some bytes.

    Raises:
        BadRecord: They are none.
    """
    return _decoded(_orders, data, "order")


def decode_answer(data: bytes) -> Answer:
    """The answer of some bytes.

    Raises:
        BadRecord: They are none.
    """
    return _decoded(_answers, data, "answer")


def _decoded(decoder: Decoder[Said], data: bytes, what: str) -> Said:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        message = f"cannot decode {what} ({len(data)} bytes): {error}"
        raise BadRecord(message, help="trainer and shards must run the same release") from None
