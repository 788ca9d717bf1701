"""Exchange: an exported folder is read without this package, and is the version it was when it comes back."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.errors import BadRecord, UsageError
from streamlearn.features.names import model_fingerprint
from streamlearn.table import RowType
from streamlearn.versions import (
    Chain,
    Cut,
    Store,
    VersionWriter,
    compact,
    export_version,
    import_version,
    load,
    load_tensors,
    open_store,
    verify,
)
from streamlearn.versions.format.graphs import get_graph, put_graph
from streamlearn.versions.format.loading import load_bytes
from streamlearn.versions.store.settings import ScanSettings
from tests.versions.history import MODEL, Trainer, everything, serving
from tests.versions.seen import known, served

_READER = """
import json, sys
import pyarrow as pa
table = pa.ipc.open_file(pa.memory_map(sys.argv[1])).read_all()
assert "streamlearn" not in sys.modules
rows = dict(zip(table["key"].to_pylist(), table["row"].to_pylist()))
print(json.dumps([[str(field.type) for field in table.schema], sorted(rows.items())]))
"""


def exported(store: Store, tmp_path: Path, *, row_type: RowType = "float32") -> Path:
    """Version 3 of a story, with a graph."""
    trainer = Trainer(store, row_type=row_type)
    _, second = trainer.story([1, 2])
    (tmp_path / "graph" / "variables").mkdir(parents=True)
    (tmp_path / "graph" / "saved_model.pb").write_bytes(b"graph")
    (tmp_path / "graph" / "variables" / "index").write_bytes(b"")
    graph = put_graph(store, MODEL, tmp_path / "graph")
    trainer.learn(3)
    trainer.tables.seal(3)
    labels = ("click", "like")
    fingerprint = model_fingerprint("features", labels)
    head = trainer.head(3, parent=second.ref, kind="delta", labels=labels, fingerprint=fingerprint)
    writer = VersionWriter(store, head)
    writer.add_rows(trainer.tables.changed(2, 3))
    writer.add_dense({"layer/kernel:0": np.arange(6, dtype=np.float32).reshape(2, 3), "file": np.array(1.5)})
    writer.add_golden({"requests": b"golden"})
    writer.finish(Cut(graph=graph, metrics={"auc": 0.75}, watermark_ms=77))
    export_version(store, MODEL, None, tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize("row_type", ["float32", "float16", "int8"])
def test_pyarrow_alone_reads_the_rows_that_are_served(local: Store, tmp_path: Path, row_type: RowType) -> None:
    folder = exported(local, tmp_path, row_type=row_type)
    wanted = served(Chain.find(local, MODEL))
    for name, dim in (("main", 4), ("side", 3)):
        command = [sys.executable, "-I", "-c", _READER, str(folder / "tables" / f"{name}.arrow")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
        types, rows = json.loads(done.stdout)
        assert types[0] == "uint64"
        assert types[1].startswith("fixed_size_list<item: float")
        found = {(name, key): np.array(row, np.float32).tobytes() for key, row in rows}
        assert found == {key: row for key, row in wanted.items() if key[0] == name}
        assert all(len(row) == dim for _, row in rows)


def test_what_stands_beside_rows_is_read_by_anyone(local: Store, tmp_path: Path) -> None:
    folder = exported(local, tmp_path)
    with np.load(folder / "dense.npz", allow_pickle=False) as found:
        assert set(found.files) == {"layer/kernel:0", "file"}
        np.testing.assert_array_equal(found["layer/kernel:0"], np.arange(6).reshape(2, 3))
    with np.load(folder / "golden.npz") as found:
        assert found["requests"].tobytes() == b"golden"
    assert (folder / "graph" / "saved_model.pb").read_bytes() == b"graph"
    said = json.loads((folder / "version.json").read_bytes())
    assert (said["model"], said["version"], said["metrics"]) == ("ctr", 3, {"auc": 0.75})
    text = (folder / "README.txt").read_text()
    assert "tables/main.arrow" in text
    assert f"{said['rows']['main']} rows of 4 numbers" in text
    # Nothing is left of how it was written.
    assert sorted(one.name for one in tmp_path.iterdir()) == ["graph", "out", "store"]


def test_the_folder_says_what_keys_without_a_row_have(local: Store, tmp_path: Path) -> None:
    folder = exported(local, tmp_path)
    program = textwrap.dedent((folder / "README.txt").read_text().partition("the bit:\n")[2].partition("Optimizer")[0])
    given: dict[str, Any] = {}
    exec(program, given)
    node, chain = serving("float32"), Chain.find(local, MODEL)
    load(chain, node)
    keys = np.array([1, 7, 2**32, 2**63, 2**64 - 1, 987_654_321], np.uint64)
    for table in json.loads((folder / "version.json").read_bytes())["tables"]:
        name, drawn_from = table["name"], (table["dim"], table["initial_range"], table["seed"])
        assert not {(name, key) for key in keys.tolist()} & served(chain).keys()
        with np.errstate(all="raise"):
            rows = given["initial_rows"](keys, *drawn_from)
        assert rows.any() == (table["initial_range"] > 0)
        assert np.array_equal(rows.view(np.uint32), node[name].lookup(keys).view(np.uint32))


@pytest.mark.parametrize("row_type", ["float32", "float16"])
@pytest.mark.parametrize("is_small", [False, True])
def test_a_folder_comes_back_as_the_first_version_of_another_store(
    local: Store, tmp_path: Path, row_type: RowType, is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exported(local, tmp_path, row_type=row_type)
    if is_small:
        monkeypatch.setattr("streamlearn.versions.upkeep.exchange.row_bytes", lambda record, training: (1 << 20) // 20)
    there = open_store(str(tmp_path / "there"))
    done = import_version(there, "other", folder, run=4, version=8, scan=ScanSettings(scan_bytes_max=1 << 20))
    chain, origin = Chain.find(there, "other"), Chain.find(local, MODEL)
    assert (chain.version, chain.manifest.run, chain.manifest.kind) == (8, 4, "base")
    assert served(chain, row_type) == served(origin, row_type)
    assert {key: cell[0] for key, cell in known(chain)[0].items()} == served(origin)
    assert chain.manifest.tables == origin.manifest.tables
    assert (chain.manifest.labels, chain.manifest.fingerprint) == (("click", "like"), origin.manifest.fingerprint)
    assert (chain.manifest.metrics, chain.manifest.watermark_ms) == ({"auc": 0.75}, 77)
    assert chain.manifest.positions == ()
    assert chain.manifest.graph is not None
    assert chain.manifest.graph == origin.manifest.graph
    get_graph(there, "other", chain.manifest.graph, tmp_path / "again")
    np.testing.assert_array_equal(load_tensors(there, done)["file"], np.array(1.5))
    assert bytes(load_bytes(there, done, "golden")["requests"]) == b"golden"
    assert verify(there, "other", everything=True).defects == ()


def test_int8_rows_come_back_as_near_as_their_type_tells(local: Store, tmp_path: Path) -> None:
    folder = exported(local, tmp_path, row_type="int8")
    import_version(there := open_store(str(tmp_path / "there")), MODEL, folder)
    mine, theirs = served(Chain.find(there, MODEL)), served(Chain.find(local, MODEL))
    assert mine.keys() == theirs.keys()
    for key, row in mine.items():
        np.testing.assert_allclose(np.frombuffer(row, "<f4"), np.frombuffer(theirs[key], "<f4"), rtol=1e-6)


def test_training_goes_on_from_an_imported_version(local: Store, tmp_path: Path) -> None:
    folder = exported(local, tmp_path)
    there = open_store(str(tmp_path / "there"))
    first = import_version(there, MODEL, folder)
    head = first.manifest
    trainer = Trainer(there, run=2, last=first, fingerprint=head.fingerprint, labels=head.labels)
    load(Chain.find(there, MODEL), trainer.tables, training=True)
    trainer.learn(9)
    trainer.cut(2)
    assert known(Chain.find(there, MODEL))[0] == everything(trainer.tables, 2)
    compact(there, MODEL)
    assert Chain.find(there, MODEL).manifest.stands_for is not None


def test_a_model_with_versions_takes_no_other(local: Store, tmp_path: Path) -> None:
    folder = exported(local, tmp_path)
    with pytest.raises(UsageError, match="has versions, the newest is 3"):
        import_version(local, MODEL, folder)
    with pytest.raises(UsageError, match="version 0 of run 1"):
        import_version(open_store(str(tmp_path / "there")), MODEL, folder, version=0)
    with pytest.raises(UsageError, match="exists already"):
        export_version(local, MODEL, 1, folder)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("version.json", "cannot decode the description of the folder"),
        ("tables/main.arrow", "of sha256"),
        ("dense.npz", "of sha256"),
        ("golden.npz", "of sha256"),
        ("graph/saved_model.pb", "it is graph"),
    ],
)
def test_a_folder_that_was_changed_is_refused(local: Store, tmp_path: Path, path: str, said: str) -> None:
    folder = exported(local, tmp_path)
    (folder / path).write_bytes(b"something else")
    there = open_store(str(tmp_path / "there"))
    with pytest.raises(BadRecord, match=said):
        import_version(there, MODEL, folder)
    assert there.entries("ctr/bases") == []
    (folder / path).unlink()
    with pytest.raises((BadRecord, UsageError)):
        import_version(there, MODEL, folder)
