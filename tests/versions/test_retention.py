"""Retention: what stays is readable, what goes is needed by nothing that stays, and what is young is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streamlearn.settings import RetentionSettings
from streamlearn.versions import VersionRef
from streamlearn.versions.store.layout import Shape, VersionFolder
from streamlearn.versions.upkeep.retention import CommittedFolder, Inventory, LooseFolder, Retained, retain

DAY_MS = 86_400_000
NOW = 1_000 * DAY_MS
ONE = RetentionSettings(keep_versions_min=1, keep_s=0, orphan_s=3_600)


def folder(shape: Shape, version: int, parent: tuple[int, int] | None, run: int = 1, **said: Any) -> CommittedFolder:
    ref = None if parent is None else VersionRef(version=parent[0], run=parent[1], sha256="0" * 64)
    return CommittedFolder(VersionFolder(run, version, shape, "ctr"), ref, **({"written_wall_ms": 0} | said))


def line(shapes: list[str], begin: int = 1, **said: Any) -> list[CommittedFolder]:
    """A history of versions in a row: `b` a base alone, `d` a delta, `2` both."""
    found = []
    for version, shape in enumerate(shapes, begin):
        parent = (version - 1, 1) if version > 1 else None
        found += [folder("deltas", version, parent, **said)] if shape in "d2" else []
        found += [folder("bases", version, parent, **said)] if shape in "b2" else []
    return found


def names(found: Retained, reason: str | None = None) -> list[str]:
    short = {"deltas": "d", "bases": "b"}
    paths = [name.split("/") for name, why in found.goes.items() if reason in (None, why)]
    return [f"{short[path[1]]}{int(path[2][:12])}" for path in paths]


def loadable(there: Inventory, gone: set[str]) -> set[int]:
    """Versions that can be read, by a plain search: a base, or a delta on a parent that can be."""
    left = {one.folder: one for one in there.committed if one.folder.path not in gone}
    found: set[tuple[int, int]] = set()
    for one in sorted(left, key=lambda at: (at.version, at.shape)):
        parent = left[one].parent
        if one.shape == "bases" or (parent is not None and (parent.version, parent.run) in found):
            found.add((one.version, one.run))
    return {version for version, _ in found}


def test_a_version_stays_with_its_newest_base_and_the_deltas_after_it() -> None:
    there = Inventory(tuple(line(list("bdd2dd2d"))))
    found = retain(there, {6}, ONE, now_wall_ms=NOW)
    assert (found.floor, found.stays, found.unreadable) == (6, (6, 7, 8), ())
    assert names(found) == ["b1", "d2", "d3", "d4"]
    assert loadable(there, set(found.goes)) >= {6, 7, 8}


def test_of_bases_between_only_the_next_those_that_are_named_and_the_newest_stay() -> None:
    there = Inventory(tuple(line(list("b2d2d2d2d2d"))))
    found = retain(there, {1, 7}, ONE, now_wall_ms=NOW)
    assert found.stays == tuple(range(1, 12))
    assert (names(found, "shortened"), names(found, "old")) == (["b4", "b8"], [])


def test_however_often_files_are_removed_what_is_old_goes() -> None:
    """The base that the floor comes to next stays, although newer ones come meanwhile."""
    history = line(list("b"))
    for version in range(2, 100):
        history += line(["2" if version % 5 == 1 else "d"], version, written_wall_ms=version * 1_000)
        rules = RetentionSettings(keep_versions_min=12, keep_s=0)
        found = retain(Inventory(tuple(history)), {version}, rules, now_wall_ms=NOW)
        gone = set(found.goes)
        history = [one for one in history if one.folder.path not in gone]
        assert len({one.folder.version for one in history}) <= 2 * 12 + 5
        assert sum(one.folder.shape == "bases" for one in history) <= 4


@pytest.mark.parametrize(("count", "age_s", "floor"), [(3, 0, 8), (1, 86_400 * 2, 8), (1, 86_400 * 5, 5), (99, 0, 1)])
def test_the_newest_and_the_young_stay(count: int, age_s: int, floor: int) -> None:
    folders = [
        folder("bases" if version in (1, 5) else "deltas", version, (version - 1, 1) if version > 1 else None,
               written_wall_ms=NOW - (10 - version) * DAY_MS)
        for version in range(1, 11)
    ]  # fmt: skip
    rules = RetentionSettings(keep_versions_min=count, keep_s=age_s)
    assert retain(Inventory(tuple(folders)), (), rules, now_wall_ms=NOW).floor == floor


def test_nothing_of_the_history_goes_while_a_version_that_must_stay_cannot_be_read() -> None:
    lost = [one for one in line(list("bdddd2d")) if one.folder.version != 3]
    found = retain(Inventory(tuple(lost)), {4}, ONE, now_wall_ms=NOW)
    assert (found.unreadable, found.goes) == ((4,), {})
    assert retain(Inventory(tuple(lost)), {99}, ONE, now_wall_ms=NOW).floor == 7


def test_what_an_older_run_wrote_too_late_goes_first_and_while_it_stays_it_can_be_told() -> None:
    history = [folder("bases", 1, None), folder("deltas", 2, (1, 1)), folder("deltas", 3, (2, 1), run=2)]
    history += [folder("deltas", 4, (3, 2), run=2), folder("bases", 4, (3, 2), run=2)]
    old = folder("deltas", 3, (2, 1), is_superseded=True)
    young = folder("deltas", 4, (3, 1), is_superseded=True, written_wall_ms=NOW)
    found = retain(Inventory((*history, old)), (), ONE, now_wall_ms=NOW)
    assert list(found.goes.values()) == ["superseded", "old", "old", "old"]
    assert next(iter(found.goes)) == "ctr/deltas/000000000003-00000001"
    kept = retain(Inventory((*history, old, young)), (), ONE, now_wall_ms=NOW)
    runs = {name.rpartition("-")[2] for name in kept.goes}
    assert runs == {"00000001"}
    assert young.folder.path not in set(kept.goes)


def test_what_writers_are_at_work_on_is_left_alone() -> None:
    loose = (LooseFolder("ctr/deltas/a", NOW - 1_000), LooseFolder("ctr/deltas/b", NOW - 3_601_000))
    graphs = (LooseFolder("a" * 64, NOW - 1_000), LooseFolder("b" * 64, 0), LooseFolder("c" * 64, 0))
    there = Inventory((folder("bases", 1, None, graphs={"c" * 64}),), loose, graphs)
    found = retain(there, (), ONE, now_wall_ms=NOW)
    assert list(found.goes.items()) == [("ctr/deltas/b", "uncommitted"), ("b" * 64, "unused")]


def test_a_graph_goes_with_the_last_version_that_names_it_and_stays_while_that_cannot_be_told() -> None:
    graphs = (LooseFolder("a" * 64, 0),)
    gone = folder("bases", 1, None, graphs={"a" * 64})
    history = (gone, folder("deltas", 2, (1, 1)), folder("bases", 2, (1, 1)))
    assert list(retain(Inventory(history, (), graphs), (), ONE, now_wall_ms=NOW).goes.values())[-1] == "unused"
    damaged = folder("deltas", 9, None, is_damaged=True, written_wall_ms=NOW)
    found = retain(Inventory((*history, damaged), (), graphs), (), ONE, now_wall_ms=NOW)
    assert "unused" not in found.goes.values()


def test_versions_that_lead_nowhere_go_when_they_are_old_and_before_all_that_stays() -> None:
    history = line(list("2dd"), begin=5)
    stray, young, later = (
        folder("deltas", 3, (2, 1)), folder("bases", 2, (1, 1), written_wall_ms=NOW), folder("deltas", 6, (4, 0), run=0)
    )  # fmt: skip
    found = retain(Inventory((*history, stray, young, later)), (), ONE, now_wall_ms=NOW)
    assert names(found, "unreachable") == []
    assert names(retain(Inventory((*history, stray, later)), (), ONE, now_wall_ms=NOW), "unreachable") == ["d3"]


def test_a_store_without_versions_has_no_floor() -> None:
    assert retain(Inventory(), {3}, ONE, now_wall_ms=NOW) == Retained((), None, {}, ())


_SHAPES = st.lists(st.sampled_from("dddd2b"), min_size=1, max_size=14)


@hypothesis_settings(max_examples=300, derandomize=True, database=None)
@given(
    shapes=_SHAPES, ages=st.lists(st.integers(0, 20), min_size=14, max_size=14), must=st.sets(st.integers(1, 14)),
    count=st.integers(1, 5), keep_days=st.integers(0, 15), lost=st.sets(st.integers(1, 14), max_size=2),
    superseded=st.sets(st.integers(2, 14), max_size=3),
)  # fmt: skip
def test_what_stays_is_readable_and_nothing_that_is_needed_goes(
    shapes: list[str], ages: list[int], must: set[int], count: int, keep_days: int, lost: set[int], superseded: set[int]
) -> None:
    history = [
        folder(
            one.folder.shape,
            one.folder.version,
            None if one.parent is None else (one.parent.version, 1),
            written_wall_ms=NOW - ages[one.folder.version - 1] * DAY_MS,
        )
        for one in line(["b" if shapes[0] == "d" else shapes[0], *shapes[1:]])
        if one.folder.version not in lost
    ]
    late = [
        folder("deltas", version, (version - 1, 0), run=0, is_superseded=True, written_wall_ms=NOW - ages[0] * DAY_MS)
        for version in superseded
    ]
    there = Inventory((*history, *late))
    rules = RetentionSettings(keep_versions_min=count, keep_s=keep_days * 86_400, orphan_s=86_400)
    found = retain(there, must, rules, now_wall_ms=NOW)
    gone = set(found.goes)
    before, after = loadable(Inventory(tuple(history)), set()), loadable(Inventory(tuple(history)), gone)
    present = {one.folder.version for one in history}
    newest = max(present, default=None)
    assert set(found.stays) <= after
    assert before & must <= after
    assert set(found.unreadable) <= present - before | (must & present)
    if found.floor is not None and not found.unreadable:
        assert must & before <= set(found.stays) | {v for v in must if v < found.floor}
        assert newest in found.stays
        young = {one.folder.version for one in history if one.written_wall_ms >= NOW - keep_days * DAY_MS}
        assert young & before <= after
    # Doing it again with what is left finds nothing more to do.
    left = Inventory(tuple(one for one in there.committed if one.folder.path not in gone))
    again = retain(left, must, rules, now_wall_ms=NOW)
    assert again.stays == found.stays
    assert not set(again.goes.values()) & {"old", "superseded", "shortened"}
