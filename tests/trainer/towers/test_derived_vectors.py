"""Vectors of versions: those that rows and weights do not make are named, and so are those without an item."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.apps import AppFolder
from streamlearn.errors import UsageError
from streamlearn.features.retrieval import TOWERS
from streamlearn.table import Changes
from streamlearn.trainer.towers.derived_vectors import derived_vectors
from streamlearn.trainer.towers.item_vectors import encoded
from streamlearn.trainer.towers.tower_learner import TowerLearner
from streamlearn.versions import Chain, Cut, Head, VersionWriter, compact, load_tensors, open_store, verify
from streamlearn.versions.format.library_files import GONE, library_in, vectors_in
from tests.serving.test_trained_retrieval import learned
from tests.trainer.runs import store_of

_Tensors = dict[str, Any]


@pytest.fixture(scope="module", params=["two_tower", "towers:Weighted"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AppFolder:
    return learned(tmp_path_factory.mktemp("app") / "app", request.param)


def all_vectors(chain: Chain) -> _Tensors:
    found = vectors_in(chain.store, chain.links)
    assert found is not None
    return found


def with_next(folder: AppFolder, path: Path, vectors: _Tensors, rows: list[Changes], gone: _Tensors) -> Chain:
    """A copy of the store in which a version follows that has other vectors, rows or items."""
    copied = copy_of(folder, path)
    before = Chain.find(copied, folder.app.name)
    manifest = before.manifest
    head = Head(
        model=manifest.model, run=manifest.run, version=manifest.version + 1, kind="delta", parent=before.ref,
        fingerprint=manifest.fingerprint, labels=manifest.labels, windows=manifest.windows, tables=manifest.tables,
    )  # fmt: skip
    library = library_in(copied, before.links)
    assert library is not None
    none = {name: column[: 1 if name.endswith(("[]", "$")) else 0] for name, column in library.items()}
    writer = VersionWriter(copied, head)
    writer.add_rows(rows)
    writer.add_dense(load_tensors(copied, before.head))
    writer.add_library(none | gone)
    writer.add_vectors({name: column[:0] for name, column in all_vectors(before).items()} | vectors)
    writer.finish(Cut(graph=manifest.graph, retrieval=manifest.retrieval))
    return Chain.find(copied, folder.app.name)


def copy_of(folder: AppFolder, path: Path) -> Any:
    shutil.copytree(folder.store_url.removeprefix("file://"), path / "store")
    return open_store((path / "store").as_uri())


def test_vectors_of_all_versions_and_bases_are_what_rows_and_weights_make(trained: AppFolder, tmp_path: Path) -> None:
    store, name = copy_of(trained, tmp_path), trained.app.name
    for version in (1, 2, 3, 4):
        chain = Chain.find(store, name, version)
        found = derived_vectors(trained, chain)
        assert (found.version, found.made) == (version, len(all_vectors(chain)["key"]))
        assert found.rounded <= found.made // 20  # TensorFlow may round a row of a larger batch otherwise
        assert found.defects == ()
        assert found.made > 0
    compact(store, name)
    (_,) = Chain.find(store, name).links
    assert derived_vectors(trained, Chain.find(store, name)).defects == ()


def test_a_forged_vector_is_named_with_its_item_and_version(trained: AppFolder, tmp_path: Path) -> None:
    whole = all_vectors(Chain.find(store_of(trained), trained.app.name))
    forged = {name: column[[3, 5]].copy() for name, column in whole.items() if name != GONE}
    forged["row"][0, 1] += np.int8(2) if forged["row"][0, 1] < 0 else np.int8(-2)
    forged["row"][1, 2] += np.int8(1) if forged["row"][1, 2] < 0 else np.int8(-1)  # as another processor may round
    chain = with_next(trained, tmp_path, forged, [], {})
    library = library_in(chain.store, chain.links)
    assert library is not None
    item = int(library["id"][library["key"] == whole["key"][3]][0])
    found = derived_vectors(trained, chain)
    assert [(defect.path, defect.defect) for defect in found.defects] == [(chain.head.folder, "corrupted")]
    assert f"item {item} in version 5" in found.defects[0].message
    assert found.rounded >= 1
    assert verify(chain.store, chain.model, everything=True).defects == ()  # checksums say nothing of it
    scaled = forged | {"row": whole["row"][[3, 5]], "scale": forged["scale"] * np.float32(1.01)}
    (tmp_path / "scaled").mkdir()
    assert len(derived_vectors(trained, with_next(trained, tmp_path / "scaled", scaled, [], {})).defects) == 2


def test_zeros_are_right_for_a_vector_with_a_number_that_is_not_finite(
    trained: AppFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, items = all_vectors(Chain.find(store_of(trained), trained.app.name)), TowerLearner.items

    def damaged(learner: TowerLearner, *given: Any) -> Any:
        vectors = np.array(items(learner, *given))
        vectors[3, 1] = np.inf
        return vectors

    zeros = dict(zip(("row", "scale"), encoded(np.zeros((1, whole["row"].shape[1]), np.float32)), strict=True))
    chain = with_next(trained, tmp_path, {"key": whole["key"][3:4]} | zeros, [], {})
    assert len(derived_vectors(trained, chain).defects) == 1
    monkeypatch.setattr(TowerLearner, "items", damaged)
    assert derived_vectors(trained, chain).defects == ()


def test_vectors_that_did_not_follow_their_rows_are_named_up_to_a_bound(trained: AppFolder, tmp_path: Path) -> None:
    store, name = store_of(trained), trained.app.name
    keys = all_vectors(Chain.find(store, name))["key"]
    dim = 8 if trained.app.retrieval is None else trained.app.retrieval.dim
    rows = np.random.default_rng(1).standard_normal((len(keys), dim)).astype(np.float32)
    record = next(table for table in Chain.find(store, name).manifest.tables if table.name == TOWERS)
    width = 0 if record.optimizer is None else record.optimizer.state_width(dim)
    state = np.ones((len(keys), width), np.float32)
    changes = Changes(
        TOWERS, keys, rows, state=state, ticks=np.ones(len(keys), np.uint32), counts=np.ones(len(keys), np.uint8)
    )
    found = derived_vectors(trained, with_next(trained, tmp_path, {}, [changes], {}))
    assert len(found.defects) == 20
    assert f"so are those of {len(keys) - 20} other items" in found.defects[-1].message


def test_vectors_without_an_item_and_items_without_a_vector_are_defects(trained: AppFolder, tmp_path: Path) -> None:
    gone = all_vectors(Chain.find(store_of(trained), trained.app.name))["key"][:3]
    chain = with_next(trained, tmp_path, {}, [], {GONE: gone})
    (defect,) = verify(chain.store, chain.model).defects
    assert (defect.path, defect.defect) == (chain.head.folder, "corrupted")
    assert f"3 of its vectors have no item, the first key {gone[0]}" in defect.message
    (tmp_path / "other").mkdir()
    chain = with_next(trained, tmp_path / "other", {GONE: gone}, [], {})
    (defect,) = verify(chain.store, chain.model, everything=True).defects
    assert f"3 of its items have no vector, the first key {gone[0]}" in defect.message


def test_another_application_cannot_make_them(trained: AppFolder) -> None:
    assert trained.app.retrieval is not None
    other = replace(trained, app=replace(trained.app, retrieval=replace(trained.app.retrieval, item=("video_id",))))
    with pytest.raises(UsageError, match="was not made by the towers"):
        derived_vectors(other, Chain.find(store_of(trained), trained.app.name))
