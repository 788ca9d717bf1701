"""Publisher: decides when to cut a version from a trainer, and loses nothing if a cut fails.

Other modules write, judge and promote versions.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import CutFailed, FileMissing, RunOver, StoreError, StreamlearnError, UsageError, VersionDefect
from streamlearn.ps import PsClient
from streamlearn.publisher.bases import Bases, Compact
from streamlearn.publisher.cleaner import Clean, Cleaner
from streamlearn.publisher.cut_state import CutState, Resumed
from streamlearn.publisher.judge import Judge
from streamlearn.publisher.lineage import Lineage
from streamlearn.publisher.meters import Meters
from streamlearn.publisher.promoter import Promoter, Step
from streamlearn.publisher.teller import Teller
from streamlearn.publisher.version_files import TRAINER_ERRORS, VersionFiles, newest_chain, number_max
from streamlearn.resource import Resource
from streamlearn.settings import PublisherSettings
from streamlearn.versions import Chain, Committed, Head, Registry, Request, Requests, Store, VersionRef, write_revert
from streamlearn.versions.format.manifest import Position
from streamlearn.versions.pointer.deletion import OBEYED as DELETED
from streamlearn.versions.pointer.deletion import Deletion
from streamlearn.versions.pointer.fence import Fence
from streamlearn.versions.pointer.request import OBEYED
from streamlearn.versions.store.defect import defective

__all__ = ["QUIET_S_MAX", "Publisher"]

QUIET_S_MAX = 3_600.0
"""The longest time for which positions may advance, with nothing learned, before a version records them."""
_log = logging.getLogger("streamlearn.publisher.Publisher")


class Publisher(Resource):
    """Publishes versions of a trainer's model, from a thread of its own.

    The trainer calls `boundary` at every step boundary, with no push under way. If a tick is due, `boundary` seals a
    version, which takes milliseconds; the rest happens while training continues. A failed cut harms nothing: the next
    version includes its changes. `boundary` raises the errors that the trainer must handle.

    The store must also be the store of the client's shards. The default judge scores no samples. `compact` writes the
    base that stands for a version, such as the result of `compact_apart`; without it no bases are written.
    `clean` removes what retention no longer keeps, once an hour. `by` names the owner of this run, for people.

    Attributes:
        run: The number of this run; 0 before `start`.
        committed: The newest committed version; None before the first.
        learned_rows: Rows learned from up to that version, since `start` or the last `resume`.
        requests: Requests of operators that no version records as obeyed, in order.
        deletions: All deletions of rows; the trainer obeys those in force at every cut.
        step: The result of the last judging and promoting; None before the first.
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
        clean: Clean | None = None,
        quiet_s_max: float = QUIET_S_MAX,
        clock: Clock = SYSTEM_CLOCK,
        by: str = "",
    ) -> None:
        self._settings = settings or PublisherSettings()
        lineage.check_row_type(self._settings.row_type)
        self.run = 0
        self.committed: VersionRef | None = None
        self.learned_rows = 0
        self.requests: tuple[Request, ...] = ()
        self.deletions: tuple[Deletion, ...] = ()
        self.step: Step | None = None
        self._client, self._store, self._lineage, self._clock = client, store, lineage, clock
        self._by = by or f"{socket.gethostname()}:{os.getpid()}"
        self._meters = Meters(clock)
        self._teller = Teller(registry, store, clock)
        self._fence = Fence(store, lineage.model, clock=clock)
        self._quiet_s_max = quiet_s_max
        self._version_files = VersionFiles(client, store, meters=self._meters, clock=clock)
        self._bases = Bases(compact, self._settings.base_deltas_max, self._meters)
        self._cleaner = Cleaner(clean, self._meters, clock)
        self._promoter = Promoter(
            store, lineage.model, judge or Judge(clock=clock), self._teller, self._settings,
            meters=self._meters, clock=clock,
        )  # fmt: skip
        # The publisher's thread alone uses these while it runs; otherwise the trainer's thread alone.
        self._thread: threading.Thread | None = None
        self._numbered = 0  # the highest version number that was ever begun
        # The last request and deletion that the newest committed version records as obeyed.
        self._obeyed: Mapping[str, float] = {}
        self._hurries = False  # whether a new deletion waits for the next boundary
        self._positions: tuple[Position, ...] = ()  # those of the newest committed version
        self._positions_s = clock.monotonic_s()  # when it was written
        self._unsure: tuple[Head, CutState] | None = None  # a version that may or may not have its manifest
        self._failures, self._last = 0, ""
        self._error: BaseException | None = None  # what `boundary` raises
        self._due_s = clock.monotonic_s() + self._settings.publish_interval_s

    @property
    def is_busy(self) -> bool:
        """Whether a version is being written, judged or promoted."""
        return self._thread is not None and self._thread.is_alive()

    def is_behind(self, positions: Sequence[Position]) -> bool:
        """Whether positions have advanced beyond those of the newest version for `quiet_s_max`.

        Messages after the recorded positions, even empty ones, are lost if the topic deletes them before a restart.
        """
        age_s = self._clock.monotonic_s() - self._positions_s
        return age_s >= self._quiet_s_max and _offsets(positions) != _offsets(self._positions)

    @property
    def is_due(self) -> bool:
        """Whether `boundary` would do something now; cheap to call."""
        has_to_tell = (self._teller.is_due or self._hurries) and not self.is_busy
        return self._error is not None or has_to_tell or self._clock.monotonic_s() >= self._due_s

    @property
    def must_delete(self) -> bool:
        """Whether the newest version does not carry out every deletion."""
        return bool(self.deletions) and self.deletions[-1].seq > self.deleted

    @property
    def deleted(self) -> float:
        """The number of the last deletion that the newest version carries out."""
        return self._obeyed.get(DELETED, 0.0)

    def start(self) -> Resumed:
        """Begin a run, which ends older runs, and complete the work that the last run left half done.

        Then restore all shards to the returned version, in the epoch of the returned run, and continue from there.

        Raises:
            UsageError: Features, labels or tables differ from those of the newest version.
            ConfigError: Versions must be signed, and there is no key for it.
            VersionDefect: The newest version cannot be read.
        """
        self._store.signatures.check_can_sign()
        self.run = self.run or self._fence.take(self._by)
        return self.resume()

    def resume(self) -> Resumed:
        """Find where to continue: after `start`, after a recovery, and after another writer added a version of the run.

        Raises:
            RunOver: A newer run has taken over.
            VersionDefect: The newest version cannot be read.
            FileMissing: The newest version has disappeared from the store.
        """
        self._join()
        self._fence.check(self.run)
        chain = newest_chain(self._store, self._lineage.model)
        if chain is not None:
            self._lineage.check(chain.manifest)
            self._lineage = replace(self._lineage, origin=chain.manifest.origin)
        if self.committed is not None and (chain is None or chain.version < self.committed.version):
            now = "it is empty" if chain is None else f"the newest is {chain.version}"
            message = f"version {self.committed.version} of {self._lineage.model!r} was in the store, but now {now}"
            raise FileMissing(message, help="restore the contents of the store; training never starts over by itself")
        self.committed = None if chain is None else chain.ref
        self._obeyed = {} if chain is None else _obeyed_in(chain.manifest.metrics)
        if chain is not None:
            age_s = (self._clock.wall_ms() - chain.manifest.written_wall_ms) / 1e3
            self._positions, self._positions_s = chain.manifest.positions, self._clock.monotonic_s() - max(0.0, age_s)
        self._numbered = max(self._numbered, number_max(self._store, self._lineage.model))
        self._bases.stand_at(chain)
        self.learned_rows, self._failures, self._unsure, self._error = 0, 0, None, None
        self._due_s = self._clock.monotonic_s() + self._settings.publish_interval_s
        try:
            # No scoring: rows of versions before the restored one are gone, and there are no samples yet.
            self._take(self._promoter.follow(self.run, can_score=False))
        except VersionDefect as error:
            # A damaged move of the pointer does not stop training; a damaged request does.
            self._not_served(error)
            self.requests, self.deletions = self._promoter.requests(), self._promoter.deletions()
        return Resumed(self.run, chain, self.requests)

    def first(self, note: Callable[[], CutState]) -> VersionRef:
        """Publish the first version, a base, before training begins; returns when it is committed and judged.

        Raises:
            CutFailed: A shard could not write it.
            StoreError: The store refuses.
            UsageError: A version exists already. If the store did not answer about it, `resume` finds it.
        """
        if self.committed is not None:
            message = f"version {self.committed.version} exists already"
            raise UsageError(message, help="restore all shards to it and continue from it")
        noted, head = note(), self._seal()
        try:
            ref = self._commit(head, noted)
        except Exception:
            if self._unsure is None:
                self._abandon(head)
            raise
        self._take(self._promoter.follow(self.run, can_score=False))
        return ref

    def boundary(self, note: Callable[[], CutState]) -> bool:
        """Cut a version if a tick is due; call it at a step boundary, with no push under way.

        `note` returns the trainer's state at this boundary; it is called only if a version may be cut. Returns whether
        a version was cut.

        Raises:
            RunOver: A newer run has taken over: end.
            EpochOver, PushUnsure, ShardNotReady: Restore all shards, and call `resume`.
            CutFailed: `failures_max` cuts failed in a row; further calls try again.
        """
        if self._error is not None:
            raise self._error
        if self.committed is None:
            message = "the first version has not been written yet"
            raise UsageError(message, help="call `start`, restore all shards, then `first` if `start` gave no chain")
        now_s = self._clock.monotonic_s()
        if now_s < self._due_s and (self.is_busy or not self._hurries):
            if self._teller.is_due and not self.is_busy:
                self._begin(self._teller.tell_again)
            return False
        if now_s >= self._due_s:
            self._due_s = max(self._due_s + self._settings.publish_interval_s, now_s)
        if self.is_busy:
            self._meters.skipped.inc()
            return False
        self._hurries = False
        if self._failures >= self._settings.failures_max:
            failures, self._failures = self._failures, 0
            message = f"{failures} cuts failed in a row; the last: {self._last}"
            help = (
                "see why the store or the shards refuse; nothing is lost: after a restart, training learns again from "
                "the samples after the newest version"
            )
            raise CutFailed(message, help=help)
        if self._unsure is not None:
            self._begin(self._settle_unsure)
            return False
        return self._cut(note())

    def obey(self, request: Request) -> VersionRef:
        """Put training back as the first of `requests` demands, with a revert that records the request as obeyed.

        Call it with no push under way. Then restore all shards in the next epoch, to the result of `resume`; obey
        further requests in order before that.

        Raises:
            UsageError: It is not the first pending request.
            RunOver: A newer run has taken over.
            VersionDefect: The requested version is gone, or another version has its number.
            StoreError: The store refuses.
        """
        self._join()
        if not self.requests or request.seq != self.requests[0].seq:
            pending = [waiting.seq for waiting in self.requests]
            message = f"cannot obey request {request.seq}; the pending requests are {pending}"
            raise UsageError(message, help="obey each request once, in order")
        to = Chain.find(self._store, self._lineage.model, request.to.version)
        if to.ref != request.to:
            raise defective(to.head.folder, "foreign", f"request {request.seq} asks for {request.to}, not {to.ref}")
        self._fence.check(self.run)
        # A run that is over may have committed a version since `resume`.
        self._numbered = max(self._numbered, number_max(self._store, self._lineage.model))
        try:
            done = write_revert(
                self._store, self._lineage.model, to=request.to.version, run=self.run, version=self.take_number(),
                skips=request.skips, metrics={OBEYED: float(request.seq)}, clock=self._clock,
            )  # fmt: skip
        except (StoreError, UsageError):
            self._fence.check(self.run)  # a newer run that wrote meanwhile is the cause
            raise
        _log.warning(
            "training goes back to version %d by version %d, as request %d of %s asks",
            request.to.version, done.ref.version, request.seq, request.by or "an operator",
        )  # fmt: skip
        self.requests = self.requests[1:]
        return done.ref

    def refuse(self, request: Request, reason: str) -> None:
        """Skip the first of `requests`, which cannot be obeyed; the next version records it as settled."""
        Requests(self._store, self._lineage.model, clock=self._clock).refuse(request, reason)
        self._obeyed = {**self._obeyed, OBEYED: float(request.seq)}
        self.requests = self.requests[1:]

    def take_number(self) -> int:
        """Return the next version number, once; also for other writers of versions, such as a revert."""
        self._numbered += 1
        return self._numbered

    def make_due(self) -> None:
        """Make the next `boundary` cut a version, such as the last of a run."""
        self._due_s = self._clock.monotonic_s()

    def settle(self, timeout_s: float | None = None) -> bool:
        """Wait until no work is under way; returns whether that happened in time. Raises the errors of `boundary`."""
        self._join(timeout_s)
        if self._error is not None:
            raise self._error
        return not self.is_busy

    def close(self) -> None:
        """Wait for the version under way and begin no other. A base that is being written continues."""
        self._join()

    def _cut(self, noted: CutState) -> bool:
        learned = noted.learned_rows - self.learned_rows
        assert learned >= 0, (noted.learned_rows, self.learned_rows)
        has_news = learned or noted.library or noted.cut.metrics.get(DELETED, 0.0) > self.deleted
        if not has_news and not self._settings.empty_versions and not self.is_behind(noted.cut.positions):
            self._meters.empty.inc()
            # There may be new requests, or an older version to promote.
            self._begin(self._follow)
            return False
        try:
            head = self._seal()
        except CutFailed as error:
            self._failed(self._numbered, error)
            return False
        self._begin(lambda: self._publish(head, noted))
        return True

    def _seal(self) -> Head:
        version = self.take_number()
        with self._meters.stage("seal"):
            self._client.seal(version)
        return self._lineage.head(self.run, version, self.committed)

    def _begin(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(work,), name="streamlearn-publisher", daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        # The next `boundary` raises it in the trainer's thread.
        except BaseException as error:
            self._error = error

    def _publish(self, head: Head, noted: CutState) -> None:
        try:
            self._commit(head, noted)
        except TRAINER_ERRORS:
            self._abandon(head)
            raise
        except (StreamlearnError, OSError) as error:
            if self._unsure is None:
                self._abandon(head)
            self._failed(head.version, error)
            return
        self._follow()

    def _commit(self, head: Head, noted: CutState) -> VersionRef:
        """Write and commit a sealed version."""
        learned, begin_s = noted.learned_rows - self.learned_rows, self._clock.monotonic_s()
        noted = noted.obeying(self._obeyed)
        try:
            done = self._version_files.write(head, noted, learned, self._fence)
        except (StoreError, OSError) as error:
            if isinstance(error, RunOver):
                raise
            # Only the answer may be lost. If the manifest was written, no other version may follow its parent.
            self._unsure = (head, noted)
            committed = self._version_files.find(head)
            self._unsure = None
            if committed is None:
                raise
            done = committed
        self._committed(done, noted)
        files, took_s = done.manifest.files, self._clock.monotonic_s() - begin_s
        rows, size = sum(file.rows for file in files if file.kind == "rows"), sum(file.bytes for file in files)
        self._meters.committed(head.version, rows, size)
        self._meters.versions.labels("committed").inc()
        _log.info(
            "version %d: learned from %d rows, %d rows changed, %.1f MB in %.2f s",
            head.version, learned, rows, size / 1e6, took_s,
        )  # fmt: skip
        return done.ref

    def _committed(self, done: Committed, noted: CutState) -> None:
        ref = done.ref
        if noted.predictions is not None:
            noted.predictions.committed()
        if noted.library is not None:
            noted.library.committed()
        self.committed, self.learned_rows, self._failures = ref, noted.learned_rows, 0
        self._obeyed = _obeyed_in(done.manifest.metrics)
        self._positions, self._positions_s = done.manifest.positions, self._clock.monotonic_s()
        self._meters.failed_ratio.set(0)
        active = None
        with contextlib.suppress(StoreError):
            active = self._promoter.active()
        keep = () if active is None or active >= ref.version else (active,)
        try:
            self._client.commit(ref, keep=keep)
        except TRAINER_ERRORS:
            raise
        except StreamlearnError as error:
            # It is committed; the next seal tells the shards again.
            _log.warning("version %d is committed, but a shard does not know it yet: %s", ref.version, error.message)
        self._bases.committed(ref.version, is_base=done.manifest.kind == "base")
        self._cleaner.look()

    def _follow(self) -> None:
        try:
            self._fence.check(self.run)
            self._take(self._promoter.follow(self.run, can_score=True))
        except TRAINER_ERRORS:
            raise
        except (StreamlearnError, OSError) as error:
            # The version stays committed; it is judged and promoted with the next one.
            self._not_served(error)

    def _not_served(self, error: Exception) -> None:
        self._meters.failures.inc()
        _log.warning("version %s is not served yet: %s", self.committed, error)

    def _settle_unsure(self) -> None:
        """Find out whether the version with the lost answer is committed."""
        assert self._unsure is not None
        head, noted = self._unsure
        try:
            committed = self._version_files.find(head)
        except (StoreError, OSError) as error:
            self._failed(head.version, error)
            return
        self._unsure = None
        if committed is None:
            self._abandon(head)
            return
        self._committed(committed, noted)
        self._follow()

    def _abandon(self, head: Head) -> None:
        """Give a version up; its changes go into the next one."""
        if self.committed is not None and self.committed.version == head.version:
            return  # the failure came after its manifest
        try:
            self._client.abandon(head.version)
            self._version_files.sweep(head)
        except (StreamlearnError, OSError) as error:
            # The next seal abandons it; remaining files are orphans.
            _log.debug("version %d could not be given up on all shards: %s", head.version, error)

    def _failed(self, version: int, error: BaseException) -> None:
        self._failures += 1
        self._meters.failures.inc()
        self._meters.failed_ratio.set(self._failures / self._settings.failures_max)
        self._last = error.message if isinstance(error, StreamlearnError) else str(error)
        _log.warning("version %d was not published; the next version includes its changes: %s", version, self._last)

    def _take(self, step: Step) -> None:
        is_new = step.deletions[-1:] != self.deletions[-1:]
        self.step, self.requests, self.deletions = step, step.requests, step.deletions
        self._hurries = self._hurries or (is_new and self.must_delete)

    def _join(self, timeout_s: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)


def _obeyed_in(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: metrics.get(name, 0.0) for name in (OBEYED, DELETED)}


def _offsets(positions: Sequence[Position]) -> list[tuple[int, int]]:
    return [(position.partition, position.offset) for position in positions]
