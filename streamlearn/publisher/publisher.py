"""Publisher: when a version is cut from a trainer, and that nothing is lost on the way.

How a version is written, judged and followed is others' to know.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import (
    CutFailed,
    EpochOver,
    FileMissing,
    PushUnsure,
    RunOver,
    ShardNotReady,
    StoreError,
    StreamlearnError,
    UsageError,
    VersionDefect,
)
from streamlearn.ps import PsClient
from streamlearn.publisher.bases import Bases, Compact
from streamlearn.publisher.cut_state import Noted, Resumed
from streamlearn.publisher.judge import Judge
from streamlearn.publisher.lineage import Lineage, check_row_type
from streamlearn.publisher.meters import Meters
from streamlearn.publisher.promoter import Following, Step
from streamlearn.publisher.teller import Teller
from streamlearn.publisher.version_files import Writing, cuts_failed, newest_chain, number_max
from streamlearn.settings import PublisherSettings
from streamlearn.versions import Chain, Committed, Head, Registry, Request, Requests, Store, VersionRef, write_revert
from streamlearn.versions.format.manifest import Position
from streamlearn.versions.pointer.fence import Fence
from streamlearn.versions.pointer.request import OBEYED
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.settings import FileSettings

__all__ = ["QUIET_S_MAX", "Publisher"]

QUIET_S_MAX = 3_600.0
"""How long, at most, positions may move on with nothing learned before a version says where they are."""

# After these no cut can succeed before the trainer has done something about it.
_ENDS = (RunOver, EpochOver, PushUnsure, ShardNotReady, UsageError)
_log = logging.getLogger("streamlearn.publisher.Publisher")


class Publisher:
    """Publishes versions of what a trainer learns, from a thread of its own.

    The trainer calls `boundary` at every step boundary, with no push under way; where a tick is due it seals, which
    takes milliseconds, and everything else happens while training goes on. A cut that fails harms nothing: the next
    one says what it would have said. What the trainer has to do something about is raised by `boundary`.

    Args:
        client: The parameter server.
        store: Where versions are; the same one for its shards.
        lineage: What all versions have in common.
        settings: How often, and what becomes of versions.
        judge: Who judges; by default one that scores no samples.
        registry: Who is told of versions and moves.
        compact: Writes the base that stands for a version, such as `compact_apart` gives; None asks for none.
        files: Limits of files.
        quiet_s_max: How long positions may move on with nothing learned before a version says where they are.
        clock: What time is taken by.
        by: Whose run it is, for people.

    Attributes:
        run: The number of this run; 0 before `start`.
        committed: The newest committed version; None before the first.
        requests: What operators have asked of training and no version says it obeyed, in order.
        step: What following came to last; None before the first.
    """

    def __init__(
        self,
        client: PsClient,
        store: Store,
        lineage: Lineage,
        settings: PublisherSettings | None = None,
        *,
        judge: Judge | None = None,
        registry: Registry | None = None,
        compact: Compact | None = None,
        files: FileSettings | None = None,
        quiet_s_max: float = QUIET_S_MAX,
        clock: Clock = SYSTEM_CLOCK,
        by: str = "",
    ) -> None:
        check_row_type(lineage, (settings or PublisherSettings()).row_type)
        self.run = 0
        self.committed: VersionRef | None = None
        self.requests: tuple[Request, ...] = ()
        self.step: Step | None = None
        self._settings = settings or PublisherSettings()
        self._client, self._store, self._lineage, self._clock = client, store, lineage, clock
        self._by = by or f"{socket.gethostname()}:{os.getpid()}"
        self._meters = Meters(clock)
        self._teller = Teller(registry, store, clock)
        self._fence = Fence(store, lineage.model, clock=clock)
        self._files, self._quiet_s_max = files or store.files, quiet_s_max
        self._writing = Writing(client, store, self._files, meters=self._meters, clock=clock)
        self._bases = Bases(compact, self._settings.base_deltas_max, self._meters)
        self._following = Following(
            store, lineage.model, judge or Judge(clock=clock), self._teller, self._settings,
            meters=self._meters, clock=clock,
        )  # fmt: skip
        # Only the trainer's thread reads and writes these while nothing is under way, only the other one meanwhile.
        self._thread: threading.Thread | None = None
        self._numbered = 0  # the highest number of a version that was ever begun
        self._learned = 0  # rows learned up to the newest committed version
        self._obeyed = 0.0  # the last request that the newest committed version says was obeyed
        self._positions: tuple[Position, ...] = ()  # those of the newest committed version
        self._positions_s = clock.monotonic_s()  # when it was written
        self._unsure: tuple[Head, Noted] | None = None  # a version whose manifest may be there
        self._failures, self._last = 0, ""
        self._over: BaseException | None = None
        self._due_s = clock.monotonic_s() + self._settings.publish_interval_s

    @property
    def is_busy(self) -> bool:
        """Whether a version is being written, judged or promoted."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def learned_rows(self) -> int:
        """Rows that the newest committed version says were learned from, since `start` or the last `resume`."""
        return self._learned

    def is_behind(self, positions: Sequence[Position]) -> bool:
        """Whether positions moved on from those of the newest version too long ago for no version to say so.

        What nobody says is lost when training starts again after the topic has deleted it, be it empty messages.
        """
        age_s = self._clock.monotonic_s() - self._positions_s
        return age_s >= self._quiet_s_max and _offsets(positions) != _offsets(self._positions)

    @property
    def is_due(self) -> bool:
        """Whether `boundary` would do something now; it costs nothing to ask."""
        has_to_tell = self._teller.is_due and not self.is_busy
        return self._over is not None or has_to_tell or self._clock.monotonic_s() >= self._due_s

    def start(self) -> Resumed:
        """Begin a run: older runs may publish no more. What the last one left half done is done.

        Then restore all shards to what this gives, in the epoch of its run, and go on from there.

        Raises:
            UsageError: Features, labels or tables are not those of the newest version.
            ConfigError: Versions are to be signed, and there is no key for it.
            VersionDefect: The newest version cannot be read.
        """
        self._store.signatures.check_can_sign()
        self.run = self.run or self._fence.take(self._by)
        return self.resume()

    def resume(self) -> Resumed:
        """Find where to go on: after `start`, after a recovery, and after someone else wrote a version of this run.

        Raises:
            RunOver: A newer run has taken over.
            VersionDefect: The newest version cannot be read.
            FileMissing: The newest version is not in the store any more.
        """
        self._join()
        self._fence.check(self.run)
        chain = newest_chain(self._store, self._lineage.model)
        if chain is not None:
            self._lineage.check(chain.manifest)
        if self.committed is not None and (chain is None or chain.version < self.committed.version):
            left = "it is empty" if chain is None else f"the newest is {chain.version}"
            message = f"version {self.committed.version} of {self._lineage.model!r} was in the store, but now {left}"
            raise FileMissing(message, help="restore the contents of the store; training never starts over by itself")
        self.committed = None if chain is None else chain.ref
        self._obeyed = 0.0 if chain is None else chain.manifest.metrics.get(OBEYED, 0.0)
        if chain is not None:
            age_s = (self._clock.wall_ms() - chain.manifest.written_wall_ms) / 1e3
            self._positions, self._positions_s = chain.manifest.positions, self._clock.monotonic_s() - max(0.0, age_s)
        self._numbered = max(self._numbered, number_max(self._store, self._lineage.model))
        self._bases.stand_at(chain)
        self._learned, self._failures, self._unsure, self._over = 0, 0, None, None
        self._due_s = self._clock.monotonic_s() + self._settings.publish_interval_s
        try:
            # Rows of versions before the restored one are gone, and nobody has samples yet.
            self._take(self._following.follow(self.run, can_score=False))
        except VersionDefect as error:
            # A damaged move of the pointer keeps nobody from learning; a damaged request does.
            self._not_served(error)
            self.requests = self._following.requests()
        return Resumed(self.run, chain, self.requests)

    def first(self, note: Callable[[], Noted]) -> VersionRef:
        """Publish the first version, a base, before anything was learned; returns when it is committed and judged.

        Raises:
            CutFailed: A shard could not write it.
            StoreError: The store refuses.
            UsageError: There is a version already; `resume` finds one of which the store did not tell.
        """
        if self.committed is not None:
            message = f"version {self.committed.version} exists already"
            raise UsageError(message, help="restore all shards to it and continue from it")
        noted, version = note(), self.take_number()
        with self._meters.stage("seal"):
            self._client.seal(version)
        head = self._lineage.head(self.run, version, None)
        try:
            ref = self._commit(head, noted)
        except Exception:
            if self._unsure is None:
                self._leave(head)
            raise
        self._take(self._following.follow(self.run, can_score=False))
        return ref

    def boundary(self, note: Callable[[], Noted]) -> bool:
        """A step boundary: cut a version if a tick is due. Nothing may be pushed meanwhile.

        Args:
            note: Gives what belongs to this boundary; asked for only when a version might be cut.

        Returns:
            Whether a version was cut here.

        Raises:
            RunOver: A newer run has taken over: end.
            EpochOver, PushUnsure, ShardNotReady: Restore all shards, and call `resume`.
            CutFailed: `failures_max` cuts failed one after the other; calling again goes on trying.
        """
        if self._over is not None:
            raise self._over
        if self.committed is None:
            message = "the first version has not been written yet"
            raise UsageError(message, help="call `start`, restore all shards, then `first` if `start` gave no chain")
        now_s = self._clock.monotonic_s()
        if now_s < self._due_s:
            if self._teller.is_due and not self.is_busy:
                self._begin(self._teller.tell_again)
            return False
        self._due_s = max(self._due_s + self._settings.publish_interval_s, now_s)
        if self.is_busy:
            self._meters.skipped.inc()
            return False
        self._check_failures()
        if self._unsure is not None:
            self._begin(self._settle_unsure)
            return False
        return self._cut(note())

    def obey(self, request: Request) -> VersionRef:
        """Put training back as a request asks: the revert it writes says itself that the request is obeyed.

        Nothing may be pushed meanwhile. Then restore all shards in the next epoch, to what `resume` gives; several
        requests are obeyed in their order before that.

        Args:
            request: The first of `requests`.

        Raises:
            UsageError: It is not the first one that is still to be obeyed.
            RunOver: A newer run has taken over.
            VersionDefect: The version it asks for is not there any more, or is another one of that number.
            StoreError: The store refuses.
        """
        self._join()
        if not self.requests or request.seq != self.requests[0].seq:
            asked = [one.seq for one in self.requests]
            message = f"cannot obey request {request.seq}; the pending requests are {asked}"
            raise UsageError(message, help="obey each request once, in order")
        to = Chain.find(self._store, self._lineage.model, request.to.version)
        if to.ref != request.to:
            raise defective(to.head.folder, "foreign", f"request {request.seq} asks for {request.to}, not {to.ref}")
        self._fence.check(self.run)
        # A run that is over may have committed a version since the numbers were looked at.
        self._numbered = max(self._numbered, number_max(self._store, self._lineage.model))
        try:
            done = write_revert(
                self._store, self._lineage.model, to=request.to.version, run=self.run, version=self.take_number(),
                skips=request.skips, metrics={OBEYED: float(request.seq)}, files=self._files, clock=self._clock,
            )  # fmt: skip
        except (StoreError, UsageError):
            self._fence.check(self.run)  # a newer run that wrote meanwhile is why
            raise
        _log.warning(
            "training goes back to version %d by version %d, as request %d of %s asks",
            request.to.version, done.ref.version, request.seq, request.by or "an operator",
        )  # fmt: skip
        self.requests = self.requests[1:]
        return done.ref

    def refuse(self, request: Request, reason: str) -> None:
        """Go on without the first of `requests`, which cannot be obeyed; the next version says that it is done with.

        Raises:
            StoreError: The store refuses.
        """
        Requests(self._store, self._lineage.model, clock=self._clock).refuse(request, reason)
        self._obeyed, self.requests = float(request.seq), self.requests[1:]

    def take_number(self) -> int:
        """The number of the next version, given once; for whoever else writes one, such as a revert."""
        self._numbered += 1
        return self._numbered

    def make_due(self) -> None:
        """Have the next `boundary` cut, whenever the next tick is: for the last of a run."""
        self._due_s = self._clock.monotonic_s()

    def settle(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is under way. Gives whether that is so within some time.

        Raises:
            StreamlearnError: What `boundary` would raise.
        """
        self._join(timeout_s)
        if self._over is not None:
            raise self._over
        return not self.is_busy

    def close(self) -> None:
        """Wait for the version that is under way; no other is begun. A base that is being written goes on."""
        self._join()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def _cut(self, noted: Noted) -> bool:
        learned = noted.learned_rows - self._learned
        assert learned >= 0, (noted.learned_rows, self._learned)
        if not learned and not self._settings.empty_versions and not self.is_behind(noted.cut.positions):
            self._meters.empty.inc()
            # Requests may have come, and something may still be to be promoted.
            self._begin(self._follow)
            return False
        version = self.take_number()
        try:
            with self._meters.stage("seal"):
                self._client.seal(version)
        except CutFailed as error:
            self._failed(version, error)
            return False
        head = self._lineage.head(self.run, version, self.committed)
        self._begin(lambda: self._publish(head, noted))
        return True

    def _begin(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(work,), name="streamlearn-publisher", daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        # Whatever it is, the trainer hears of it at its next boundary; a thread has nobody else to tell.
        except BaseException as error:
            self._over = error

    def _publish(self, head: Head, noted: Noted) -> None:
        try:
            self._commit(head, noted)
        except _ENDS:
            self._leave(head)
            raise
        except (StreamlearnError, OSError) as error:
            if self._unsure is None:
                self._leave(head)
            self._failed(head.version, error)
            return
        self._follow()

    def _commit(self, head: Head, noted: Noted) -> VersionRef:
        """Write a sealed version; when this returns it is committed."""
        learned, begin_s = noted.learned_rows - self._learned, self._clock.monotonic_s()
        noted = noted.obeying(self._obeyed)
        try:
            done = self._writing.write(head, noted, learned, self._fence)
        except (StoreError, OSError) as error:
            if isinstance(error, RunOver):
                raise
            # The manifest may be there, and only the answer lost: no other version may follow its parent then.
            self._unsure = (head, noted)
            found = self._writing.found(head)
            self._unsure = None
            if found is None:
                raise
            done = found
        self._committed(done, noted)
        files, took_s = done.manifest.files, self._clock.monotonic_s() - begin_s
        rows, size = sum(one.rows for one in files if one.kind == "rows"), sum(one.bytes for one in files)
        self._meters.committed(head.version, rows, size)
        self._meters.versions.labels("committed").inc()
        _log.info(
            "version %d: learned from %d rows, %d rows changed, %.1f MB in %.2f s",
            head.version, learned, rows, size / 1e6, took_s,
        )  # fmt: skip
        return done.ref

    def _committed(self, done: Committed, noted: Noted) -> None:
        ref = done.ref
        self.committed, self._learned, self._failures = ref, noted.learned_rows, 0
        self._obeyed = done.manifest.metrics.get(OBEYED, 0.0)
        self._positions, self._positions_s = done.manifest.positions, self._clock.monotonic_s()
        self._meters.failed_ratio.set(0)
        active = None
        with contextlib.suppress(StoreError):
            active = self._following.active()
        keep = () if active is None or active >= ref.version else (active,)
        try:
            self._client.commit(ref, keep=keep)
        except _ENDS:
            raise
        except StreamlearnError as error:
            # Committed it is; the next seal tells the shards again.
            _log.warning("version %d is committed, but a shard was not told: %s", ref.version, error.message)
        self._bases.committed(ref.version, is_base=done.manifest.kind == "base")

    def _follow(self) -> None:
        try:
            self._fence.check(self.run)
            self._take(self._following.follow(self.run, can_score=True))
        except _ENDS:
            raise
        except (StreamlearnError, OSError) as error:
            # It stays committed; it is judged and promoted with the next one.
            self._not_served(error)

    def _not_served(self, error: Exception) -> None:
        self._meters.failures.inc()
        _log.warning("version %s is not served yet: %s", self.committed, error)

    def _settle_unsure(self) -> None:
        """Find out whether the version is committed of which nobody could tell."""
        assert self._unsure is not None
        head, noted = self._unsure
        try:
            found = self._writing.found(head)
        except (StoreError, OSError) as error:
            self._failed(head.version, error)
            return
        self._unsure = None
        if found is None:
            self._leave(head)
            return
        self._committed(found, noted)
        self._follow()

    def _leave(self, head: Head) -> None:
        """Give a version up; what it wrote belongs to the next."""
        if self.committed is not None and self.committed.version == head.version:
            return  # what failed came after its manifest
        try:
            self._client.abandon(head.version)
            self._writing.sweep(head)
        except (StreamlearnError, OSError) as error:
            # The next seal gives it up; files that stay are orphans.
            _log.debug("version %d could not be given up on all shards: %s", head.version, error)

    def _failed(self, version: int, error: BaseException) -> None:
        self._failures += 1
        self._meters.failures.inc()
        self._meters.failed_ratio.set(self._failures / self._settings.failures_max)
        said = error.message if isinstance(error, StreamlearnError) else str(error)
        self._last = said
        _log.warning("version %d was not published; the next version includes its changes: %s", version, said)

    def _check_failures(self) -> None:
        if self._failures >= self._settings.failures_max:
            failures, self._failures = self._failures, 0
            raise cuts_failed(failures, self._last)

    def _take(self, step: Step) -> None:
        self.step, self.requests = step, step.requests

    def _join(self, timeout_s: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)


def _offsets(positions: Sequence[Position]) -> list[tuple[int, int]]:
    return [(one.partition, one.offset) for one in positions]
