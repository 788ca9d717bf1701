"""Gc: the plan says what goes and changes nothing; carrying it out leaves a readable store at every moment."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.errors import VersionDefect
from streamlearn.settings import RetentionSettings
from streamlearn.testing import ManualClock
from streamlearn.versions import (
    Chain,
    Cut,
    Store,
    Verdict,
    VersionWriter,
    compact,
    plan_gc,
    sweep,
    verify,
    write_verdict,
)
from streamlearn.versions.format.graphs import put_graph
from streamlearn.versions.format.manifest import RetrievalRecord
from streamlearn.versions.upkeep.gc import GcPlan, Swept
from tests.versions.history import MODEL, Trainer
from tests.versions.seen import known, served

ONE = RetentionSettings(keep_versions_min=1, keep_s=0, orphan_s=3_600)


def later(hours: float = 2) -> ManualClock:
    return ManualClock(SYSTEM_CLOCK.wall_ms() + int(hours * 3_600_000))


def planned(store: Store, must: tuple[int, ...] = (), hours: float = 2, **said: Any) -> GcPlan:
    return plan_gc(store, MODEL, must, settings=ONE, clock=later(hours), **said)


def swept(store: Store, plan: GcPlan) -> Swept:
    return sweep(store, plan, raise_floor=lambda floor: None, wait=lambda: None)


def reasons(plan: GcPlan) -> list[tuple[str, str]]:
    return [(one.folder.removeprefix("ctr/")[:19], one.reason) for one in plan.removals]


def test_a_plan_changes_nothing_and_what_is_carried_out_is_what_it_said(store: Store) -> None:
    trainer = Trainer(store)
    trainer.story([1, 2, 3])
    compact(store, MODEL)
    trainer.story([4])
    wanted = known(Chain.find(store, MODEL)), served(Chain.find(store, MODEL))
    before = {one.path: one.bytes for one in store.walk(MODEL)}
    plan = planned(store)
    assert {one.path: one.bytes for one in store.walk(MODEL)} == before
    assert reasons(plan) == [
        ("bases/000000000001-", "old"),
        ("deltas/000000000002", "old"),
        ("deltas/000000000003", "old"),
    ]
    assert plan.retained.floor == 4
    done = swept(store, plan)
    after = {one.path: one.bytes for one in store.walk(MODEL)}
    assert sum(before.values()) - sum(after.values()) == done.bytes == plan.bytes
    assert len(before) - len(after) == done.files == sum(len(one.files) for one in plan.removals)
    assert (known(Chain.find(store, MODEL)), served(Chain.find(store, MODEL))) == wanted
    assert not planned(store).removals
    assert not verify(store, MODEL, everything=True).defects


def test_named_versions_stay_readable_and_those_below_the_floor_are_said_to_be_gone(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1, 2])
    compact(local, MODEL)
    trainer.story([3, 4])
    compact(local, MODEL)
    wanted = known(Chain.find(local, MODEL, 3))
    plan = planned(local, (3,))
    assert plan.retained.stays == (3, 4)
    swept(local, plan)
    assert known(Chain.find(local, MODEL, 3)) == wanted
    with pytest.raises(VersionDefect, match="version 1 does not exist"):
        Chain.find(local, MODEL, 1)


def test_what_others_need_by_the_end_of_the_wait_stays(local: Store) -> None:
    """A plan is a quarter of an hour old when it is carried out; another one may have removed what it relied on."""
    trainer = Trainer(local)
    for versions in ([1, 2], [3, 4], [5, 6]):
        trainer.story(versions)
        compact(local, MODEL)
    plan = planned(local, (1,))
    assert reasons(plan) == [("bases/000000000004-", "shortened")]
    again = planned(local, (5,))

    def wait() -> None:
        swept(local, again)

    done = sweep(local, plan, raise_floor=lambda floor: None, wait=wait, plan_again=lambda: again)
    assert (done.files, len(done.spared)) == (0, 1)
    assert Chain.find(local, MODEL, 5).version == 5


def test_a_version_that_is_needed_by_the_end_of_the_wait_stays_though_a_leftover_in_its_folder_goes(
    local: Store,
) -> None:
    trainer = Trainer(local)
    for versions in ([1, 2], [3, 4]):
        trainer.story(versions)
        compact(local, MODEL)
    wanted = known(Chain.find(local, MODEL, 2))
    folders = [f"ctr/{shape}/000000000002-00000001" for shape in ("deltas", "bases")]
    unnamed = []
    for folder in folders:
        with local.writer(f"{folder}/rows/main-0-9", ".arrow") as file:
            file.write(b"of a killed writer")
            unnamed.append(file.finish().path)
    plan, again = planned(local), planned(local, (2,))
    assert {one.reason for one in plan.removals if one.folder in folders} == {"old"}
    assert "leftover" in {one.reason for one in again.removals if one.folder in folders}
    done = sweep(local, plan, raise_floor=lambda floor: None, wait=lambda: None, plan_again=lambda: again)
    assert known(Chain.find(local, MODEL, 2)) == wanted
    assert not any(map(local.exists, unnamed))
    assert set(folders) & set(done.spared)


def test_the_floor_is_raised_and_waited_for_before_anything_is_removed(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1, 2])
    compact(local, MODEL)
    steps: list[Any] = []

    def count() -> int:
        return len(local.walk(MODEL))

    before = count()
    sweep(
        local,
        planned(local),
        raise_floor=lambda floor: steps.append((floor, count())),
        wait=lambda: steps.append(count()),
    )
    assert steps == [(2, before), before]
    assert count() < before


def test_a_plan_without_removals_asks_nobody_to_wait(local: Store) -> None:
    Trainer(local).story([1])
    plan = planned(local)
    steps: list[str] = []
    assert sweep(local, plan, raise_floor=lambda _: steps.append("floor"), wait=lambda: steps.append("wait")).files == 0
    assert steps == []


def test_folders_of_killed_writers_go_when_they_are_old_and_folders_do_not_stay_behind(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1])
    killed = VersionWriter(local, trainer.head(2))
    killed.add_rows([])
    local.writer("ctr/deltas/000000000002-00000001/rows/main-0-1", ".arrow").write(b"half")
    assert planned(local, hours=0.5).removals == ()
    plan = planned(local)
    assert reasons(plan) == [("deltas/000000000002", "uncommitted")]
    swept(local, plan)
    root = Path(local.url.removeprefix("file://"))
    assert not (root / "ctr/deltas").exists()
    assert Chain.find(local, MODEL).version == 1


def test_what_killed_writers_left_beside_versions_goes_and_what_others_keep_there_stays(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1])
    place = "ctr/bases/000000000001-00000001"
    with local.writer(f"{place}/rows/main-0-9", ".arrow") as file:
        file.write(b"of a killed writer")
        unnamed = file.finish().path
    half = local.writer(f"{place}/rows/main-0-8", ".arrow")
    half.write(b"half")
    write_verdict(local, place, Verdict(version=Chain.find(local, MODEL).ref, outcome="passed"))
    [left] = planned(local).removals
    assert (left.reason, len(left.files), unnamed in {one.path for one in left.files}) == ("leftover", 2, True)
    swept(local, planned(local))
    assert local.leftovers(f"{place}/rows") == []
    assert local.exists(f"{place}/verdict.json")
    assert not local.exists(unnamed)
    assert not verify(local, MODEL).defects


def test_what_was_committed_since_the_plan_is_spared(local: Store) -> None:
    trainer = Trainer(local)
    first = trainer.story([1])[0]
    slow = VersionWriter(local, trainer.head(2, parent=first.ref, kind="delta"))
    slow.add_rows([])
    plan = planned(local)
    slow.finish(Cut())
    assert swept(local, plan).spared == ("ctr/deltas/000000000002-00000001",)
    assert Chain.find(local, MODEL).version == 2
    assert not verify(local, MODEL).defects


def test_versions_an_older_run_wrote_too_late_go(local: Store) -> None:
    old = Trainer(local)
    _, second = old.story([1, 2])
    new = Trainer(local, run=2, last=second)
    new.tables = old.tables
    third = VersionWriter(local, new.head(3))
    third.add_rows([])
    third.finish(Cut())
    late = VersionWriter(local, old.head(4))
    late.add_rows([])
    late.finish(Cut())
    assert Chain.find(local, MODEL).superseded == ("ctr/deltas/000000000004-00000001",)
    plan = planned(local)
    assert reasons(plan) == [("deltas/000000000004", "superseded")]
    swept(local, plan)
    assert Chain.find(local, MODEL).superseded == ()


def test_graphs_go_with_the_last_version_that_names_them(local: Store, tmp_path: Path) -> None:
    trainer = Trainer(local)
    ids = []
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "graph.pb").write_text(name)
        ids.append(put_graph(local, MODEL, tmp_path / name))
    trainer.tables.seal(1)
    writer = VersionWriter(local, trainer.head(1))
    writer.add_rows([])
    (tmp_path / "towers").mkdir()
    (tmp_path / "towers" / "graph.pb").write_text("towers")
    towers = put_graph(local, MODEL, tmp_path / "towers")
    retrieval = RetrievalRecord(graph=towers, fingerprint="f", label="click", dim=4)
    first = writer.finish(Cut(graph=ids[0], retrieval=retrieval))
    plan = planned(local)
    assert sorted(one.folder.rpartition("/")[2] for one in plan.removals) == sorted(ids[1:])
    # A version that is committed after the plan names one of them again.
    following = VersionWriter(local, trainer.head(2, parent=first.ref, kind="delta"))
    following.add_rows([])
    following.finish(Cut(graph=ids[1]))
    assert [one.rpartition("/")[2] for one in swept(local, plan).spared] == [ids[1]]
    there = {one.name for one in local.entries("ctr/graphs")}
    assert there == {*ids[:2], towers}
    assert not verify(local, MODEL, everything=True).defects


def test_progress_goes_up_to_all_bytes(local: Store) -> None:
    Trainer(local).story([1, 2])
    compact(local, MODEL)
    plan, told = planned(local), list[tuple[int, int]]()
    sweep(
        local, plan, raise_floor=lambda floor: None, wait=lambda: None,
        progress=lambda done, whole: told.append((done, whole)),
    )  # fmt: skip
    assert told == sorted(told)
    assert told[-1] == (plan.bytes, plan.bytes)


def test_a_damaged_manifest_is_no_reason_to_remove_what_stays(local: Store) -> None:
    trainer = Trainer(local)
    trainer.story([1, 2, 3])
    compact(local, MODEL)
    trainer.story([4])
    local.remove("ctr/deltas/000000000002-00000001/manifest.json")
    local.create("ctr/deltas/000000000002-00000001/manifest.json", b"{}")
    wanted = known(Chain.find(local, MODEL))
    # What cannot be read for it is told, and then nothing of the history goes.
    assert planned(local, (1,)).retained.unreadable == (1,)
    assert planned(local, (1,)).removals == ()
    swept(local, planned(local))
    assert known(Chain.find(local, MODEL)) == wanted


def test_a_sweep_killed_at_any_step_leaves_what_stays_readable(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.versions.file_crashes", str(tmp_path / "store"), "gc", "300"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    ends = [tuple(one) for one in json.loads(done.stdout)]
    assert ends[0] == (signal.SIGKILL, False)
    assert ends[-1] == (0, True)
    assert len(ends) > 30
