"""Verify names everything that is wrong with files, wherever it is, and nothing where nothing is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from streamlearn.table import RowType
from streamlearn.versions import Committed, Cut, Store, VersionWriter, compact, verify
from streamlearn.versions.format.graphs import put_graph
from streamlearn.versions.format.manifest import KINDS, FileKind
from tests.versions.history import MODEL, Trainer


def spoil(store: Store, path: str, *, cut: bool = False) -> None:
    """Change a bit in the middle of a file, or leave its second half out."""
    file = Path(store.url.removeprefix("file://")) / path
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink()
    file.write_bytes(data[: len(data) // 2] if cut else data)


def test_versions_that_are_whole_have_no_defects(store: Store) -> None:
    trainer = Trainer(store)
    trainer.story([1, 2])
    trainer.learn(3)
    trainer.cut(3, 3)
    compact(store, MODEL)
    newest, whole = verify(store, MODEL), verify(store, MODEL, everything=True)
    older = verify(store, MODEL, 2)
    assert newest.defects == older.defects == whole.defects == ()
    assert (newest.versions, older.versions, whole.versions) == ((3,), (1, 2), (1, 2, 3))
    files = [one for one in store.walk(MODEL) if not one.path.endswith("manifest.json")]
    assert (whole.files, whole.bytes) == (len(files), sum(one.bytes for one in files))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("library", "vectors")])  # see tests/library
@pytest.mark.parametrize("cut", [False, True])
def test_each_kind_of_file_is_read(local: Store, kind: FileKind, cut: bool) -> None:
    committed = Trainer(local).story([1, 2])[1]
    path = f"{committed.folder}/{committed.manifest.of_kind(kind)[0].path}"
    spoil(local, path, cut=cut)
    found = verify(local, MODEL)
    assert [(one.path, one.defect) for one in found.defects] == [(path, "truncated" if cut else "corrupted")]
    assert verify(local, MODEL, 1).defects == ()


def test_all_that_is_wrong_is_named(local: Store) -> None:
    first, second, third = Trainer(local).story([1, 2, 3])
    spoiled: list[tuple[Committed, FileKind]] = [
        (first, "rows"), (first, "optimizer"), (second, "marks"), (third, "dense")
    ]  # fmt: skip
    wrong = [f"{one.folder}/{one.manifest.of_kind(kind)[0].path}" for one, kind in spoiled]
    for path in wrong:
        spoil(local, path)
    absent = f"{third.folder}/{third.manifest.of_kind('gone')[1].path}"
    local.remove(absent)
    found = verify(local, MODEL)
    assert sorted(one.path for one in found.defects) == sorted([*wrong, absent])
    assert {one.defect for one in found.defects} == {"corrupted", "missing_file"}
    assert all(one.path in one.message for one in found.defects)


def test_manifests_and_what_ties_them_are_looked_at(local: Store) -> None:
    trainer = Trainer(local)
    first, _, third = trainer.story([1, 2, 3])
    spoil(local, f"{third.folder}/manifest.json")
    found = verify(local, MODEL, everything=True)
    assert f"{third.folder}/manifest.json" in {one.path for one in found.defects}
    assert [one.defect for one in verify(local, MODEL).defects] == ["corrupted"]
    local.remove(f"{third.folder}/manifest.json")
    local.remove(f"{first.folder}/manifest.json")
    assert [one.defect for one in verify(local, MODEL, everything=True).defects] == ["gap"]


def test_another_version_in_the_place_of_a_parent_is_foreign(local: Store) -> None:
    trainer = Trainer(local)
    first, second = trainer.story([1, 2])
    local.remove(f"{first.folder}/manifest.json")
    again = VersionWriter(local, trainer.head(1, kind="base", parent=None))
    again.add_rows([])
    again.finish(Cut())
    found = verify(local, MODEL, everything=True)
    assert {one.defect for one in found.defects} == {"foreign"}
    assert second.folder in {one.path for one in found.defects}


def test_graphs_that_versions_name_are_read(local: Store, tmp_path: Path) -> None:
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph" / "saved_model.pb").write_bytes(b"x" * 1_000)
    graph = put_graph(local, MODEL, tmp_path / "graph")
    writer = VersionWriter(local, Trainer(local).head(1))
    writer.add_rows([])
    writer.finish(Cut(graph=graph))
    assert verify(local, MODEL).defects == ()
    [file] = [one for one in local.walk(f"ctr/graphs/{graph}") if one.path.endswith(".bin")]
    spoil(local, file.path)
    assert [(one.path, one.defect) for one in verify(local, MODEL).defects] == [(file.path, "corrupted")]
    local.remove(f"ctr/graphs/{graph}/graph.json")
    assert [one.defect for one in verify(local, MODEL).defects] == ["missing_file"]


def test_a_model_without_versions_is_named(local: Store) -> None:
    assert [one.defect for one in verify(local, MODEL).defects] == ["missing"]
    assert [one.defect for one in verify(local, MODEL, everything=True).defects] == ["missing"]


def test_progress_goes_up_to_all_bytes(local: Store) -> None:
    Trainer(local).story([1, 2])
    told: list[tuple[int, int]] = []
    found = verify(local, MODEL, progress=lambda done, whole: told.append((done, whole)))
    assert told == sorted(told)
    assert told[-1] == (found.bytes, found.bytes)


def poisoned(rows: npt.NDArray[Any], at: int) -> npt.NDArray[Any]:
    """Rows of which one has a NaN and an infinite number."""
    changed = rows.copy()
    changed[at, :2] = np.nan, np.inf
    return changed


@pytest.mark.parametrize("row_type", ["float32", "float16", "int8"])
def test_numbers_that_are_nan_or_infinite_are_named_by_version_and_table(local: Store, row_type: RowType) -> None:
    trainer = Trainer(local, row_type=row_type)
    trainer.story([1])
    trainer.learn(7)
    trainer.tables.seal(2)
    main = max((one for one in trainer.tables.changed(1, 2) if one.table == "main"), key=len)
    at = len(main) // 2
    assert main.state is not None
    writer = VersionWriter(local, trainer.head(2))
    bad_rows, bad_state = replace(main, rows=poisoned(main.rows, at)), poisoned(main.state, at + 1)
    writer.add_rows([replace(bad_rows, state=bad_state)])
    writer.add_dense({"w": np.array([1, -np.inf, np.nan], np.float32), "steps": np.arange(3)})
    writer.add_dense_optimizer({"m": np.full(50_000, np.nan)})  # in several files
    second = writer.finish(Cut())
    found = verify(local, MODEL)
    assert found.defects == ()
    said = {(one.kind, one.name): one for one in found.not_finite}
    assert {one.path for one in found.not_finite} == {second.folder}
    rows, state = said.pop(("rows", "main")), said.pop(("optimizer", "main"))
    # An int8 row of such numbers has a scale that is none.
    assert (rows.count, rows.key) == (1 if row_type == "int8" else 2, int(main.keys[at]))
    keys = main.keys[at + 1 : at + 2] if row_type == "float32" else main.keys[at : at + 2]
    assert (state.count, state.key) == (2 * len(keys), int(keys.min()))
    assert {kind: (name, one.count, one.key) for (kind, name), one in said.items()} == {
        "dense": ("w", 2, None),
        "dense_optimizer": ("m", 50_000, None),
    }
    assert verify(local, MODEL, 1).not_finite == ()
    assert len(verify(local, MODEL, everything=True).not_finite) == 4
    assert f"the first in the row of key {main.keys[at]}" in rows.said
