"""Verbs that read whole versions: what is damaged is named with its cure, two are compared, one goes out and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from streamlearn.versions import Cut, History, VersionWriter
from streamlearn.versions.pointer.fence import Fence
from tests.cli.place import Place, Verb, refused
from tests.versions.history import MODEL


@pytest.fixture
def verb(ended: Verb) -> Verb:
    return ended


def test_a_damaged_file_is_named(place: Place, verb: Verb) -> None:
    assert "ok: all files are intact" in verb("verify", MODEL).out
    assert verb("verify", MODEL, "--json").json["defects"] == []
    file = next((place.folder / "store").glob(f"{MODEL}/deltas/000000000004-*/rows/*.arrow"))
    file.chmod(0o644)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    ended = verb("verify", MODEL)
    refused(ended, 1, "has 1 defect", file.name, "corrupted")
    said = verb("verify", MODEL, "--json")
    assert said.status == 1
    assert [(Path(one["path"]).name, one["defect"]) for one in said.json["defects"]] == [(file.name, "corrupted")]
    assert verb("verify", MODEL, "--version", 2).status == 0
    refused(verb("verify", MODEL, "--version", 3), 1, "missing")


def test_numbers_that_are_nan_are_named_and_only_a_failure_when_asked_for(place: Place, verb: Verb) -> None:
    trainer = place.trainer
    assert verb("verify", MODEL, "--finite").status == 0
    last = trainer.last
    assert last is not None
    writer = VersionWriter(trainer.store, trainer.head(last.manifest.version + 1))
    writer.add_rows([])
    writer.add_dense({"w": np.array([1, np.nan], np.float32)})
    poisoned = writer.finish(Cut())
    said = verb("verify", MODEL)
    assert said.status == 0
    assert "ok: all files are intact" in said.out
    assert "numbers that are NaN or infinite" in said.out
    found = verb("verify", MODEL, "--json").json
    assert found["defects"] == []
    assert found["not_finite"] == [{"path": poisoned.folder, "kind": "dense", "name": "w", "count": 1, "key": None}]
    refused(verb("verify", MODEL, "--finite"), 1, "has 1 defect", poisoned.folder, "not_finite", "roll back")


def test_a_damaged_manifest_is_shown_shortly_and_without_an_age(place: Place, verb: Verb) -> None:
    (file,) = (place.folder / "store").glob(f"{MODEL}/deltas/000000000004-*/manifest.json")
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-9])
    words = (MODEL, "--registry", "none")
    lines = verb("versions", *words).out.splitlines()
    rows = {line.split()[0]: line for line in lines if line.strip()}
    said = f"incomplete: {file.relative_to(place.folder / 'store')} (corrupted)"
    assert said in rows["4"]
    assert rows["4"].split()[-1] == "-"
    assert len(rows["4"]) < 160
    ages = {one["version"]: one["age_s"] for one in verb("versions", *words, "--json").json["versions"]}
    assert ages[4] is None
    assert ages[2] is not None
    refused(verb("rollback", *words, "--to", 4), 1, f"it is not complete: {said[12:]}", "streamlearn verify")


@pytest.mark.parametrize(
    ("record", "help"),
    [
        ("deltas/000000000004-*/verdict.json", "the publisher then judges the version again"),
        ("pointer/000000000004.json", f"streamlearn verify {MODEL} --mend-pointer"),
        ("requests/000000000001.json", "remove it and ask again: until then training continues without it"),
    ],
)
def test_a_damaged_record_is_named_with_what_to_do(place: Place, verb: Verb, record: str, help: str) -> None:
    assert verb("rewind", MODEL, "--to", 4).status == 0
    (file,) = (place.folder / "store" / MODEL).glob(record)
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-9])
    path = str(file.relative_to(place.folder / "store"))
    refused(verb("verify", MODEL), 1, "has 1 defect,", path, "corrupted", help)
    (defect,) = verb("verify", MODEL, "--json").json["defects"]
    assert (defect["path"], defect["defect"]) == (path, "corrupted")
    assert help.replace(f" {MODEL}", "") in defect["help"]  # as it is, for programs


@pytest.mark.parametrize("is_deep", [False, True], ids=["cut", "deep"])
def test_a_damaged_move_is_mended_from_the_registry(place: Place, verb: Verb, is_deep: bool) -> None:
    refused(verb("verify", MODEL, "--mend-pointer"), 2, "the record of move 4 is intact", "it needs no repair")
    file = max((place.folder / "store" / MODEL / "pointer").iterdir())
    file.chmod(0o644)
    file.write_bytes(b'{"format":1,"x":' + b"[" * 400_000 if is_deep else file.read_bytes()[:-9])
    refused(verb("rollback", MODEL, "--to", 2), 1, "corrupted", f"streamlearn verify {MODEL} --mend-pointer")
    refused(verb("versions", MODEL), 1, "corrupted", f"streamlearn verify {MODEL} --mend-pointer")
    refused(verb("verify", MODEL, "--registry", "none", "--mend-pointer"), 2, "needs the registry", "--registry")
    before = place.registry.pointer()
    assert before is not None
    for _ in range(2):  # as after a failure
        ended = verb("verify", MODEL, "--mend-pointer")
        assert ended.status == 0, ended
        assert "ok: all files are intact" in ended.out
        assert "move 5 repeats move 4 from the registry" in ended.err
        assert "the record of move 4 is damaged; it has no effect" in ended.err
    assert place.pointer == place.registry.pointer() == structs.replace(before, seq=5)
    assert place.registry.notes(1)[0].what == "mend"
    assert verb("rollback", MODEL, "--to", 2).status in (0, 3)


def test_two_versions_are_compared(place: Place, verb: Verb) -> None:
    ended = verb("diff", MODEL, 2, 5)
    assert ended.status == 0, ended
    for said in ("rows, 2 to 5", "largest moves", "dense weights"):
        assert said in ended.out
    said = verb("diff", MODEL, 2, 5, "--json", "--top", 1).json
    assert {one["table"] for one in said["tables"]} == {"main", "side"}
    assert all(len(one["largest"]) <= 1 for one in said["tables"])
    refused(verb("diff", MODEL, 2), 2, "is not a model and 2 versions")
    refused(verb("diff", MODEL, 2, 3), 2, "does not exist")


def test_a_version_goes_out_as_a_folder_and_comes_back_under_another_name(place: Place, verb: Verb) -> None:
    folder = place.folder / "out"
    said = verb("export", MODEL, 4, folder, "--json").json
    assert said["version"] == 4
    assert set(said["rows"]) == {"main", "side"}
    refused(verb("export", MODEL, 4, folder), 2, f"{folder} exists already")
    refused(verb("export", MODEL, 3, place.folder / "x"), 2, "does not exist")
    ended = verb("import", "copy", folder)
    assert ended.status == 0, ended
    assert f"{folder} is version 1 of copy" in ended.out
    assert [one.version for one in History(place.store, "copy").read()] == [1]
    assert verb("import", "other", folder, "--json").json["version"] == 1


def test_an_import_that_is_refused_ends_no_run(place: Place, verb: Verb) -> None:
    fence = Fence(place.store, MODEL)
    run = fence.take("trainer")
    folder = place.folder / "out"
    assert verb("export", MODEL, 4, folder).status == 0
    refused(verb("import", MODEL, folder), 2, "has versions, the newest is 5")
    refused(verb("import", MODEL, place.folder / "nothing"), 1, "cannot decode the description of the folder")
    fence.check(run)
