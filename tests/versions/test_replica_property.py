"""Whatever happens to a model, nodes answer with the trainer's rows of every version they are moved to, bit by bit."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import numpy as np
import pytest

from streamlearn.table import Changes, RowType, TableSet
from streamlearn.versions import (
    Canary,
    Chain,
    Cut,
    Replica,
    VersionRef,
    VersionWriter,
    load,
    open_store,
)
from tests.versions.history import MODEL, OPTIONS, PARTS, Trainer, rows_of
from tests.versions.nodes import Rows, World, exact
from tests.versions.test_load import _quantised

_DEADLINE_S = 120


class Life:
    """A model, two nodes, and everything that happens to them.

    Args:
        folder: Where its versions are.
        seed: What happens.
        row_type: Of the nodes' tables.
    """

    def __init__(self, folder: Path, seed: int, row_type: RowType) -> None:
        self.world = World(open_store(str(folder)), row_type=row_type)
        self.chance = random.Random(seed)
        self.row_type = row_type
        self.version = 0
        # The history as it is now, and the trainers that do not know yet that they were replaced.
        self.line: list[VersionRef] = []
        self.replaced: list[Trainer] = []
        self.nodes = {"many": self._node("many"), "few": self._node("few")}
        self.activated: set[VersionRef] = set()
        self.counts: dict[str, int] = {}

    def run(self, versions: int) -> None:
        """Live until there were so many versions."""
        self.cut()
        self.move(self.line[-1])
        happenings = {
            self.cut: 14, self.follow: 14, self.round: 14, self.failed_cut: 1, self.revert: 2, self.compact: 2,
            self.rollback: 3, self.release: 3, self.canary: 1, self.restart: 1, self.race: 1,
        }  # fmt: skip
        until_s = time.monotonic() + _DEADLINE_S
        while len(self.world.truth) < versions or min(self.counts.values()) < 2 or len(self.counts) < len(happenings):
            assert time.monotonic() < until_s, self.counts
            [happening] = self.chance.choices(list(happenings), list(happenings.values()))
            self.counts[happening.__name__] = self.counts.get(happening.__name__, 0) + 1
            happening()
        self.round()

    def cut(self) -> None:
        """The trainer publishes what it learned: keys come, learn, go and come back within one version."""
        trainer, seed = self.world.trainer, self.chance.randrange(1_000)
        for table in ("main", "side"):
            trainer.learn(seed, self.chance.randrange(0, 60), table)
            trainer.forget(seed + 1, self.chance.randrange(0, 40), table)
            trainer.learn(seed + 2, self.chance.randrange(0, 20), table)
        self._committed(trainer)

    def failed_cut(self) -> None:
        """Some files were written, and no manifest: the next version says it all."""
        trainer = self.world.trainer
        self._step_number()
        trainer.learn(self.version, 30)
        trainer.tables.seal(self.version)
        trainer.write(trainer.head(self.version), self._since(trainer), self.chance.choice([1, 2]))
        trainer.tables.abandon(self.version)

    def revert(self) -> None:
        """Training goes back: a new version with the content of an older one."""
        to = self.chance.choice(self.line[-6:])
        trainer = self.world.trainer
        older, newer = (self._tables(ref) for ref in (to, self.line[-1]))
        self._step_number()
        head = trainer.head(self.version, kind="revert")
        writer = VersionWriter(trainer.store, head, trainer.settings)
        writer.add_rows(_back(older, to.version, newer, self.line[-1].version))
        trainer.last = writer.finish(Cut(), clock=self.world.clock)
        trainer.tables = TableSet(OPTIONS)
        load(Chain.find(trainer.store, MODEL), trainer.tables, training=True)
        self.line.append(self.world.note(trainer.last))
        assert self.world.truth[self.line[-1]] == self.world.truth[to]

    def compact(self) -> None:
        """A base is written for the newest version."""
        trainer = self.world.trainer
        assert trainer.last is not None
        folder = f"{MODEL}/bases/{trainer.last.ref.version:012d}-{trainer.last.ref.run:08d}"
        if not trainer.store.exists(f"{folder}/manifest.json"):
            trainer.base(trainer.last)

    def race(self) -> None:
        """A new run takes over; the old one may go on to publish, and may even be served, before it is told."""
        world, old = self.world, self.world.trainer
        assert old.last is not None
        new = Trainer(world.store, run=old.run + 1, last=old.last)
        load(Chain.find(world.store, MODEL), new.tables, training=True)
        number = self.version
        if self.chance.random() < 0.7:
            old.learn(number, 50)
            self._committed(old)
            late = self.line.pop()
            if self.chance.random() < 0.5:
                self.move(late)
                self.round()
            elif self.chance.random() < 0.5:
                self.round()
        # It knows nothing of what the other wrote, and may give it the same number.
        self.version = number if self.chance.random() < 0.7 else self.version
        world.trainer = new
        new.learn(number + 1, 50)
        self._committed(new)

    def follow(self) -> None:
        """The pointer goes to the newest version, unless it is held."""
        if not self.world.log.newest().held:
            self.move(self.line[-1])

    def rollback(self) -> None:
        """The pointer goes back, near or far, and is held."""
        at = self.world.log.newest().active
        older = [ref for ref in self.line if at is None or ref.version < at.version]
        if older:
            to = self.chance.choice(older[-12:])
            left = next((ref.version for ref in self.line if ref.version > to.version), 0)
            self.move(to, held=True, canary=None, taints=(left,))

    def release(self) -> None:
        """The pointer follows again."""
        self.move(self.line[-1], held=False, canary=None, taints=())

    def canary(self) -> None:
        """A version is tried on a share of the requests."""
        active = self.world.log.newest().active
        others = [ref for ref in self.line[-4:] if ref != active]
        if others and active in self.line:
            self.move(active, canary=Canary(version=self.chance.choice(others), share=0.1))

    def move(self, to: VersionRef, **said: object) -> None:
        """Move the pointer; sometimes the registry is not told."""
        registry = self.world.registry
        assert registry is not None
        registry.is_away = self.chance.random() < 0.2
        self.world.serve(to, **said)
        registry.is_away = self.chance.random() < 0.1

    def restart(self) -> None:
        """A node begins anew."""
        name = self.chance.choice(list(self.nodes))
        self.nodes[name].close()
        self.nodes[name] = self._node(name)

    def round(self) -> None:
        """Nodes do what there is to do, and answer with what they must."""
        pointer = self.world.log.newest()
        for name, node in self.nodes.items():
            if name == "few" and self.chance.random() < 0.5:
                continue
            node.step()
            status = node.status()
            assert (status.active, status.seq) == (pointer.active, pointer.seq), status
            self.world.check(node, named=self._rounded)
            assert pointer.active is not None
            self.activated.add(pointer.active)
            self._check_staged(node)

    def _check_staged(self, node: Replica) -> None:
        staged = node.status().staged
        with node.reading(self.chance.choice(staged).version) as read:
            assert rows_of(read.tables, read.version) == self._rounded(self.world.truth[read.ref])

    def _rounded(self, rows: Rows) -> Rows:
        return exact(rows) if self.row_type == "float32" else _quantised(rows, self.row_type)

    def _committed(self, trainer: Trainer) -> None:
        self._step_number()
        before = trainer.last
        self.line.append(self.world.note(trainer.cut(self.version, self.chance.choice([1, 1, 2, 3]))))
        if before is not None and before.manifest.version in trainer.tables.retained:
            trainer.tables.retire(before.manifest.version)

    def _step_number(self) -> None:
        self.version += self.chance.choice([1, 1, 1, 2, 5])

    def _since(self, trainer: Trainer) -> int | None:
        return trainer.last.manifest.version if trainer.last else None

    def _tables(self, ref: VersionRef) -> TableSet:
        tables = TableSet(OPTIONS)
        load(Chain.find(self.world.store, MODEL, ref.version), tables, training=True)
        return tables

    def _node(self, name: str) -> Replica:
        return self.world.node(name, versions_kept=4 if name == "many" else 1)


def _back(older: TableSet, to: int, newer: TableSet, since: int) -> list[Changes]:
    """All rows of an older version, and the keys that came since as gone."""
    found = []
    come = {one.table: one.keys for one in newer.changed(None, since, parts=PARTS)}
    for one in older.changed(None, to, parts=PARTS):
        gone = np.setdiff1d(come[one.table], one.keys)
        arrays = {name: getattr(one, name) for name in ("state", "ticks", "counts")}
        found.append(Changes(one.table, one.keys, one.rows, gone=gone, **arrays))
    return found


@pytest.mark.parametrize(("seed", "row_type", "versions"), [(1, "float32", 200), (2, "float16", 60), (3, "int8", 60)])
def test_nodes_answer_with_the_trainers_rows_at_every_version_they_are_moved_to(
    tmp_path: Path, seed: int, row_type: RowType, versions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing here is about what a loss of power leaves, and waiting for the disk would be most of the time.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    life = Life(tmp_path / "store", seed, row_type)
    life.run(versions)
    assert len(life.activated) > versions // 6
    for node in life.nodes.values():
        node.close()
