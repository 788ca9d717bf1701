"""Orders: a trainer's control messages to every shard, and the shards' answers, as JSON.

Rows and gradients have frames of their own; orders come about once a version. Messages of an older epoch are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from streamlearn import errors
from streamlearn.errors import BadRecord, StreamlearnError, VersionDefect
from streamlearn.struct_decoder import Decoder, decoder_of
from streamlearn.table import Expiry
from streamlearn.versions import Head
from streamlearn.versions.format.manifest import FileEntry

__all__ = [
    "Abandon", "Answer", "Commit", "Done", "Epoch", "Expire", "ExpiredKeys", "Export", "Exported", "Failed", "Order",
    "Remove", "Restore", "Restored", "Seal", "ShardStats", "Stats", "TableCount", "cut_failed", "decode_answer",
    "decode_order",
]  # fmt: skip

_Version: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Epoch(Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A trainer's run (its fencing number), and how often it has put all shards back to a committed version.

    Examples:
        >>> Epoch(3, 1) < Epoch(3, 2) < Epoch(4, 0)
        True
    """

    run: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    recovery: Annotated[int, Meta(ge=0, le=(1 << 32) - 1)] = 0

    def next(self) -> Epoch:
        """The epoch of the next recovery of this run."""
        return Epoch(self.run, self.recovery + 1)

    def __str__(self) -> str:
        return f"{self.run}.{self.recovery}"


class _Order(Struct, frozen=True, forbid_unknown_fields=True, tag_field="order"):
    """A control message of a trainer, sent in its epoch."""


class Restore(_Order, frozen=True, tag="restore"):
    """Hold a committed version, without later changes, in a new epoch.

    Attributes:
        epoch: Must be higher than any epoch of the shard before.
        version: The version; None for empty tables.
        sha256: The digest of its manifest, so that no shard takes another version of the same number.
        number: Chosen by the client: a shard answers an order that is repeated, and refuses another of its epoch.
    """

    epoch: Epoch
    version: _Version | None = None
    sha256: str = ""
    number: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0


class Seal(_Order, frozen=True, tag="seal"):
    """Close the open version and give it this number.

    `committed` is the newest version with a manifest in the store; a shard that missed its commit commits it now.
    """

    epoch: Epoch
    version: _Version
    committed: _Version | None = None


class Export(_Order, frozen=True, tag="export"):
    """Write the files of the sealed version, as changes since the head's parent."""

    epoch: Epoch
    head: Head


class Commit(_Order, frozen=True, tag="commit"):
    """The sealed version has a manifest, with the digest `sha256`.

    The shard also keeps the images of the versions in `keep`, and drops those of all others.
    """

    epoch: Epoch
    version: _Version
    sha256: str
    keep: tuple[_Version, ...] = ()


class Abandon(_Order, frozen=True, tag="abandon"):
    """The sealed version gets no manifest: its changes go into the next one."""

    epoch: Epoch
    version: _Version


class Expire(_Order, frozen=True, tag="expire"):
    """Scan some keys, and remove those that expired.

    Attributes:
        number: Counts these orders in an epoch: a shard answers a repeated one without scanning again.
        expiries: The rules, by table.
        now_ms: Table time.
        budget_keys: How many keys of each table a shard scans.
    """

    epoch: Epoch
    number: Annotated[int, Meta(ge=1)]
    expiries: dict[str, Expiry]
    now_ms: Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)]
    budget_keys: Annotated[int, Meta(ge=0)]


class Remove(_Order, frozen=True, tag="remove"):
    """Remove keys, by table, as hexadecimal numbers; unknown keys are ignored."""

    epoch: Epoch
    keys: dict[str, list[Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]]]


class Stats(_Order, frozen=True, tag="stats"):
    """Report the shard's state; allowed in any epoch and without one."""


class _Answer(Struct, frozen=True, tag_field="answer"):
    """The answer of a shard to an order."""


class Done(_Answer, frozen=True, tag="done"):
    """The shard has obeyed, now or before."""


class Failed(_Answer, frozen=True, tag="failed"):
    """The order failed with this error; `kind` is its name in `streamlearn.errors`.

    Only a `VersionDefect` sets `defect` and `path`.
    """

    kind: str
    message: str
    help: str
    defect: str = ""
    path: str = ""

    @classmethod
    def of(cls, error: StreamlearnError, place: str) -> Failed:
        """The answer of the shard at a position to an order that raised an error."""
        defect, path = (error.defect, error.path) if isinstance(error, VersionDefect) else ("", "")
        return cls(type(error).__name__, f"shard {place}: {error.message}", error.help, defect, path)

    def error(self) -> StreamlearnError:
        """The error that the shard raised."""
        kind = getattr(errors, self.kind, errors.PsError)
        if kind is VersionDefect:
            return VersionDefect(self.message, help=self.help, defect=self.defect, path=self.path)
        is_plain = isinstance(kind, type) and issubclass(kind, StreamlearnError) and kind is not errors.NotDelivered
        error: StreamlearnError = (kind if is_plain else errors.PsError)(self.message, help=self.help)
        return error


class Restored(_Answer, frozen=True, tag="restored"):
    """The shard holds the version: rows and bytes read from files (0 if it was still in memory), and seconds taken."""

    rows: int
    bytes: int
    seconds: float


class Exported(_Answer, frozen=True, tag="exported"):
    """Files that are complete in the store, as the manifest must list them; their rows, and seconds taken."""

    files: tuple[FileEntry, ...]
    rows: int
    seconds: float


class ExpiredKeys(_Answer, frozen=True, tag="expired"):
    """Counts of keys by table: scanned, and removed as idle, rare and over the limit."""

    counts: dict[str, tuple[int, int, int, int]]


class TableCount(Struct, frozen=True):
    """The size of one table of a shard. `rows` includes those of older images; not every reader sees `images`."""

    keys: int
    rows: int
    images: int
    bytes: int


class ShardStats(_Answer, frozen=True, tag="stats"):
    """The state of a shard.

    Attributes:
        place: Its position, such as `0/2`.
        epoch: Its epoch; None before the first restore.
        sealed: The version that is sealed and not committed.
        retained: Committed versions whose images it has.
        tables: By name.
        served: Requests, errors, rows, bytes and seconds by verb, connections and refusals; empty in process.
        exports_left: Abandoned exports that still run because their store does not answer.
        exports_left_max: The limit of those.
    """

    place: str
    epoch: Epoch | None
    sealed: int | None
    retained: tuple[int, ...]
    tables: dict[str, TableCount]
    served: dict[str, float]
    exports_left: int
    exports_left_max: int


Order: TypeAlias = Restore | Seal | Export | Commit | Abandon | Expire | Remove | Stats
Answer: TypeAlias = Done | Failed | Restored | Exported | ExpiredKeys | ShardStats

Message = TypeVar("Message")

_orders: Decoder[Order] = decoder_of(Order)
_answers: Decoder[Answer] = decoder_of(Answer)


def decode_order(data: bytes) -> Order:
    """The order in some bytes; raises `BadRecord` if they hold none."""
    return _decoded(_orders, data, "order")


def decode_answer(data: bytes) -> Answer:
    """The answer in some bytes; raises `BadRecord` if they hold none."""
    return _decoded(_answers, data, "answer")


def _decoded(decoder: Decoder[Message], data: bytes, kind: str) -> Message:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        message = f"cannot decode {kind} ({len(data)} bytes): {error}"
        raise BadRecord(message, help="trainer and shards must run the same release") from None


def cut_failed(version: int, failures: Sequence[BaseException]) -> BaseException:
    """The error of a failed cut: `CutFailed`, or the error of a shard that cannot continue."""
    for error in failures:
        if isinstance(error, errors.EpochOver | errors.ShardNotReady | errors.PushUnsure | errors.UsageError):
            return error
    reasons = "; ".join(error.message if isinstance(error, StreamlearnError) else str(error) for error in failures)
    message = f"version {version} could not be sealed: {reasons}"
    return errors.CutFailed(message, help="training continues; the next version includes these changes")
