"""PsClient: the tables of a model wherever its shards are; rows, and the orders of a trainer."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.errors import (
    CutFailed,
    EpochOver,
    PushUnsure,
    ShardNotReady,
    ShardUnreachable,
    StreamlearnError,
    TableBusy,
    UsageError,
)
from streamlearn.ps.epoch import Epoch
from streamlearn.ps.link import Link
from streamlearn.ps.local import LocalLink
from streamlearn.ps.orders import (
    Abandon,
    Answer,
    Commit,
    Done,
    Expire,
    ExpiredKeys,
    Export,
    Exported,
    Order,
    Restore,
    Restored,
    Seal,
    ShardStats,
    Stats,
)
from streamlearn.ps.remote import RemoteLink
from streamlearn.ps.shelf import Shelf
from streamlearn.settings import PsSettings
from streamlearn.table import Expiry, Pushed, TableOptions
from streamlearn.table.arguments import INT64_MAX, INT64_MIN, UINT64_MAX, flat, whole
from streamlearn.table.pin import At, Pin
from streamlearn.table.table import Expired
from streamlearn.versions import Head, VersionRef
from streamlearn.versions.format.manifest import FileEntry

__all__ = ["PsClient"]

Float32s = npt.NDArray[np.float32]
Uint64s = npt.NDArray[np.uint64]
Uint32s = npt.NDArray[np.uint32]
_THRESHOLD_MAX = 15
Kind = TypeVar("Kind", bound=Answer)


class PsClient:
    """The parameter server of a model, as a trainer sees it.

    Tables are in this process (`local`) or in shards elsewhere (`connect`); nothing else differs. Calls may come from
    several threads at once; a push is learned exactly once, whatever happens to connections.

    A version is cut at a step boundary, when no push is under way: `seal`, `export`, then, once its manifest is
    written, `commit`; or `abandon`, and the next one says what both wrote. After any death `restore` puts all shards
    back to a committed version in a new epoch.

    One that only reads is of whatever epoch the shards stand at, and follows them to the next. It pulls, packs and asks
    for stats; all else is refused, here and by shards.

    Args:
        link: How the shards are reached.
        settings: How long orders are waited for.
        reads_only: Whether nothing is changed through it.

    Attributes:
        epoch: The epoch of the newest `restore`; None before the first, and of one that only reads.
    """

    def __init__(self, link: Link, settings: PsSettings | None = None, *, reads_only: bool = False) -> None:
        self._link = link
        self._settings = settings or PsSettings()
        self._reads_only = reads_only
        self.epoch: Epoch | None = None
        self._begun: Epoch | None = None
        self._unsure = ""  # why nothing more is pushed or cut before a restore
        self._committed: int | None = None
        self._sealed: int | None = None
        self._expiries = 0
        self._expiry: Expire | None = None  # ordered, and not yet answered by every shard

    @classmethod
    def local(cls, options: Sequence[TableOptions], shelf: Shelf, settings: PsSettings | None = None) -> PsClient:
        """Tables in this process."""
        settings = settings or PsSettings()
        return cls(LocalLink(options, shelf, settings), settings)

    @classmethod
    def connect(
        cls,
        model: str,
        options: Sequence[TableOptions],
        settings: PsSettings,
        token: bytes | None = None,
        *,
        reads_only: bool = False,
    ) -> PsClient:
        """Tables of the shards at the settings' addresses.

        Args:
            model: The application's name.
            options: Of the tables, as the shards have them.
            settings: Addresses, TLS and limits.
            token: What shards are told to be let in.
            reads_only: That nothing is to be changed: for whoever scores, or looks. No epoch needs to be known. A pull
                waits, up to `retry_wait_ms_max`, until all shards stand at one epoch, and is of that one.

        Raises:
            ShardUnreachable: A shard does not answer.
            ShardRefused: A shard is of another model, other tables or another release, or refuses the token.
        """
        link = RemoteLink(model, options, settings, token, role="reads" if reads_only else "trains")
        return cls(link, settings, reads_only=reads_only)

    @property
    def dims(self) -> Mapping[str, int]:
        """Length of a row by table."""
        return self._link.dims

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return self._link.shards

    def pull(
        self, table: str, keys: Uint64s, *, at: At = "newest", distinct: bool = False, out: Float32s | None = None
    ) -> Float32s:
        """The rows of keys; a key that was never stored has its initial row, and stores nothing.

        Args:
            table: Of which table.
            keys: uint64[n]; any value is a key.
            at: "newest", or the number of a version that is retained or sealed.
            distinct: That no key comes twice, which is then not looked for.
            out: float32[n, dim] to write into; a new array by default.

        Raises:
            EpochOver: Another trainer or recovery has taken over.
            ShardNotReady: A shard was started again; one that only reads waits `retry_wait_ms_max` for its restore.
            ShardUnreachable: A shard did not answer within `retry_wait_ms_max`.
        """
        dim = self._dim(table)
        if not self._reads_only:
            self._epoch("pull")
        keys = flat("keys", keys, np.uint64, (None,))
        out = np.empty((len(keys), dim), np.float32) if out is None else out
        into = flat("out", out, np.float32, (len(keys), dim)).reshape(len(keys), dim)
        self._link.pull(table, keys, _version(at), distinct, into)
        return out

    def push(
        self,
        table: str,
        keys: Uint64s,
        gradients: Float32s,
        *,
        now_ms: int,
        counts: Uint32s | None = None,
        admit: Sequence[tuple[int, int]] = (),
        rate_scale: float = 1.0,
    ) -> Pushed:
        """Let rows learn, as `Table.push` says; exactly once.

        Raises:
            EpochOver: Another trainer or recovery has taken over.
            ShardUnreachable: A shard did not answer within `retry_wait_ms_max`.
            PushUnsure: An earlier push may have been learned in part; restore all shards.
        """
        dim, _ = self._dim(table), self._epoch("push")
        keys = flat("keys", keys, np.uint64, (None,))
        given = flat("gradients", gradients, np.float32, (len(keys), dim)).reshape(len(keys), dim)
        counts = None if counts is None else flat("counts", counts, np.uint32, (len(keys),))
        runs = [
            (whole("admit: end", end, 0, len(keys)), whole("admit: threshold", least, 1, _THRESHOLD_MAX))
            for end, least in admit
        ]
        now_ms = whole("now_ms", now_ms, INT64_MIN, INT64_MAX)
        self._check_sure()
        try:
            return self._link.push(table, keys, given, (counts, runs, now_ms, float(rate_scale)))
        except StreamlearnError as error:
            if not isinstance(error, UsageError):
                self._unsure = error.message
            raise

    def pack_flat(self, at: At, columns: Sequence[tuple[Any, ...]], shape: tuple[int, int, int, int], out: Any) -> None:
        """Write a flat matrix; `Packing` says of what."""
        self._link.pack_flat(_version(at), columns, shape, out)

    def pack_sequences(
        self, at: At, columns: Sequence[tuple[Any, ...]], shape: tuple[int, int, int, int, int], out: Any
    ) -> None:
        """Write a sequence block; `Packing` says of what."""
        self._link.pack_sequences(_version(at), columns, shape, out)

    def restore(self, epoch: Epoch, version: VersionRef | None) -> list[Restored]:
        """Put all shards to a committed version, in a new epoch; nothing written since is left anywhere.

        Args:
            epoch: Higher than any before.
            version: The version; None for empty tables.

        Returns:
            Of each shard what it read.

        Raises:
            EpochOver: A shard stands in this epoch or a later one already.
            ShardUnreachable: A shard did not answer; try again under a higher epoch.
            VersionDefect: The version cannot be read.
        """
        self._check_may("restore")
        if self._begun is not None and epoch <= self._begun:
            message = f"epoch {epoch} cannot follow {self._begun}"
            raise EpochOver(message, help="each restore needs a higher epoch than the one before")
        number, sha256 = (None, "") if version is None else (version.version, version.sha256)
        self._begun = epoch
        self._link.begin(epoch)
        # A shard that is not there is named before the others let go of what they have.
        self._order(Stats(), ShardStats, self._settings.retry_wait_ms_max / 1e3)
        order = Restore(epoch, number, sha256, secrets.randbits(63))
        restored = self._order(order, Restored, self._settings.restore_wait_s_max)
        self.epoch, self._committed, self._sealed = epoch, number, None
        self._expiries, self._expiry, self._unsure = 0, None, ""
        return restored

    def seal(self, version: int) -> None:
        """Close the version that is open, on every shard or on none. To be called while no push is under way.

        Raises:
            CutFailed: A shard could not; training goes on, and the next cut says what this one would have said.
            PushUnsure: A push failed: restore all shards.
            EpochOver: Another trainer or recovery has taken over.
            ShardNotReady: A shard was started again: restore all shards.
        """
        epoch = self._epoch("seal")
        self._check_sure()
        # What an earlier cut left sealed is given up by each shard itself.
        order = Seal(epoch, whole("version", version, 1, UINT64_MAX), self._committed)
        self._sealed = version
        answers = self._link.order_all([order] * self.shards, self._settings.order_wait_s_max)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if failures:
            raise _cut_failed(version, failures)

    def export(self, head: Head) -> list[FileEntry]:
        """Have every shard write its files of the sealed version, while training goes on.

        Args:
            head: What is known of the version; its parent is the newest committed one.

        Returns:
            The files of all shards, for the manifest.

        Raises:
            CutFailed: A shard could not; abandon the version.
        """
        order = Export(self._epoch("export"), head)
        answers = self._link.order_all([order] * self.shards, self._settings.export_wait_s_max)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if failures:
            raise _cut_failed(head.version, failures)
        return [file for answer in answers if isinstance(answer, Exported) for file in answer.files]

    def commit(self, version: VersionRef, *, keep: Sequence[int] = ()) -> None:
        """Tell all shards that the sealed version has its manifest.

        A shard that does not hear it is told again by the next `seal`.

        Args:
            version: The version.
            keep: Older versions whose images are kept, to be read from; those of all others go.

        Raises:
            ShardUnreachable: A shard did not answer; it is told again.
        """
        epoch = self._epoch("commit")
        if version.version != self._sealed:
            message = f"cannot commit version {version.version}; version {self._sealed} is sealed"
            raise UsageError(message, help="commit the version that was sealed last")
        self._committed, self._sealed = version.version, None
        self._order(Commit(epoch, version.version, version.sha256, tuple(keep)), Done)

    def abandon(self, version: int) -> None:
        """Give up the sealed version: what it wrote belongs to the next.

        Raises:
            ShardUnreachable: A shard did not answer; the next `seal` tries again.
        """
        self._order(Abandon(self._epoch("abandon"), version), Done)
        self._sealed = None

    def expire(self, expiries: Mapping[str, Expiry], *, now_ms: int, budget_keys: int) -> dict[str, Expired]:
        """Look at some keys of each shard, and let those leave that are to. To be called while no push is under way.

        When a shard did not answer, the same call again is the same order: shards that did it answer what they answered
        then, and look at nothing twice. A call of anything else has that order ended first.

        Args:
            expiries: Which keys leave, by table.
            now_ms: Table time.
            budget_keys: About how many keys of each table a shard looks at.

        Raises:
            ShardUnreachable: A shard did not answer, and may have done it.
        """
        order = Expire(self._epoch("expire"), self._expiries + 1, dict(expiries), now_ms, budget_keys)
        if self._expiry is not None and msgspec.structs.replace(self._expiry, number=order.number) != order:
            self._expire(self._expiry)
        answers = self._expire(self._expiry or order)
        sums = {name: np.sum([one.counts[name] for one in answers], axis=0) for name in expiries}
        return {name: Expired(*(int(count) for count in counts)) for name, counts in sums.items()}

    def stats(self) -> list[ShardStats]:
        """How each shard is."""
        return self._order(Stats(), ShardStats)

    def asked(self) -> list[dict[str, float]]:
        """What this client asked of each shard: requests, retries, bytes and seconds by verb; nothing in process."""
        return self._link.stats()

    def close(self) -> None:
        """Let go of the shards; they go on."""
        self._link.close()

    def __enter__(self) -> PsClient:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def _expire(self, order: Expire) -> list[ExpiredKeys]:
        """An order that keeps its number until every shard has answered it."""
        self._expiries, self._expiry = order.number, order
        answers = self._link.order_all([order] * self.shards, self._settings.order_wait_s_max)
        if not any(isinstance(answer, ShardUnreachable | TableBusy) for answer in answers):
            self._expiry = None
        return _all_of(answers, ExpiredKeys)

    def _order(self, order: Order, kind: type[Kind], wait_s: float | None = None) -> list[Kind]:
        wait_s = self._settings.order_wait_s_max if wait_s is None else wait_s
        return _all_of(self._link.order_all([order] * self.shards, wait_s), kind)

    def _check_sure(self) -> None:
        if self._unsure:
            message = f"a push failed and may be partly applied: {self._unsure}"
            raise PushUnsure(message, help="restore all shards to the newest committed version")

    def _check_may(self, verb: str) -> None:
        if self._reads_only:
            message = f"this client is read-only: it cannot {verb}"
            raise UsageError(
                message, help="connect without reads_only to change anything; only the model's trainer may write"
            )

    def _epoch(self, verb: str) -> Epoch:
        self._check_may(verb)
        if self.epoch is None:
            message = "no version has been restored yet"
            raise UsageError(message, help="call `restore` first; without a version the tables begin empty")
        return self.epoch

    def _dim(self, table: str) -> int:
        if table not in self.dims:
            message = f"no table is named {table!r}"
            raise UsageError(message, help=f"tables are {', '.join(self.dims)}")
        return self.dims[table]


def _all_of(answers: Sequence[Answer | BaseException], kind: type[Kind]) -> list[Kind]:
    """The answers of all shards, unless one failed."""
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if isinstance(answer, kind)]


def _version(at: At) -> int | None:
    if at == "newest":
        return None
    if isinstance(at, Pin) or not isinstance(at, int):
        message = f'at: expected "newest" or the number of a version, got {at!r}'
        raise UsageError(message, help="a parameter server does not follow the active version or pin versions")
    return whole("at", at, 0, UINT64_MAX)


def _cut_failed(version: int, failures: Sequence[BaseException]) -> BaseException:
    """What failed of a cut: training goes on, unless a shard says that it cannot."""
    for error in failures:
        if isinstance(error, EpochOver | ShardNotReady | PushUnsure | UsageError):
            return error
    said = "; ".join(error.message if isinstance(error, StreamlearnError) else str(error) for error in failures)
    message = f"version {version} could not be sealed: {said}"
    return CutFailed(message, help="training continues; the next version includes these changes")
