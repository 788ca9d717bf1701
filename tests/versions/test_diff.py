"""Diff: what is another between two versions is what a plain loop over all rows finds, in both directions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamlearn.errors import UsageError, VersionDefect
from streamlearn.versions import Chain, Cut, Store, VersionWriter, compact, diff, write_revert
from streamlearn.versions.upkeep.difference import Diff, TableDiff
from tests.versions.history import MODEL, Trainer
from tests.versions.seen import known


def plain(store: Store, before: int, after: int, table: str) -> dict[str, Any]:
    """The same by a plain loop."""
    old, new = (
        {key: cell for (name, key), cell in known(Chain.find(store, MODEL, version))[0].items() if name == table}
        for version in (before, after)
    )
    norms = {}
    for key in old.keys() & new.keys():
        mine, theirs = (np.frombuffer(one[key][0], "<f4").astype(float) for one in (old, new))
        if mine.tobytes() != theirs.tobytes():
            norms[key] = float(np.linalg.norm(theirs - mine))
    touched = [key for key in old.keys() & new.keys() if old[key] != new[key] and key not in norms]
    return {
        "keys": (len(old), len(new)), "created": len(new.keys() - old.keys()), "gone": len(old.keys() - new.keys()),
        "changed": len(norms), "touched": len(touched), "norms": norms,
    }  # fmt: skip


def check(found: TableDiff, wanted: dict[str, Any], top: int) -> None:
    for name in ("keys", "created", "gone", "changed", "touched"):
        assert getattr(found, name) == wanted[name], name
    farthest = sorted(wanted["norms"].items(), key=lambda one: (-one[1], one[0]))[:top]
    assert [one.key for one in found.largest] == [key for key, _ in farthest]
    np.testing.assert_allclose([one.norm for one in found.largest], [norm for _, norm in farthest])
    np.testing.assert_allclose(found.norm, np.sqrt(sum(norm**2 for norm in wanted["norms"].values())))


def turned(found: Diff) -> list[Any]:
    return [(one.table, one.keys[::-1], one.gone, one.created, one.changed, one.touched) for one in found.tables]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 5), (5, 2), (1, 7), (7, 3), (4, 4)])
def test_rows_are_compared_across_bases_and_reverts(local: Store, before: int, after: int) -> None:
    trainer = Trainer(local)
    trainer.story([1, 2, 3])
    trainer.learn(4)
    trainer.cut(4, 3)
    trainer.story([5])
    compact(local, MODEL, 3)
    trainer.last = write_revert(local, MODEL, to=2, run=1)
    assert trainer.last.manifest.version == 6
    trainer.learn(9)
    trainer.tables.seal(7)
    head = trainer.head(7)
    writer = VersionWriter(local, head)
    writer.add_rows(one for one in trainer.tables.changed(5, 7))
    writer.finish(Cut(metrics={"auc": 0.75, "loss": 0.1}))
    found = diff(local, MODEL, before, after, top=5)
    for one in found.tables:
        check(one, plain(local, before, after, one.table), 5)
    back = diff(local, MODEL, after, before, top=5)
    assert turned(back) == [
        (one.table, one.keys, one.created, one.gone, one.changed, one.touched) for one in found.tables
    ]


def test_a_version_and_its_revert_differ_in_nothing(local: Store) -> None:
    Trainer(local).story([1, 2, 3])
    write_revert(local, MODEL, to=1, run=1)
    found = diff(local, MODEL, 1, 4)
    assert all((one.created, one.gone, one.changed, one.touched, one.norm) == (0, 0, 0, 0, 0.0) for one in found.tables)
    assert all(one.norm == 0.0 for one in found.dense)


def test_versions_whose_deltas_are_gone_are_compared_too(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1, 2, 3, 4])
    compact(local, MODEL)
    wanted = [plain(local, 2, 4, name) for name in ("main", "side")]
    for version in (3, 4):
        local.remove(f"ctr/deltas/{version:012d}-00000001/manifest.json")
    for one, other in zip(diff(local, MODEL, 2, 4).tables, wanted, strict=True):
        check(one, other, 10)


def test_dense_weights_and_metrics_are_side_by_side(local: Store) -> None:
    trainer = Trainer(local)
    first = trainer.story([1])[0]
    head = trainer.head(2, parent=first.ref, kind="delta")
    writer = VersionWriter(local, head)
    writer.add_rows([])
    writer.add_dense({"w": np.full((2, 3), 7, np.float32), "new": np.array([3.0, 4.0]), "nan": np.array([np.nan])})
    writer.finish(Cut(metrics={"loss": 0.25}))
    found = diff(local, MODEL, 1, 2)
    assert found.metrics == {"auc": (0.5, None), "loss": (None, 0.25)}
    by_name = {one.name: one for one in found.dense}
    assert [one.name for one in found.dense] == ["nan", "new", "w"]
    assert (by_name["new"].norm, by_name["new"].norm_before, by_name["new"].norm_after) == (None, None, 5.0)
    before = np.arange(6).reshape(2, 3) + 1.0
    assert by_name["w"].norm == pytest.approx(np.linalg.norm(7 - before))
    assert by_name["w"].number_max == 6.0
    assert by_name["nan"].norm_after == float("inf")
    assert [one.name for one in found.dense if one.is_nan] == ["nan"]


def test_rows_that_are_no_numbers_moved_farthest(local: Store) -> None:
    trainer = Trainer(local)
    trainer.learn(2, 50)
    trainer.cut(1)
    key = next(iter(trainer.tables.changed(None, 1, parts=1024))).keys[:1]
    trainer.tables["main"].put(key, np.array([[np.nan, 0, 0, 0]], np.float32))
    trainer.learn(3, 50)
    trainer.cut(2)
    [move] = diff(local, MODEL, 1, 2, top=1).tables[0].largest
    assert (move.key, move.norm, move.is_nan) == (int(key[0]), float("inf"), True)


def test_what_is_asked_for_must_be_there(local: Store) -> None:
    Trainer(local).story([1])
    with pytest.raises(VersionDefect, match="version 9 does not exist"):
        diff(local, MODEL, 1, 9)
    with pytest.raises(UsageError, match="top is -1"):
        diff(local, MODEL, 1, 1, top=-1)
    assert diff(local, MODEL, 1, 1, top=0).tables[0].largest == ()
