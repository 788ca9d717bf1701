"""Graphs: a folder under the hash of what is in it, stored once and brought back whole."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from streamlearn.errors import UsageError, VersionDefect
from streamlearn.versions import Store, open_store
from streamlearn.versions.format.graphs import get_graph, graph_id_of, put_graph


def made(folder: Path, files: dict[str, bytes] | None = None) -> Path:
    for name, data in (files or {"saved_model.pb": b"graph" * 1_000, "variables/index": b"", "a b/é": b"1"}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_graph_comes_back_as_it_was(store: Store, tmp_path: Path) -> None:
    folder = made(tmp_path / "graph")
    graph_id = put_graph(store, "ctr", folder)
    assert graph_id == graph_id_of(folder)
    get_graph(store, "ctr", graph_id, tmp_path / "deep" / "copy")
    assert content(tmp_path / "deep" / "copy") == content(folder)
    assert graph_id_of(tmp_path / "deep" / "copy") == graph_id


def test_a_graph_is_stored_once(local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph_id = put_graph(local, "ctr", made(tmp_path / "one"))
    before = content(tmp_path / "store")
    monkeypatch.setattr(local, "writer", None)
    assert put_graph(local, "ctr", made(tmp_path / "two")) == graph_id
    assert content(tmp_path / "store") == before


def test_two_may_store_a_graph_at_once(local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path / "one")
    graph_id = put_graph(open_store(str(tmp_path / "store")), "ctr", folder)
    monkeypatch.setattr(local, "exists", lambda _: False)
    assert put_graph(local, "ctr", folder) == graph_id


@pytest.mark.parametrize(
    "files", [{"x": b"1"}, {"y": b"2"}, {"x": b"1", "y": b""}, {"x/y": b"1"}, {"xy": b"1"}, {"x": b"1", "y/z": b"1"}]
)
def test_other_names_or_contents_are_another_graph(tmp_path: Path, files: dict[str, bytes]) -> None:
    assert graph_id_of(made(tmp_path / "one", {"x": b"2"})) != graph_id_of(made(tmp_path / "two", files))


def test_a_damaged_graph_is_refused_and_nothing_is_left(local: Store, tmp_path: Path) -> None:
    graph_id = put_graph(local, "ctr", made(tmp_path / "graph"))
    place = tmp_path / "store" / "ctr" / "graphs" / graph_id
    for file in sorted(place.iterdir()):
        raw = file.read_bytes()
        for damaged, defect in ((raw[:-1] + b"?", "corrupted"), (raw[:-1], "truncated"), (None, "missing_file")):
            if not raw and damaged is not None:
                continue
            file.unlink(missing_ok=True)
            if damaged is not None:
                file.write_bytes(damaged)
            with pytest.raises(VersionDefect) as refused:
                get_graph(local, "ctr", graph_id, tmp_path / "copy")
            assert refused.value.defect in (defect, "corrupted" if file.name == "graph.json" else defect)
        file.write_bytes(raw)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["graph", "store"]
    get_graph(local, "ctr", graph_id, tmp_path / "copy")


def test_a_graph_of_another_id_is_refused(local: Store, tmp_path: Path) -> None:
    graph_id = put_graph(local, "ctr", made(tmp_path / "graph"))
    graphs = tmp_path / "store" / "ctr" / "graphs"
    (graphs / graph_id).rename(graphs / ("0" * 64))
    with pytest.raises(VersionDefect, match=f"its files make graph {graph_id}, not 0000"):
        get_graph(local, "ctr", "0" * 64, tmp_path / "copy")
    with pytest.raises(UsageError, match="is not a graph id"):
        get_graph(local, "ctr", "../x", tmp_path / "copy")


@pytest.mark.parametrize(
    "names",
    [
        ["../evil"],
        ["/evil"],
        ["a//b"],
        ["a\0b"],
        ["x" * 300],
        ["é" * 128],
        ["/".join(["x" * 200] * 6)[:1_000].replace("x", "é")],
        ["saved_model.pb", "saved_model.pb/x"],
        ["a/b/c", "a/b", "a/b!"],
        ["b", "b"],
    ],
    ids=lambda names: repr(names)[:20],
)
def test_an_index_whose_files_no_folder_can_hold_is_corrupted(local: Store, tmp_path: Path, names: list[str]) -> None:
    digest = hashlib.sha256(b"1").hexdigest()
    whole = hashlib.sha256()
    for name in sorted({name.encode() for name in names}):
        whole.update(len(name).to_bytes(8, "little") + name + bytes.fromhex(digest))
    graph_id = whole.hexdigest()
    files = [{"name": name, "stored": "file", "bytes": 1, "sha256": digest} for name in names]
    local.create(f"ctr/graphs/{graph_id}/file", b"1")
    local.create(f"ctr/graphs/{graph_id}/graph.json", json.dumps({"files": files}).encode())
    with pytest.raises(VersionDefect, match="a file is named") as refused:
        get_graph(local, "ctr", graph_id, tmp_path / "copy")
    assert refused.value.defect == "corrupted"
    assert [one.name for one in tmp_path.iterdir()] == ["store"]


def test_nothing_is_overwritten_by_a_graph(local: Store, tmp_path: Path) -> None:
    folder = made(tmp_path / "graph")
    graph_id = put_graph(local, "ctr", folder)
    with pytest.raises(UsageError, match="exists already"):
        get_graph(local, "ctr", graph_id, folder)
    assert len(content(folder)) == 3


def test_what_is_no_plain_file_is_no_part_of_a_graph(local: Store, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(UsageError, match="has no files"):
        put_graph(local, "ctr", tmp_path / "none")
    (tmp_path / "none" / "link").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="not a plain file"):
        put_graph(local, "ctr", tmp_path / "none")
    (tmp_path / "none" / "link").unlink()
    os.mkfifo(tmp_path / "none" / "pipe")
    with pytest.raises(UsageError, match="not a plain file"):
        put_graph(local, "ctr", tmp_path / "none")
