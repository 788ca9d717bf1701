"""Stager: brings versions from the store into tables, as the plan says. It moves no pointer and asks no registry."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from streamlearn.clock import Clock
from streamlearn.errors import NodeNotReady, StreamlearnError, VersionDefect
from streamlearn.settings.versions import ReplicaSettings
from streamlearn.table import TableSet
from streamlearn.versions.format.chain import Chain
from streamlearn.versions.format.fetch import fetch
from streamlearn.versions.format.history import History
from streamlearn.versions.format.loading import stage_version
from streamlearn.versions.format.record import VersionRef
from streamlearn.versions.format.version_summary import Known
from streamlearn.versions.format.writer import Committed
from streamlearn.versions.pointer.moves import Pointer, taints_of
from streamlearn.versions.replica.backoff import Backoff
from streamlearn.versions.replica.hooks import Hooks
from streamlearn.versions.replica.memory_room import free_bytes, lack_of_memory
from streamlearn.versions.replica.pointer_follower import Plan, kept_of, plan_of, wanted_of
from streamlearn.versions.replica.replica_meters import ReplicaMeters
from streamlearn.versions.replica.serving_position import AppliedMove, ServingPosition
from streamlearn.versions.replica.staged_versions import StagedVersions
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.settings import LoadSettings

__all__ = ["Source", "Stager"]

_LOG = logging.getLogger("streamlearn.versions.Stager")
# The most steps of one round, before it reads the pointer's store again.
_STEPS_MAX = 1_000
# How often the thread checks whether the last reader has left.
_READERS_LOOK_S = 0.05


class _Overtaken(Exception):
    """The work under way is of no use: the pointer wants another version, or the node ends."""


@dataclass(frozen=True)
class Source:
    """Where versions come from, and how they are read. `make` returns empty tables."""

    store: Store
    model: str
    make: Callable[[], TableSet]
    settings: ReplicaSettings
    loading: LoadSettings
    clock: Clock


class Stager:
    """The work of a node's staging thread: all changes of its tables, except for which version is active.

    It calls `on_move` after it has acted on the pointer.

    Attributes:
        troubles: Current problems, for people, by their subject.
        stood_in_for: The pointer whose version could not be read before anything answered, so an older one answers.
        ended: Set when the node ends.
        known: The history as it was last read, oldest first.
    """

    def __init__(
        self, source: Source, position: ServingPosition, hooks: Hooks, on_move: Callable[[AppliedMove | None], None]
    ) -> None:
        self._source, self._position, self._hooks, self._on_move = source, position, hooks, on_move
        self.troubles: dict[str, str] = {}
        self.stood_in_for: Pointer | None = None
        self.ended = threading.Event()
        self.meters = ReplicaMeters()
        self._history = History(source.store, source.model)
        self.known: tuple[Known, ...] = ()
        self._retry = self.backoff()
        self._unusable: dict[VersionRef, Backoff] = {}
        self._seq, self._looked_s = -1, 0.0
        self._hooked: set[VersionRef] = set()
        self._leaving: list[StagedVersions] = []
        self._building: StagedVersions | None = None
        self._drain_s: float | None = None

    @property
    def wait_s(self) -> float:
        """The time until the next round is due without a new event."""
        if self._drain_s is not None or self._leaving:
            return _READERS_LOOK_S
        waits = [backoff.left_s for backoff in (self._retry, *self._unusable.values()) if backoff.left_s]
        return min([self._source.settings.beat_s, *waits])

    def work(self, *, is_due: bool = False) -> None:
        """Stage as much as possible; failures become `troubles`. With `is_due` it always looks for new versions."""
        self._free_unread()
        is_moved = self._seq != self._position.pointer.seq
        if is_moved:
            self._retry.clear()
        now_s = self._source.clock.monotonic_s()
        if is_due or is_moved or now_s - self._looked_s >= self._source.settings.beat_s:
            self._looked_s = now_s
            self._read_history()
        elif self._drain_s is not None and now_s - self._drain_s < self._source.settings.drain_s:
            return
        if not self._retry.is_due:
            if self._position.current is not None:
                self._tidy(self._position.current)
            return
        try:
            for _ in range(_STEPS_MAX):
                if self.ended.is_set() or not self._step():
                    break
        except StreamlearnError as error:
            if isinstance(error, VersionDefect):
                self._count_defect(error)
            self.troubles["staging"] = error.message
            self._retry.fail()
        else:
            self._retry.clear()
            self.troubles.pop("staging", None)
        self._free_unread()

    def _step(self) -> bool:
        """Take the next step; returns whether there may be more."""
        if self._seq != self._position.pointer.seq:
            self._read_history()
        current = self._position.current
        plan = plan_of(self._position.pointer, self.known, () if current is None else current.refs)
        try:
            if plan.begin is not None:
                return self._build_or_before(plan, plan.begin)
            self._end_draining()
            self.troubles.pop("room", None)
            if current is None:
                return False
            if not plan.is_wanted:
                self._tidy(current)
            if plan.to is None:
                return False
            self._follow_or_heal(current, plan, plan.to)
        except _Overtaken:
            return True
        return True

    def _follow_or_heal(self, current: StagedVersions, plan: Plan, to: VersionRef) -> None:
        """Stage a version on the current tables; if it is damaged and wanted, rebuild from a base after the damage."""
        try:
            self._stage_all(current, self._chain(to, current.newest))
        except VersionDefect as error:
            if not plan.is_wanted:
                raise
            begin = min(wanted_of(self._position.pointer), key=lambda ref: ref.version)
            chain = self._chain(begin)
            if current.newest in [link.ref for link in chain.links]:
                # A rebuild would read the same files: only a later retry or a new base can help.
                raise
            self._count_defect(error)
            self._build(Plan(begin=begin, why=error.message, is_urgent=True, is_wanted=True), begin)

    def _stage_all(self, staged: StagedVersions, chain: Chain, *, is_urgent_build: bool = False) -> None:
        for at, link in enumerate(chain.links):
            coming = [later.ref for later in chain.links[at:]]
            self._hooked.add(link.ref)
            self._hooks.load(link, staged.newest)
            loaded = stage_version(
                link, staged.tables, staged.newest, store=self._source.store, settings=self._source.loading,
                between=partial(self._check, staged, coming, is_urgent_build), clock=self._source.clock,
            )  # fmt: skip
            staged.add(link)
            self.meters.rows.inc(loaded.rows + loaded.gone)
            self.meters.seconds.inc(loaded.wall_s)
            self._tidy(staged, coming[1:])

    def _check(self, staged: StagedVersions, coming: Sequence[VersionRef], is_urgent_build: bool) -> None:
        """Raise `_Overtaken`, between two files, if the versions being staged are of no use any more."""
        wanted, current = wanted_of(self._position.pointer), self._position.current
        if self.ended.is_set():
            raise _Overtaken
        if is_urgent_build and current is not None and current.are_ready(wanted):
            raise _Overtaken
        here = {*staged.versions, *coming}
        if any(ref not in here and ref.version <= coming[-1].version for ref in wanted):
            raise _Overtaken

    def _tidy(self, staged: StagedVersions, coming: Sequence[VersionRef] = ()) -> None:
        """Make the versions that stay ready, and retire the others."""
        pointer, count = self._position.pointer, self._source.settings.versions_kept
        stay = kept_of((*staged.refs, *coming), pointer, self.known, staged.active, count)
        for ref, version in staged.versions.items():
            if ref in stay and not staged.is_ready(ref):
                self._make_ready(staged, version)
        if staged is self._position.current:
            self._on_move(self._position.move())
        # After the move, because retiring takes longer and is not urgent.
        loading = self._source.loading
        for ref in staged.refs:
            if ref in stay or ref == staged.newest:
                continue
            has_answered = ref in staged.answered
            if staged.retire(ref, wait_ms_max=loading.retire_wait_ms_max, threads=loading.stage_threads):
                self.meters.passed.inc(not has_answered)
        self._retire_hooks()

    def _make_ready(self, staged: StagedVersions, version: Committed) -> None:
        backoff = self._unusable.get(version.ref)
        if backoff is not None and not backoff.is_due:
            return
        try:
            self._hooks.stage(version, staged.tables)
        except StreamlearnError as error:
            if backoff is None:
                _LOG.error("version %s cannot be used here: %s; help: %s", version.ref, error.message, error.help)
                backoff = self._unusable[version.ref] = self.backoff()
            backoff.fail()
            self.troubles[f"version {version.ref}"] = f"version {version.ref} cannot be used here: {error.message}"
            return
        self._forget_unusable(version.ref)
        staged.make_ready(version.ref)

    def backoff(self) -> Backoff:
        """Return the waits of work that fails."""
        settings = self._source.settings
        return Backoff(settings.retry_first_ms, settings.retry_ms_max, self._source.clock)

    def _forget_unusable(self, ref: VersionRef) -> None:
        self._unusable.pop(ref, None)
        self.troubles.pop(f"version {ref}", None)

    def _build_or_before(self, plan: Plan, begin: VersionRef) -> bool:
        """Build tables; if nothing answers yet and files are damaged, build them as of before the damage."""
        try:
            return self._build(plan, begin)
        except VersionDefect:
            if self._position.current is not None:
                raise
            # Its base cannot be read, or its chain cannot be found.
            limit = begin.version
            with suppress(VersionDefect):
                limit = self._chain(begin).links[0].manifest.version
            before = next((ref for ref in reversed(self._clean()) if ref.version < limit), None)
            if before is None:
                raise
        return self._build(plan, before)

    def _stand_in(self, built: StagedVersions) -> None:
        """Answer with the newest clean version that was read before the damage, if there is one."""
        pointer = self._position.pointer
        for ref in [ref for ref in reversed(self._clean()) if ref in built.versions]:
            if not built.is_ready(ref):
                self._make_ready(built, built.versions[ref])
            if built.activate(ref):
                self.stood_in_for = pointer
                self._switch(built)
                return

    def _clean(self) -> list[VersionRef]:
        """The versions up to the active one that may be served, oldest first."""
        pointer = self._position.pointer
        tainted, active = taints_of(pointer, self.known), 0 if pointer.active is None else pointer.active.version
        return [
            version.ref
            for version in self.known
            if pointer.floor <= version.version <= active
            if version.version not in tainted and version.is_promotable(pointer.accepted)
        ]

    def _build(self, plan: Plan, begin: VersionRef) -> bool:
        """Build tables from a base, and answer from them; returns whether there may be more to do."""
        chain, current = self._chain(begin), self._position.current
        if current is not None:
            lacks = self._lacks(current, chain)
            if lacks and not plan.is_urgent:
                self.troubles["room"] = f"{plan.why}; {lacks}"
                return False
            if lacks and not self._drained(current, chain, f"{plan.why}; {lacks}"):
                return False
            current = None
            self.meters.rebuilds.inc()
        self._building = built = StagedVersions(self._source.make())
        try:
            self._fill(built, chain, is_urgent=plan.is_urgent)
            self._switch(built)
        except VersionDefect:
            if self._position.current is None:
                self._stand_in(built)
            raise
        finally:
            self._building = None
            self._retire_hooks()
        return True

    def _fill(self, built: StagedVersions, chain: Chain, *, is_urgent: bool) -> None:
        """Stage a chain, and the versions that the pointer wants by then."""
        self._stage_all(built, chain, is_urgent_build=is_urgent)
        while absent := [ref for ref in wanted_of(self._position.pointer) if ref not in built.versions]:
            newest = built.newest
            if newest is None or any(ref.version <= newest.version for ref in absent):
                raise _Overtaken
            first = min(absent, key=lambda ref: ref.version)
            self._stage_all(built, self._chain(first, newest), is_urgent_build=is_urgent)
        wanted = wanted_of(self._position.pointer)
        if self._position.current is not None and not built.are_ready(wanted):
            # The current tables are better than tables that cannot answer.
            reasons = [self.troubles[f"version {ref}"] for ref in wanted if ref in self._unusable]
            raise NodeNotReady("; ".join(reasons), help="the previous version keeps answering; roll back, or wait")

    def _switch(self, built: StagedVersions) -> None:
        before = self._position.current
        move = self._position.switch(built)
        self._drain_s = None
        self.troubles.pop("room", None)
        self.troubles.pop("draining", None)
        if before is not None:
            before.close()
            self._leaving.append(before)
        self._on_move(move)

    def _lacks(self, current: StagedVersions, chain: Chain) -> str:
        used = current.bytes
        keys = sum(table.stats().keys for table in current.tables.tables.values())
        rows = sum(entry.rows for entry in chain.links[0].manifest.of_kind("rows"))
        needed = max(used, used * rows // max(1, keys))
        leaving = sum(staged.bytes for staged in self._leaving)
        return lack_of_memory(used + leaving, needed, free_bytes(), self._source.settings.memory_bytes_max)

    def _drained(self, current: StagedVersions, chain: Chain, why: str) -> bool:
        """Give the tables up once `drain_s` has passed and the last reader has left; returns whether that is done."""
        now_s = self._source.clock.monotonic_s()
        if self._drain_s is None:
            self._verify(chain)
            self._drain_s, self._position.is_draining = now_s, True
            self.troubles["draining"] = why
        if now_s - self._drain_s < self._source.settings.drain_s:
            return False
        current.close()
        if current.readers:
            return False
        self._position.drop()
        current.free()
        return True

    def _end_draining(self) -> None:
        """Stop draining, because the pointer came back to a version in the tables."""
        if self._drain_s is not None and self._position.current is not None:
            self._position.current.open()
            self._drain_s, self._position.is_draining = None, False
            self.troubles.pop("draining", None)

    def _verify(self, chain: Chain) -> None:
        """Read all files of a chain before the current tables are given up for it."""
        for link in chain.links:
            for entry in (*link.manifest.of_kind("rows"), *link.manifest.of_kind("gone")):
                fetch(self._source.store, link.folder, entry, bytes_max=self._source.loading.file_bytes_max)

    def _chain(self, to: VersionRef, since: VersionRef | None = None) -> Chain:
        source = self._source
        chain = Chain.find(source.store, source.model, to.version, since=since)
        if chain.ref != to:
            message = (
                f"the pointer names version {to} with sha256 {to.sha256}, "
                f"but the store has {chain.ref}, {chain.ref.sha256}"
            )
            raise defective(chain.head.folder, "foreign", message)
        return chain

    def _read_history(self) -> None:
        self._seq = self._position.pointer.seq
        try:
            self.known = self._history.read()
        except StreamlearnError as error:
            self.troubles["history"] = error.message
        else:
            self.troubles.pop("history", None)

    def _count_defect(self, error: VersionDefect) -> None:
        self.meters.defects.labels(error.defect).inc()

    def _free_unread(self) -> None:
        """Free replaced tables that have no readers left."""
        for staged in self._leaving:
            if not staged.readers:
                staged.free()
        self._leaving = [staged for staged in self._leaving if staged.readers]
        self._retire_hooks()

    def _retire_hooks(self) -> None:
        sets = [staged for staged in (self._position.current, self._building, *self._leaving) if staged is not None]
        gone = self._hooked - {ref for staged in sets for ref in staged.versions}
        self._hooked -= gone
        for ref in sorted(gone, key=lambda ref: ref.version):
            self._hooks.retire(ref)
        for ref in [ref for ref in self._unusable if not any(ref in staged.versions for staged in sets)]:
            self._forget_unusable(ref)
