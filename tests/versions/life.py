"""All that happens to a model while nodes follow it, by chance from a seed; what nodes answer is checked all along.

Versions, reverts, bases, sweeps and moves of the pointer are made as operators and trainers make them, and only so.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streamlearn.errors import MoveRefused, RunOver
from streamlearn.settings import RetentionSettings
from streamlearn.settings.versions import RegistrySettings
from streamlearn.table import RowType, TableSet
from streamlearn.testing import MemoryRegistry
from streamlearn.versions import (
    Chain,
    History,
    Known,
    Pointer,
    Registry,
    Replica,
    Verdict,
    VersionRef,
    compact,
    load,
    open_registry,
    open_store,
    plan_gc,
    sweep,
    write_revert,
    write_verdict,
)
from streamlearn.versions.format.version_summary import Outcome
from streamlearn.versions.pointer.announcer import Announcer
from streamlearn.versions.pointer.fence import Fence
from streamlearn.versions.pointer.moves import promote, publish, raise_floor, release, rollback, taints_of
from tests.versions.history import MODEL, OPTIONS, Trainer, rows_of
from tests.versions.nodes import Rows, SpiedStore, World, exact
from tests.versions.test_load import _quantised

__all__ = ["Life"]

_DEADLINE_S, _WAIT_S = 1_800, 240
_PATIENT = RegistrySettings(reach_s=60, node_ttl_s=600)  # a node is alive though the machine stands still
_KEPT = {"many": 4, "few": 1}
_RULES = RetentionSettings(keep_versions_min=6, keep_s=0)


class Life:
    """A model, two nodes, and everything that happens to them.

    One of the nodes has its registry in a file, the other in memory.

    Args:
        folder: Where its versions and a registry are.
        seed: What happens.
        row_type: Of the nodes' tables.
    """

    def __init__(self, folder: Path, seed: int, row_type: RowType) -> None:
        self.world = World(open_store(str(folder / "store")), registry=None, row_type=row_type)
        self.chance, self.row_type = random.Random(seed), row_type
        self.version = 0
        # The history as it must be, and the rejected ones of it.
        self.line: list[VersionRef] = []
        self.history = History(self.world.store, MODEL)
        self.fence = Fence(self.world.store, MODEL)
        self.world.trainer.run = self.fence.take("first")
        self.memory = MemoryRegistry(MODEL)
        self.registries: dict[str, Registry] = {
            "many": open_registry(f"sqlite://{folder}/registry.db", MODEL, _PATIENT),
            "few": self.memory,
        }
        self.announcers = [Announcer(self.world.store, one, clock=self.world.clock) for one in self.registries.values()]
        self.nodes = {name: self._node(name) for name in _KEPT}
        self.activated: set[VersionRef] = set()
        self.counts: dict[str, int] = {}

    def run(self, versions: int, times: int) -> None:
        """Live until there were so many versions, and everything happened so often."""
        self.cut()
        assert self.follow()
        happenings: dict[Callable[[], bool], int] = {
            self.cut: 24, self.follow: 24, self.round: 20, self.failed_cut: 1, self.revert: 1, self.compact: 3,
            self.rollback: 2, self.release: 3, self.accept: 1, self.canary: 3, self.restart: 1, self.recover: 1,
            self.race: 1, self.late_race: 1, self.gc_while_a_node_starts: 2, self.gc_before_a_node_starts: 2,
        }  # fmt: skip
        until_s = time.monotonic() + _DEADLINE_S
        self.counts = {happening.__name__: 0 for happening in happenings}
        while len(self.world.truth) < versions or min(self.counts.values()) < times:
            assert time.monotonic() < until_s, self.counts
            # At the end nothing is waited for that seldom happens.
            is_over = len(self.world.truth) >= versions and self.chance.random() < 0.5
            some = [one for one in happenings if not is_over or self.counts[one.__name__] < times]
            [happening] = self.chance.choices(some, [happenings[one] for one in some])
            if happening():
                self.counts[happening.__name__] += 1
                if happening in (self.follow, self.rollback, self.release, self.accept):
                    self.nodes["many"].step()
                    self._check(self.nodes["many"])
        self.round()

    def close(self) -> None:
        """End it all."""
        for node in self.nodes.values():
            node.close()
        for registry in self.registries.values():
            registry.close()

    # -- training ---------------------------------------------------------------------------------------------------

    def cut(self) -> bool:
        """The trainer publishes what it learned: keys come, learn, go and come back within one version."""
        trainer, seed = self.world.trainer, self.chance.randrange(1_000)
        for table in ("main", "side"):
            trainer.learn(seed, self.chance.randrange(0, 60), table)
            trainer.forget(seed + 1, self.chance.randrange(0, 40), table)
            trainer.learn(seed + 2, self.chance.randrange(0, 20), table)
        self._cut_by(trainer)
        return True

    def failed_cut(self) -> bool:
        """Some files were written, and no manifest: the next version says it all."""
        trainer = self.world.trainer
        self._step_number()
        trainer.learn(self.version, 30)
        trainer.tables.seal(self.version)
        since = trainer.last.manifest.version if trainer.last else None
        trainer.write(trainer.head(self.version), since, self.chance.choice([1, 2]))
        trainer.tables.abandon(self.version)
        return True

    def recover(self) -> bool:
        """The trainer loses what it learned since its last version, and goes on from there."""
        self.world.trainer.learn(self.version, 30)
        self._reload(self.world.trainer)
        return True

    def revert(self) -> bool:
        """Training goes back: a new version with the content of an older one."""
        trainer = self.world.trainer
        tainted = taints_of(self.world.log.newest(), self.known())
        clean = [one for one in self._readable()[-6:] if one.version not in tainted]
        to = self.chance.choice(clean if clean and self.chance.random() < 0.8 else self._readable()[-6:])
        self._step_number()
        trainer.last = write_revert(trainer.store, MODEL, to=to.version, run=trainer.run, version=self.version)
        self._reload(trainer)
        self._noted(trainer)
        assert self.world.truth[self.line[-1]] == self.world.truth[to]
        return True

    def race(self) -> bool:
        """A new run takes over from the newest version."""
        self._taken_over()
        self._cut_by(self.world.trainer)
        return True

    def late_race(self) -> bool:
        """The old run goes on to publish, and may even be served, before another one takes over from before that."""
        old, number = self.world.trainer, self.version
        self._taken_over()
        old.learn(number, 50)
        self._cut_by(old)
        if self._published() and self.chance.random() < 0.5:
            self.round()
        # The new one knows nothing of what the other wrote, and may give it the same number.
        late = self.line.pop()
        self.version = number if self.chance.random() < 0.7 else self.version
        self._cut_by(self.world.trainer)
        if self._published():
            with pytest.raises(RunOver):
                self._move(lambda now: publish(now, self.known(), late.version, old.run), "publish")
        return True

    # -- the store ----------------------------------------------------------------------------------------------------

    def compact(self) -> bool:
        """A base is written that stands for a version."""
        to = self.chance.choice(self._readable()[-8:])
        return compact(self.world.store, MODEL, to.version).is_new

    def gc_while_a_node_starts(self) -> bool:
        """Old versions go, but not before a node that had begun to start when that was decided."""
        begun, decided, started = threading.Event(), threading.Event(), threading.Event()

        def waited() -> None:
            decided.set()
            assert started.wait(_WAIT_S)

        def collect() -> bool:
            try:
                return begun.wait(_WAIT_S) and self._collected(waited)
            finally:
                decided.set()

        def on_read(path: str) -> None:
            if path.endswith(".arrow") and not begun.is_set():
                begun.set()
                assert decided.wait(_WAIT_S)

        store = SpiedStore(self.world.store)
        store.on_read = on_read
        with ThreadPoolExecutor(1) as pool:
            collected = pool.submit(collect)
            try:
                self._started_beside(store)
            finally:
                for event in (begun, started):
                    event.set()
        return collected.result()

    def gc_before_a_node_starts(self) -> bool:
        """Old versions go, and a node starts while half of their files are there."""
        removed = 0

        def progress(done: int, whole: int) -> None:
            nonlocal removed
            removed += 1
            if removed == 3:
                self._started_beside(self.world.store)

        return self._collected(lambda: None, progress) and removed >= 3

    # -- the pointer --------------------------------------------------------------------------------------------------

    def follow(self) -> bool:
        """The publisher promotes the newest clean version; where there is none newer, someone may see to it."""
        known, pointer = self.known(), self.world.log.newest()
        if known[-1].version in taints_of(pointer, known) and self.chance.random() < 0.3:
            self.revert()
        if (pointer.held or pointer.canary) and self.chance.random() < 0.4:
            return self.release()
        return self._published()

    def rollback(self) -> bool:
        """The pointer goes back, near or far, and is held."""
        to = self.chance.choice(self._readable()[-12:])
        return self._move(lambda now: rollback(now, self.known(), to.version), "rollback")

    def release(self) -> bool:
        """The pointer follows again."""
        return self._move(lambda now: release(now, self.known()), "release")

    def accept(self) -> bool:
        """A version is served although it, or one before it, was rejected or left."""
        tainted = [one for one in taints_of(self.world.log.newest(), self.known()) if one >= self.line[-1].version - 20]
        if not tainted:
            return False
        to = self.chance.choice(tainted)
        return self._move(lambda now: promote(now, self.known(), to, accept=True), "promote")

    def canary(self) -> bool:
        """A version is tried on a share of the requests."""
        to = self.chance.choice(self._readable()[-4:])
        return self._move(lambda now: promote(now, self.known(), to.version, share=0.1), "canary")

    # -- nodes --------------------------------------------------------------------------------------------------------

    def restart(self) -> bool:
        """A node begins anew."""
        name = self.chance.choice(list(self.nodes))
        self.nodes[name].close()
        self.nodes[name] = self._node(name)
        return True

    def round(self) -> bool:
        """Nodes do what there is to do, and answer with what they must."""
        self.world.clock.sleep(1)
        for announcer in self.announcers:
            announcer.keep_up()
        for name, node in self.nodes.items():
            if name == "many" or self.chance.random() < 0.5:
                node.step()
                self._check(node)
                if not self.memory.is_away and node.status().seq == self.world.log.newest().seq:
                    acts = [ack.boot_id for ack in self.registries[name].acks(node.status().seq)]
                    assert acts.count(node.boot_id) == 1
        return True

    # -- what all of these share --------------------------------------------------------------------------------------

    def known(self) -> tuple[Known, ...]:
        """The history, which is what was made."""
        known = self.history.read()
        assert [one.ref for one in known] == self.line[-len(known) :]
        return known

    def _check(self, node: Replica) -> None:
        pointer, status = self.world.log.newest(), node.status()
        if status.active != pointer.active and pointer.active not in self.line:
            # What an older run wrote too late is no version to go to any more; who is there stays there.
            assert status.error
            return
        assert (status.active, status.seq) == (pointer.active, pointer.seq), status
        assert not status.error or (self.memory.is_away and "does not answer" in status.error)
        self.world.check(node, named=self._rounded)
        assert pointer.active is not None
        self.activated.add(pointer.active)
        with node.reading(self.chance.choice(status.staged).version) as read:
            assert rows_of(read.tables, read.version) == self._rounded(self.world.truth[read.ref])

    def _started_beside(self, store: SpiedStore | object) -> None:
        node = self.world.node("joiner", store=store, registry=self.memory)
        for _ in range(2):
            node.step()  # the floor may have risen meanwhile, which is a move
        self._check(node)
        node.close()

    def _published(self) -> bool:
        known, pointer = self.known(), self.world.log.newest()
        tainted = taints_of(pointer, known)
        clean = [one for one in known if one.version not in tainted and one.is_promotable(pointer.accepted)]
        if not clean or clean[-1].ref == pointer.active:
            return False
        return self._move(lambda now: publish(now, known, clean[-1].version, self.world.trainer.run), "publish")

    def _move(self, decide: Callable[[Pointer], Pointer], what: str) -> bool:
        """Move the pointer, unless that is refused; registries are told, or hear of it later."""
        self.memory.is_away = self.chance.random() < 0.2
        try:
            pointer = self.world.log.move(decide, by="tests", reason=what)
        except MoveRefused:
            return False
        known = {one.ref: one for one in self.known()}
        if pointer.active in known:
            assert pointer.active.version not in taints_of(pointer, list(known.values()))
        for announcer in self.announcers:
            if self.chance.random() < 0.9:
                announcer.moved(pointer, what)
        self.memory.is_away = self.chance.random() < 0.1
        return True

    def _collected(self, wait: Callable[[], None], progress: Callable[[int, int], None] | None = None) -> bool:
        """Sweep what may go; what stays is as clean as it was. Gives whether anything went."""
        store, pointer, before = self.world.store, self.world.log.newest(), self.known()
        if not {*pointer.needed.values()} <= {one.ref for one in before}:
            return False  # what a late run wrote stays for a day
        nodes = [node.active for one in self.registries.values() if one is not self.memory for node in one.nodes()]
        needed = [*nodes, *(ref.version for ref in pointer.needed.values())]
        plan = plan_gc(store, MODEL, [one for one in needed if one], settings=_RULES)
        tainted = taints_of(pointer, before)
        if not plan.removals:
            return False

        def raised(floor: int) -> None:
            assert self._move(lambda now: raise_floor(now, before, max(floor, now.floor)), "gc")

        sweep(store, plan, raise_floor=raised, wait=wait, progress=progress)
        after = taints_of(self.world.log.newest(), self.known())
        floor = plan.retained.floor or 0
        assert _numbers(after, floor) == _numbers(tainted, floor)
        return True

    def _readable(self) -> list[VersionRef]:
        floor = self.world.log.newest().floor
        return [one.ref for one in self.known() if one.is_whole and one.version >= floor]

    def _taken_over(self) -> None:
        old = self.world.trainer
        new = Trainer(self.world.store, run=self.fence.take("another"), last=old.last)
        self._reload(new)
        new.learn(self.version + 1, 50)
        self.world.trainer = new

    def _reload(self, trainer: Trainer) -> None:
        trainer.tables = TableSet(OPTIONS)
        load(Chain.find(trainer.store, MODEL), trainer.tables, training=True)

    def _cut_by(self, trainer: Trainer) -> None:
        self._step_number()
        before = trainer.last
        trainer.cut(self.version, self.chance.choice([1, 1, 2, 3]))
        self._noted(trainer)
        if before is not None and before.manifest.version in trainer.tables.retained:
            trainer.tables.retire(before.manifest.version)

    def _noted(self, trainer: Trainer) -> None:
        """Remember what a version must be, and judge it."""
        assert trainer.last is not None
        ref = trainer.last.ref
        outcome: Outcome = "rejected" if self.chance.random() < 0.04 and len(self.line) > 1 else "passed"
        write_verdict(self.world.store, trainer.last.folder, Verdict(version=ref, outcome=outcome))
        self.world.truth[ref] = rows_of(trainer.tables, ref.version)
        self.line.append(ref)

    def _step_number(self) -> None:
        self.version += self.chance.choice([1, 1, 1, 2, 5])

    def _rounded(self, rows: Rows) -> Rows:
        return exact(rows) if self.row_type == "float32" else _quantised(rows, self.row_type)

    def _node(self, name: str) -> Replica:
        return self.world.node(name, versions_kept=_KEPT[name], registry=self.registries[name])


def _numbers(versions: Iterable[int], floor: int) -> list[int]:
    return sorted(version for version in versions if version >= floor)
