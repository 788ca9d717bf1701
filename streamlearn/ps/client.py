"""PsClient: the tables of a model on all its shards, and a trainer's orders to them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.access.renewal import GivenToken
from streamlearn.errors import EpochOver, PushUnsure, ShardUnreachable, StreamlearnError, TableBusy, UsageError
from streamlearn.ps import orders
from streamlearn.ps.local import LocalLink
from streamlearn.ps.orders import Epoch
from streamlearn.ps.remote import RemoteLink
from streamlearn.ps.shelf import Shelf
from streamlearn.ps.slice_part import SlicePart
from streamlearn.resource import Resource
from streamlearn.settings import PsSettings
from streamlearn.table import Expiry, Pushed, TableOptions
from streamlearn.table.arguments import INT64_MAX, INT64_MIN, UINT64_MAX, flat, whole
from streamlearn.table.pin import At, Pin
from streamlearn.table.source import ColumnArrays, PackShape, dim_of
from streamlearn.table.table import Expired, PushOptions
from streamlearn.versions import Head, VersionRef
from streamlearn.versions.format.manifest import FileEntry

__all__ = ["PsClient"]

Float32s = npt.NDArray[np.float32]
Uint64s = npt.NDArray[np.uint64]
Uint32s = npt.NDArray[np.uint32]
_THRESHOLD_MAX = 15
_REDUCE_S_MAX = 1.0  # the longest wait for a sum in native code
Link: TypeAlias = LocalLink | RemoteLink
"""How a client reaches shards: in this process, or in others. It transports calls; the client decides what to call."""
Kind = TypeVar("Kind", bound=orders.Answer)


class PsClient(Resource):
    """The parameter server of a model, as a trainer sees it.

    Tables are in this process (`local`) or in remote shards (`connect`); nothing else differs. Several threads may
    call it at once. A push is applied exactly once, even when connections fail.

    A version is cut at a step boundary, when no push is under way: `seal`, `export`, then, once its manifest is
    written, `commit`. Or `abandon`, and the next version includes its changes. After a crash of any process, `restore`
    puts all shards back to a committed version in a new epoch.

    A read-only client (`reads_only`) has no epoch of its own: it follows the shards' epoch. It pulls, packs and queries
    stats; it and the shards refuse all else.

    Attributes:
        epoch: The epoch of the newest `restore`; None before the first, and for a read-only client.
    """

    def __init__(self, link: Link, settings: PsSettings | None = None, *, reads_only: bool = False) -> None:
        self._link = link
        self._settings = settings or PsSettings()
        self._reads_only = reads_only
        self.epoch: Epoch | None = None
        self._begun: Epoch | None = None
        self._unsure = ""  # why pushes and cuts are refused until a restore
        self._committed: int | None = None
        self._sealed: int | None = None
        self._expiries = 0
        self._expiry: orders.Expire | None = None  # an order that some shard has not answered yet

    @classmethod
    def local(cls, options: Sequence[TableOptions], shelf: Shelf, settings: PsSettings | None = None) -> PsClient:
        """A client of tables in this process."""
        settings = settings or PsSettings()
        return cls(LocalLink(options, shelf, settings), settings)

    @classmethod
    def connect(
        cls,
        model: str,
        options: Sequence[TableOptions],
        settings: PsSettings,
        token: GivenToken | None = None,
        *,
        reads_only: bool = False,
    ) -> PsClient:
        """A client of the shards at the settings' addresses.

        The options must be those of the shards. With `reads_only` no epoch is needed: a pull waits up to
        `retry_wait_ms_max` until all shards are in one epoch, and reads that epoch.

        Raises:
            ShardUnreachable: A shard does not answer.
            ShardRefused: A shard has another model, other tables or another release, or refuses the token.
        """
        link = RemoteLink(model, options, settings, token, role="reads" if reads_only else "trains")
        return cls(link, settings, reads_only=reads_only)

    @property
    def dims(self) -> Mapping[str, int]:
        """The row length of each table."""
        return self._link.dims

    @property
    def shards(self) -> int:
        """The number of shards."""
        return self._link.shards

    def pull(
        self, table: str, keys: Uint64s, *, at: At = "newest", distinct: bool = False, out: Float32s | None = None
    ) -> Float32s:
        """Read the rows of keys. A key without a row reads as its initial row, which is not stored.

        Args:
            table: The table.
            keys: uint64[n]; any value is a key.
            at: "newest", or the number of a version that is retained or sealed.
            distinct: The caller guarantees that no key repeats; this is not checked.
            out: float32[n, dim] to write into; a new array by default.

        Raises:
            EpochOver: Another trainer or recovery has taken over.
            ShardNotReady: A shard was restarted; a read-only client waits `retry_wait_ms_max` for its restore.
            ShardUnreachable: A shard did not answer within `retry_wait_ms_max`.
        """
        dim = dim_of(self.dims, table)
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
        """Apply gradients exactly once, as `Table.push` describes.

        Raises:
            EpochOver: Another trainer or recovery has taken over.
            ShardUnreachable: A shard did not answer within `retry_wait_ms_max`.
            PushUnsure: An earlier push may be partly applied; restore all shards.
        """
        self._epoch("push")
        keys, gradients = self._columns(table, keys, gradients)
        options = _options(len(keys), counts, admit, now_ms, rate_scale)
        with self._sure():
            return self._link.push(table, keys, gradients, options)

    def push_part(
        self,
        part: SlicePart,
        table: str,
        keys: Uint64s,
        gradients: Float32s,
        *,
        now_ms: int,
        counts: Uint32s | None = None,
        admit: Sequence[tuple[int, int]] = (),
        rate_scale: float = 1.0,
        is_finite: bool = True,
    ) -> Pushed:
        """Give one slice's gradients of a step, exactly once; each slice gives them for every table.

        The shards hold them until they have all slices. Then they apply the step once, as one push of the slices in
        their order. Returns what this slice completed, which is nothing while they are held. With `is_finite` false,
        the gradients are not sent, and the shards do not apply the step to this table. A part that is `at_once` is
        applied as a push, whatever the other slices are. One that `may_repeat` changes nothing where it is known.

        Raises:
            EpochOver, ShardUnreachable, PushUnsure: As `push`.
            ShardRefused: The slice does not fit the step, or another client has given it.
            TableBusy: Too many steps of the table miss slices.
            TableFull: The shards have no room to hold the slice, or the tables are full.
        """
        self._epoch("push a slice")
        native_part = part.native(is_finite)
        keys, gradients = self._columns(table, keys, gradients)
        options = _options(len(keys), counts, admit, now_ms, rate_scale)
        with self._sure():
            return self._link.push_part(native_part, table, keys, gradients, options)

    def reduce(self, part: SlicePart, values: Float32s, *, digest: int, is_finite: bool) -> None:
        """Give one slice's values of a dense vector; `reduced` returns the sum over all slices.

        A slice may be given again; only the first time counts. With `is_finite` false the values are not sent, and the
        step has no sum. `digest` is a hash of the weights before the step.

        Raises:
            WeightsDiffer: Another slice of the step began at other weights.
            ShardRefused: The slice does not fit the step, or the step is no longer kept.
            TableBusy, TableFull: Too many steps miss slices, or the shards have no room to hold the slice.
        """
        self._epoch("reduce")
        values = flat("values", values, np.float32, (None,))
        self._link.reduce(part.native(is_finite), values, whole("digest", digest, 0, UINT64_MAX))

    def reduced(self, step: int, slices: int, out: Float32s, *, wait_s: float) -> bool | None:
        """Wait for the sum of a step's slices, and write it into `out`.

        The sum adds the slices in their order, whatever order they came in. Returns True if `out` holds it, False if a
        slice was not finite, and None if slices are still missing after `wait_s`; `out` is then undefined.

        Raises:
            WeightsDiffer: Two slices of the step began at different weights.
            ShardRefused: The step is no longer kept, or has another length or number of slices.
        """
        self._epoch("reduce")
        (step, _, slices, *_), _ = SlicePart(step, 0, slices).native(True)
        into, deadline_s = flat("out", out, np.float32, (None,)), time.monotonic() + wait_s
        while True:
            left_s = deadline_s - time.monotonic()
            # In pieces, so that a signal can end a long wait.
            outcome = self._link.reduced(step, slices, into, round(1e3 * min(max(left_s, 0.0), _REDUCE_S_MAX)))
            if outcome is not None or left_s <= 0:
                return outcome

    def pack_flat(self, at: At, columns: Sequence[ColumnArrays], shape: PackShape, out: Any) -> None:
        """Write a flat matrix; `Packing` describes the arguments."""
        self._link.pack_flat(_version(at), columns, shape, out)

    def pack_sequences(self, at: At, columns: Sequence[ColumnArrays], shape: PackShape, out: Any) -> None:
        """Write a sequence block; `Packing` describes the arguments."""
        self._link.pack_sequences(_version(at), columns, shape, out)

    def restore(self, epoch: Epoch, version: VersionRef | None) -> list[orders.Restored]:
        """Put all shards back to a committed version, in a new epoch; later changes are discarded everywhere.

        The epoch must be higher than any before. None as version restores empty tables. Returns the report of each
        shard.

        Raises:
            EpochOver: A shard is already in this epoch or a later one.
            ShardUnreachable: A shard did not answer; try again under a higher epoch.
            VersionDefect: The version cannot be read.
        """
        self._check_may("restore")
        if self._begun is not None and epoch <= self._begun:
            raise _cannot_follow(epoch, self._begun)
        number, sha256 = (None, "") if version is None else (version.version, version.sha256)
        self._begun = epoch
        self._link.begin(epoch)
        # Fails on a missing shard before the others drop their tables.
        self._order(orders.Stats(), orders.ShardStats, self._settings.retry_wait_ms_max / 1e3)
        order = orders.Restore(epoch, number, sha256, secrets.randbits(63))
        restored = self._order(order, orders.Restored, self._settings.restore_wait_s_max)
        self.epoch, self._committed, self._sealed = epoch, number, None
        self._expiries, self._expiry, self._unsure = 0, None, ""
        return restored

    def join(self, epoch: Epoch) -> None:
        """Take part in an epoch that another client restored, to pull and to give slices.

        The client that restored the epoch cuts its versions.

        Raises:
            EpochOver: This client has begun a higher epoch.
        """
        self._check_may("join an epoch")
        if self._begun is not None and epoch < self._begun:
            raise _cannot_follow(epoch, self._begun)
        self._link.begin(epoch)
        self._begun = self.epoch = epoch
        self._committed, self._sealed, self._unsure = None, None, ""

    def seal(self, version: int) -> None:
        """Close the open version, on every shard or on none. Call it only while no push is under way.

        Raises:
            CutFailed: A shard could not; training continues, and the next version includes these changes.
            PushUnsure: A push failed: restore all shards.
            EpochOver: Another trainer or recovery has taken over.
            ShardNotReady: A shard was restarted: restore all shards.
        """
        epoch = self._epoch("seal")
        self._check_sure()
        # Each shard abandons a version that an earlier cut left sealed.
        order = orders.Seal(epoch, whole("version", version, 1, UINT64_MAX), self._committed)
        self._sealed = version
        self._order_cut(order, version, self._settings.order_wait_s_max)

    def export(self, head: Head) -> list[FileEntry]:
        """Have every shard write its files of the sealed version, while training continues.

        The head's parent must be the newest committed version. Returns the files of all shards, for the manifest. On
        `CutFailed`, abandon the version.
        """
        order = orders.Export(self._epoch("export"), head)
        answers = self._order_cut(order, head.version, self._settings.export_wait_s_max)
        return [file for answer in answers if isinstance(answer, orders.Exported) for file in answer.files]

    def commit(self, version: VersionRef, *, keep: Sequence[int] = ()) -> None:
        """Tell all shards that the sealed version has its manifest.

        Shards keep the images of the older versions in `keep` for readers, and drop those of all others. After
        `ShardUnreachable`, the next `seal` tells the shard again.
        """
        epoch = self._epoch("commit")
        if version.version != self._sealed:
            message = f"cannot commit version {version.version}; version {self._sealed} is sealed"
            raise UsageError(message, help="commit the version that was sealed last")
        self._committed, self._sealed = version.version, None
        self._order(orders.Commit(epoch, version.version, version.sha256, tuple(keep)), orders.Done)

    def abandon(self, version: int) -> None:
        """Give up the sealed version; its changes go into the next one. On `ShardUnreachable`, `seal` tries again."""
        self._order(orders.Abandon(self._epoch("abandon"), version), orders.Done)
        self._sealed = None

    def expire(self, expiries: Mapping[str, Expiry], *, now_ms: int, budget_keys: int) -> dict[str, Expired]:
        """Scan some keys of each shard and remove those that expired. Call it only while no push is under way.

        `expiries` has the rules by table, `now_ms` is table time, and a shard scans about `budget_keys` keys of each
        table. If a shard did not answer, repeat the same call: it sends the same order, and shards that obeyed it
        return their earlier answer and scan nothing twice. A call with other arguments completes that order first. A
        shard that did not answer (`ShardUnreachable`) may have obeyed.
        """
        order = orders.Expire(self._epoch("expire"), self._expiries + 1, dict(expiries), now_ms, budget_keys)
        if self._expiry is not None and msgspec.structs.replace(self._expiry, number=order.number) != order:
            self._expire(self._expiry)
        answers = self._expire(self._expiry or order)
        sums = {name: np.sum([answer.counts[name] for answer in answers], axis=0) for name in expiries}
        return {name: Expired(*(int(count) for count in counts)) for name, counts in sums.items()}

    def remove(self, keys: Mapping[str, Sequence[str]]) -> None:
        """Remove keys, by table, as hexadecimal numbers. Call it only while no push is under way; repeat it freely."""
        order = orders.Remove(self._epoch("remove"), {name: list(keys[name]) for name in keys})
        self._order(order, orders.Done)

    def stats(self) -> list[orders.ShardStats]:
        """The state of each shard."""
        return self._order(orders.Stats(), orders.ShardStats)

    def asked(self) -> list[dict[str, float]]:
        """This client's requests, retries, bytes and seconds by verb, for each shard; empty for tables in process."""
        return self._link.stats()

    def close(self) -> None:
        """Disconnect; the shards keep running."""
        self._link.close()

    def _expire(self, order: orders.Expire) -> list[orders.ExpiredKeys]:
        """Send an order that keeps its number until every shard has answered it."""
        self._expiries, self._expiry = order.number, order
        answers = self._link.order_all([order] * self.shards, self._settings.order_wait_s_max)
        if not any(isinstance(answer, ShardUnreachable | TableBusy) for answer in answers):
            self._expiry = None
        return _all_of(answers, orders.ExpiredKeys)

    def _order(self, order: orders.Order, kind: type[Kind], wait_s: float | None = None) -> list[Kind]:
        wait_s = self._settings.order_wait_s_max if wait_s is None else wait_s
        return _all_of(self._link.order_all([order] * self.shards, wait_s), kind)

    def _order_cut(
        self, order: orders.Seal | orders.Export, version: int, wait_s: float
    ) -> list[orders.Answer | BaseException]:
        """Send one order of a cut; a failure of any shard fails the cut."""
        answers = self._link.order_all([order] * self.shards, wait_s)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if failures:
            raise orders.cut_failed(version, failures)
        return answers

    def _columns(self, table: str, keys: Uint64s, gradients: Float32s) -> tuple[Uint64s, Float32s]:
        dim, keys = dim_of(self.dims, table), flat("keys", keys, np.uint64, (None,))
        return keys, flat("gradients", gradients, np.float32, (len(keys), dim)).reshape(len(keys), dim)

    @contextmanager
    def _sure(self) -> Iterator[None]:
        """Push inside the context; after a failure, further pushes and cuts are refused until a restore."""
        self._check_sure()
        try:
            yield
        except StreamlearnError as error:
            if not isinstance(error, UsageError):
                self._unsure = error.message
            raise

    def _check_sure(self) -> None:
        if self._unsure:
            message = f"a push failed and may be partly applied: {self._unsure}"
            raise PushUnsure(message, help="restore all shards to the newest committed version")

    def _check_may(self, verb: str) -> None:
        if self._reads_only:
            message = f"this client is read-only: it cannot {verb}"
            help = "connect without reads_only to change anything; only the model's trainer may write"
            raise UsageError(message, help=help)

    def _epoch(self, verb: str) -> Epoch:
        self._check_may(verb)
        if self.epoch is None:
            message = "no version has been restored yet"
            raise UsageError(message, help="call `restore` first; without a version the tables begin empty")
        return self.epoch


def _all_of(answers: Sequence[orders.Answer | BaseException], kind: type[Kind]) -> list[Kind]:
    """The answers of all shards; raises the first failure."""
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if isinstance(answer, kind)]


def _options(
    keys: int, counts: Uint32s | None, admit: Sequence[tuple[int, int]], now_ms: int, rate_scale: float
) -> PushOptions:
    """The checked arguments of a push beside its columns."""
    counts = None if counts is None else flat("counts", counts, np.uint32, (keys,))
    runs = [
        (whole("admit: end", end, 0, keys), whole("admit: threshold", threshold, 1, _THRESHOLD_MAX))
        for end, threshold in admit
    ]
    return PushOptions(counts, runs, whole("now_ms", now_ms, INT64_MIN, INT64_MAX), float(rate_scale))


def _cannot_follow(epoch: Epoch, begun: Epoch) -> EpochOver:
    message = f"epoch {epoch} cannot follow {begun}"
    return EpochOver(message, help="each restore needs a higher epoch than the one before")


def _version(at: At) -> int | None:
    if at == "newest":
        return None
    if isinstance(at, Pin) or not isinstance(at, int):
        message = f'at: expected "newest" or the number of a version, got {at!r}'
        raise UsageError(message, help="a parameter server does not follow the active version or pin versions")
    return whole("at", at, 0, UINT64_MAX)
