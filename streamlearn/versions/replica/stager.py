"""Stager: brings versions from the store into tables, as the plan says. It moves nothing and asks no registry."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

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
from streamlearn.versions.replica.memory_room import Room, free_bytes
from streamlearn.versions.replica.pointer_follower import Plan, kept_of, plan_of, wanted_of
from streamlearn.versions.replica.replica_meters import ReplicaMeters
from streamlearn.versions.replica.serving_position import Followed, Seat
from streamlearn.versions.replica.staged_versions import Staged
from streamlearn.versions.store.defect import defective
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.settings import LoadSettings

__all__ = ["Source", "Stager"]

_LOG = logging.getLogger("streamlearn.versions.Stager")
# What one round does at most before it looks at the store again.
_STEPS_MAX = 1_000
# How often it is looked whether the last reader has left.
_READERS_LOOK_S = 0.05


class _Overtaken(Exception):
    """The pointer wants what this will not bring, or the node ends."""


@dataclass(frozen=True)
class Source:
    """Where versions come from, and how they are read.

    Attributes:
        store: The store.
        model: The model.
        make: Makes empty tables.
        settings: How a node follows.
        loading: How files are read.
        clock: What time is taken by.
    """

    store: Store
    model: str
    make: Callable[[], TableSet]
    settings: ReplicaSettings
    loading: LoadSettings
    clock: Clock


class Stager:
    """What one thread does for a node: all that changes its tables but what is active.

    Args:
        source: Where versions come from.
        seat: What is answered from.
        hooks: What else must be ready.
        moved: Told when the pointer was acted on.

    Attributes:
        troubles: What is wrong, for people, by what it is about.
        stood_in_for: The pointer whose version could not be read when nothing answered yet: an older one answers.
        ended: Set when the node ends.
    """

    def __init__(self, source: Source, seat: Seat, hooks: Hooks, moved: Callable[[Followed | None], None]) -> None:
        self._source, self._seat, self._hooks, self._moved = source, seat, hooks, moved
        self.troubles: dict[str, str] = {}
        self.stood_in_for: Pointer | None = None
        self.ended = threading.Event()
        self.meters = ReplicaMeters()
        self._history = History(source.store, source.model)
        self._known: tuple[Known, ...] = ()
        settings = source.settings
        waits = settings.retry_first_ms, settings.retry_ms_max, source.clock
        self._retry = Backoff(*waits)
        self._unusable: dict[VersionRef, Backoff] = {}
        self._seq, self._looked_s = -1, 0.0
        self._hooked: set[VersionRef] = set()
        self._leaving: list[Staged] = []
        self._building: Staged | None = None
        self._drain_s: float | None = None

    @property
    def wait_s(self) -> float:
        """How long until there is something to look at, if nobody says so before."""
        if self._drain_s is not None or self._leaving:
            return _READERS_LOOK_S
        waits = [one.left_s for one in (self._retry, *self._unusable.values()) if one.left_s]
        return min([self._source.settings.beat_s, *waits])

    def work(self, *, is_due: bool = False) -> None:
        """Stage all there is to stage, or as far as it goes; what went wrong is among the troubles.

        Args:
            is_due: Whether to look for new versions though it was done not long ago.
        """
        self._let_go()
        is_moved = self._seq != self._seat.pointer.seq
        if is_moved:
            self._retry.clear()
        now_s = self._source.clock.monotonic_s()
        if is_due or is_moved or now_s - self._looked_s >= self._source.settings.beat_s:
            self._looked_s = now_s
            self._read_history()
        elif self._drain_s is not None and now_s - self._drain_s < self._source.settings.drain_s:
            return
        if not self._retry.is_due:
            if self._seat.current is not None:
                self._tidy(self._seat.current)
            return
        try:
            for _ in range(_STEPS_MAX):
                if self.ended.is_set() or not self._step():
                    break
        except StreamlearnError as error:
            self._failed(error)
        else:
            self._retry.clear()
            self.troubles.pop("staging", None)
        self._let_go()

    def _step(self) -> bool:
        """The next thing; gives whether there may be more."""
        if self._seq != self._seat.pointer.seq:
            self._read_history()
        current = self._seat.current
        plan = plan_of(self._seat.pointer, self._known, () if current is None else current.refs)
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

    def _follow_or_heal(self, current: Staged, plan: Plan, to: VersionRef) -> None:
        try:
            self._follow(current, to)
        except VersionDefect as error:
            if not plan.is_wanted:
                raise
            begin = min(wanted_of(self._seat.pointer), key=lambda ref: ref.version)
            chain = self._chain(begin)
            if current.newest in [link.ref for link in chain.links]:
                # The same files would be read again: nothing but time, or a base, can help.
                raise
            self._defect(error)
            self._build(Plan(begin=begin, why=error.message, is_urgent=True, is_wanted=True), begin)

    def _follow(self, staged: Staged, to: VersionRef, *, is_urgent_build: bool = False) -> None:
        self._stage_all(staged, self._chain(to, staged.newest), is_urgent_build=is_urgent_build)

    def _stage_all(self, staged: Staged, chain: Chain, *, is_urgent_build: bool) -> None:
        for at, link in enumerate(chain.links):
            coming = [one.ref for one in chain.links[at:]]
            loaded = stage_version(
                link,
                staged.tables,
                staged.newest,
                store=self._source.store,
                settings=self._source.loading,
                between=lambda coming=coming: self._check(staged, coming, is_urgent_build),  # type: ignore[misc]
                clock=self._source.clock,
            )
            staged.add(link)
            self.meters.rows.inc(loaded.rows + loaded.gone)
            self.meters.seconds.inc(loaded.wall_s)
            self._tidy(staged, coming[1:])

    def _check(self, staged: Staged, coming: Sequence[VersionRef], is_urgent_build: bool) -> None:
        """Between two files: whether what is being staged is still of use."""
        wanted, current = wanted_of(self._seat.pointer), self._seat.current
        if self.ended.is_set():
            raise _Overtaken
        if is_urgent_build and current is not None and current.are_ready(wanted):
            raise _Overtaken
        here = {*staged.versions, *coming}
        if any(ref not in here and ref.version <= coming[-1].version for ref in wanted):
            raise _Overtaken

    def _tidy(self, staged: Staged, coming: Sequence[VersionRef] = ()) -> None:
        """Make ready what stays, and let go of what does not."""
        pointer, count = self._seat.pointer, self._source.settings.versions_kept
        stay = kept_of((*staged.refs, *coming), pointer, self._known, staged.active, count)
        for ref, version in staged.versions.items():
            if ref in stay and not staged.is_ready(ref):
                self._make_ready(staged, version)
        if staged is self._seat.current:
            self._moved(self._seat.move())
        # Letting go takes longer than a move, and nobody waits for it.
        loading = self._source.loading
        for ref in staged.refs:
            if ref in stay or ref == staged.newest:
                continue
            has_answered = ref in staged.answered
            if staged.retire(ref, wait_ms_max=loading.retire_wait_ms_max, threads=loading.stage_threads):
                self.meters.passed.inc(not has_answered)
        self._retire_hooks()

    def _make_ready(self, staged: Staged, version: Committed) -> None:
        waits = self._unusable.get(version.ref)
        if waits is not None and not waits.is_due:
            return
        try:
            self._hooks.stage(version, staged.tables)
        except StreamlearnError as error:
            if waits is None:
                _LOG.error("version %s cannot be used here: %s; help: %s", version.ref, error.message, error.help)
            settings = self._source.settings
            waits = waits or Backoff(settings.retry_first_ms, settings.retry_ms_max, self._source.clock)
            waits.fail()
            self._unusable[version.ref] = waits
            self.troubles[f"version {version.ref}"] = f"version {version.ref} cannot be used here: {error.message}"
            return
        self._usable(version.ref)
        self._hooked.add(version.ref)
        staged.make_ready(version.ref)

    def _usable(self, ref: VersionRef) -> None:
        self._unusable.pop(ref, None)
        self.troubles.pop(f"version {ref}", None)

    def _build_or_before(self, plan: Plan, begin: VersionRef) -> bool:
        """Build tables; where nothing answers yet and the files are damaged, from before the damage."""
        try:
            return self._build(plan, begin)
        except VersionDefect:
            if self._seat.current is not None:
                raise
            # Not even its base can be read, or its chain cannot be found.
            limit = begin.version
            with suppress(VersionDefect):
                limit = self._chain(begin).links[0].manifest.version
            before = next((ref for ref in reversed(self._clean()) if ref.version < limit), None)
            if before is None:
                raise
        return self._build(plan, before)

    def _stand_in(self, built: Staged) -> None:
        """Answer with the newest version that was read before the damage and may be served, if there is one."""
        pointer = self._seat.pointer
        for ref in [ref for ref in reversed(self._clean()) if ref in built.versions]:
            if not built.is_ready(ref):
                self._make_ready(built, built.versions[ref])
            if built.activate(ref):
                self.stood_in_for = pointer
                self._switch(built)
                return

    def _clean(self) -> list[VersionRef]:
        """The versions up to the active one that may be served, oldest first."""
        pointer = self._seat.pointer
        tainted, active = taints_of(pointer, self._known), 0 if pointer.active is None else pointer.active.version
        return [
            one.ref
            for one in self._known
            if pointer.floor <= one.version <= active
            if one.version not in tainted and one.is_promotable(pointer.accepted)
        ]

    def _build(self, plan: Plan, begin: VersionRef) -> bool:
        """Build tables from a base, and answer from them; gives whether there may be more to do."""
        chain, current = self._chain(begin), self._seat.current
        if current is not None:
            lacks = self._lacks(current, chain)
            if lacks and not plan.is_urgent:
                self.troubles["room"] = f"{plan.why}; {lacks}"
                return False
            if lacks and not self._drained(current, chain, f"{plan.why}; {lacks}"):
                return False
            current = None
            self.meters.rebuilds.inc()
        self._building = built = Staged(self._source.make())
        try:
            self._fill(built, chain, is_urgent=plan.is_urgent)
            self._switch(built)
        except VersionDefect:
            if self._seat.current is None:
                self._stand_in(built)
            raise
        finally:
            self._building = None
            self._retire_hooks()
        return True

    def _fill(self, built: Staged, chain: Chain, *, is_urgent: bool) -> None:
        """Stage until all is there that the pointer wants by then."""
        self._stage_all(built, chain, is_urgent_build=is_urgent)
        while absent := [ref for ref in wanted_of(self._seat.pointer) if ref not in built.versions]:
            newest = built.newest
            if newest is None or any(ref.version <= newest.version for ref in absent):
                raise _Overtaken
            self._follow(built, min(absent, key=lambda ref: ref.version), is_urgent_build=is_urgent)
        if self._seat.current is not None and not built.are_ready(wanted_of(self._seat.pointer)):
            # What is answered with now is better than nothing.
            said = [self.troubles[f"version {ref}"] for ref in wanted_of(self._seat.pointer) if ref in self._unusable]
            raise NodeNotReady("; ".join(said), help="the previous version keeps answering; roll back, or wait")

    def _switch(self, built: Staged) -> None:
        before = self._seat.current
        moved = self._seat.switch(built)
        self._drain_s = None
        self.troubles.pop("room", None)
        self.troubles.pop("draining", None)
        if before is not None:
            before.close()
            self._leaving.append(before)
        self._moved(moved)

    def _lacks(self, current: Staged, chain: Chain) -> str:
        used = current.bytes
        keys = sum(table.stats().keys for table in current.tables.tables.values())
        rows = sum(entry.rows for entry in chain.links[0].manifest.of_kind("rows"))
        needed = max(used, used * rows // max(1, keys))
        leaving = sum(staged.bytes for staged in self._leaving)
        return Room(used + leaving, needed, free_bytes(), self._source.settings.memory_bytes_max).lacks

    def _drained(self, current: Staged, chain: Chain, why: str) -> bool:
        """Give the tables up, when it was said for long enough and nobody reads; gives whether they are."""
        now_s = self._source.clock.monotonic_s()
        if self._drain_s is None:
            self._verify(chain)
            self._drain_s, self._seat.is_draining = now_s, True
            self.troubles["draining"] = why
        if now_s - self._drain_s < self._source.settings.drain_s:
            return False
        current.close()
        if current.readers:
            return False
        self._seat.drop()
        current.free()
        return True

    def _end_draining(self) -> None:
        """The pointer came back to a version that is here."""
        if self._drain_s is not None and self._seat.current is not None:
            self._seat.current.open()
            self._drain_s, self._seat.is_draining = None, False
            self.troubles.pop("draining", None)

    def _verify(self, chain: Chain) -> None:
        """Read all that is to be staged, before what there is is given up for it."""
        for link in chain.links:
            for entry in (*link.manifest.of_kind("rows"), *link.manifest.of_kind("gone")):
                fetch(self._source.store, link.folder, entry, bytes_max=self._source.loading.file_bytes_max)

    def _chain(self, to: VersionRef, since: VersionRef | None = None) -> Chain:
        source = self._source
        chain = Chain.find(source.store, source.model, to.version, since=since, settings=source.loading)
        if chain.ref != to:
            said = (
                f"the pointer names version {to} with sha256 {to.sha256}, "
                f"but the store has {chain.ref}, {chain.ref.sha256}"
            )
            raise defective(chain.head.folder, "foreign", said)
        return chain

    def _read_history(self) -> None:
        self._seq = self._seat.pointer.seq
        try:
            self._known = self._history.read()
        except StreamlearnError as error:
            self.troubles["history"] = error.message
        else:
            self.troubles.pop("history", None)

    def _failed(self, error: StreamlearnError) -> None:
        if isinstance(error, VersionDefect):
            self._defect(error)
        self.troubles["staging"] = error.message
        self._retry.fail()

    def _defect(self, error: VersionDefect) -> None:
        self.meters.defects.labels(error.defect).inc()

    def _let_go(self) -> None:
        """Forget tables that nobody reads any more."""
        for staged in self._leaving:
            if not staged.readers:
                staged.free()
        self._leaving = [staged for staged in self._leaving if staged.readers]
        self._retire_hooks()

    def _retire_hooks(self) -> None:
        there = [one for one in (self._seat.current, self._building, *self._leaving) if one is not None]
        gone = self._hooked - {ref for staged in there for ref in staged.versions}
        self._hooked -= gone
        for ref in sorted(gone, key=lambda one: one.version):
            self._hooks.retire(ref)
        for ref in [one for one in self._unusable if not any(one in staged.versions for staged in there)]:
            self._usable(ref)
