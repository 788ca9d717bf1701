"""The history of published versions: what it names, what it lacks, and that chains and logs see the same."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import replace

from streamlearn.errors import VersionDefect
from streamlearn.versions import (
    Chain,
    Committed,
    Cut,
    History,
    Known,
    Store,
    Verdict,
    VersionRef,
    VersionWriter,
    open_store,
    write_verdict,
)
from streamlearn.versions.format.log import Log
from streamlearn.versions.format.verdict import read_verdict
from streamlearn.versions.format.writer import assemble, commit
from streamlearn.versions.store.settings import LoadSettings
from tests.versions.history import MODEL, Trainer


def empty(trainer: Trainer, version: int, after: VersionRef | None, **changed: Any) -> Committed:
    """A version in which nothing changed."""
    head = trainer.head(version, **({"parent": after, "kind": "delta" if after else "base"} | changed))
    writer = VersionWriter(trainer.store, head)
    writer.add_rows([])
    manifest = assemble(head, Cut(metrics={"auc": version / 100}), writer.entries, written_wall_ms=version)
    return commit(trainer.store, manifest, bytes_max=1 << 20)


def line(store: Store, versions: list[int], run: int = 1, after: VersionRef | None = None) -> list[Committed]:
    """Versions one after the other."""
    trainer, made = Trainer(store, run=run), []
    for version in versions:
        made.append(empty(trainer, version, after))
        after = made[-1].ref
    return made


def whole(store: Store, of: Committed, run: int = 1) -> Committed:
    """The base that stands for a version."""
    said = {"kind": "base", "stands_for": of.ref, "parent": of.manifest.parent}
    return empty(Trainer(store, run=run), of.manifest.version, None, **said)


def passed(store: Store, one: Known | Committed, outcome: Any = "passed") -> None:
    folder = History(store, MODEL).folder(one.ref)
    write_verdict(store, folder, Verdict(version=one.ref, outcome=outcome))


def versions(known: tuple[Known, ...]) -> list[int]:
    return [one.version for one in known]


def test_a_model_without_versions_has_no_history(store: Store) -> None:
    assert History(store, MODEL).read() == ()


def test_a_version_whose_number_was_used_again_after_a_restore_is_read_again(local: Store) -> None:
    first = line(local, [1, 2])
    passed(local, first[1])
    history = History(local, MODEL)
    assert history.read()[1].ref == first[1].ref
    shutil.rmtree(Path(local.url.removeprefix("file://")) / first[1].folder)
    second = empty(Trainer(local), 2, first[0].ref, windows="others")
    line(local, [3], after=second.ref)
    assert second.ref != first[1].ref
    assert history.read() == History(local, MODEL).read()


def test_a_history_says_of_each_version_what_its_manifest_says(local: Store) -> None:
    made = Trainer(local).story([1, 2, 4])
    known = History(local, MODEL).read()
    assert [(one.version, one.kind, one.parent) for one in known] == [
        (1, "base", None),
        (2, "delta", made[0].ref),
        (4, "delta", made[1].ref),
    ]
    for one, written in zip(known, made, strict=True):
        manifest = written.manifest
        assert one.ref == written.ref
        assert one.rows == sum(file.rows for file in manifest.of_kind("rows"))
        assert one.gone == sum(file.rows for file in manifest.of_kind("gone"))
        assert one.bytes == sum(file.bytes for file in manifest.files)
        assert (one.metrics, one.watermark_ms) == (manifest.metrics, manifest.watermark_ms)
        assert one.written_wall_ms == manifest.written_wall_ms
        assert (one.outcome, one.lacks) == (None, "")
        assert not one.is_promotable(())
        assert one.is_promotable((one.version,))


def test_verdicts_are_picked_up_when_they_come(local: Store) -> None:
    made = line(local, [1, 2, 3])
    history = History(local, MODEL)
    assert [one.outcome for one in history.read()] == [None, None, None]
    passed(local, made[0])
    passed(local, made[2], "rejected")
    assert [one.outcome for one in history.read()] == ["passed", None, "rejected"]
    line(local, [4], after=made[2].ref)
    assert [one.outcome for one in history.read()] == ["passed", None, "rejected", None]


def test_a_verdict_counts_for_the_base_that_stands_for_a_version(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    made = line(store, [1, 2, 3])
    passed(store, made[1])
    base = whole(store, made[1])
    assert History(store, MODEL).read()[1].outcome == "passed"
    (tmp_path / made[1].folder / "manifest.json").unlink()
    known = History(store, MODEL).read()
    assert (known[1].kind, known[1].ref, known[1].outcome, known[1].lacks) == ("base", made[1].ref, "passed", "")
    assert History(store, MODEL).folder(made[1].ref) == base.folder
    shutil.rmtree(tmp_path / base.folder)
    with pytest.raises(VersionDefect, match="missing"):
        History(store, MODEL).folder(made[1].ref)


def test_versions_after_one_that_is_gone_lack_it_up_to_the_next_base(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    made = line(store, [1, 2, 3, 4, 6])
    whole(store, made[3])
    shutil.rmtree(tmp_path / made[1].folder)
    known = History(store, MODEL).read()
    assert versions(known) == [1, 3, 4, 6]
    assert [one.lacks for one in known] == ["", "version 2, which it follows, is missing", "", ""]
    assert [one.is_whole for one in known] == [True, False, True, True]


def test_a_base_without_a_manifest_makes_no_version_whole(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    made = line(store, [1, 2, 3])
    shutil.rmtree(tmp_path / made[0].folder)
    base = tmp_path / MODEL / "bases" / "000000000002-00000001"
    base.mkdir(parents=True)
    history = History(store, MODEL)
    assert [one.is_whole for one in history.read()] == [False, False]
    base.rmdir()
    whole(store, made[1])
    assert [one.is_whole for one in history.read()] == [True, True]


def test_what_a_version_lacked_is_not_remembered_from_before(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    made = line(store, [1, 2, 3])
    for one in made:
        passed(store, one)
    shutil.rmtree(tmp_path / made[1].folder)
    lacking = History(store, MODEL).read()
    assert lacking[-1].lacks
    whole(store, made[2])
    assert History(store, MODEL, lacking).read()[-1].lacks == ""
    assert History(store, MODEL, [replace(lacking[0], lacks="all")]).read()[0].lacks == ""


def test_a_newer_run_takes_over_and_what_the_older_wrote_on_is_no_history(local: Store) -> None:
    old = line(local, [1, 2, 3])
    line(local, [4, 5], run=2, after=old[1].ref)
    known = History(local, MODEL).read()
    assert [(one.ref.run, one.version) for one in known] == [(1, 1), (1, 2), (2, 4), (2, 5)]
    line(local, [8], run=1, after=old[2].ref)
    assert History(local, MODEL).read() == known


def test_a_folder_without_a_manifest_is_no_version(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    line(store, [1, 2])
    for version, run in ((3, 1), (9, 7)):
        (tmp_path / MODEL / "deltas" / f"{version:012d}-{run:08d}").mkdir()
    (tmp_path / MODEL / "deltas" / "notes").mkdir()
    assert versions(History(store, MODEL).read()) == [1, 2]


@pytest.mark.parametrize("damage", ["cut", "foreign", "format"])
def test_a_damaged_manifest_makes_its_version_and_those_after_it_not_whole(tmp_path: Path, damage: str) -> None:
    store = open_store(str(tmp_path))
    made = line(store, [1, 2, 3, 4])
    file = tmp_path / made[1].folder / "manifest.json"
    data = file.read_bytes()
    file.unlink()
    other = (tmp_path / made[2].folder / "manifest.json").read_bytes()
    file.write_bytes({"cut": data[:-9], "foreign": other, "format": b'{"format":9}'}[damage])
    known = History(store, MODEL).read()
    assert versions(known) == [1, 2, 3, 4]
    path = made[1].folder if damage == "foreign" else f"{made[1].folder}/manifest.json"
    defect = {"cut": "corrupted", "foreign": "reordered", "format": "unreadable_format"}[damage]
    assert [one.lacks for one in known] == ["", *[f"{path} ({defect})"] * 3]
    assert not known[1].is_promotable((2,))
    file.unlink()
    file.write_bytes(data)
    assert all(one.is_whole for one in History(store, MODEL).read())


def test_a_damaged_verdict_is_named_by_its_version_and_those_after_it(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    made = line(store, [1, 2, 3])
    for one in made:
        passed(store, one, "rejected" if one is made[1] else "passed")
    file = tmp_path / made[1].folder / "verdict.json"
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data.replace(b"rejected", b"passed"))
    known = History(store, MODEL).read()
    # It is the version it was, and nobody takes it, or what follows it, for one that passed.
    assert [one.ref for one in known] == [one.ref for one in made]
    assert [one.lacks for one in known] == ["", *[f"{made[1].folder}/verdict.json (corrupted)"] * 2]
    assert [one.outcome for one in known] == ["passed", None, "passed"]
    with pytest.raises(VersionDefect, match=r"verdict\.json: its checksum is") as caught:
        read_verdict(store, made[1].folder)
    assert "the publisher then judges the version again" in caught.value.help
    file.unlink()
    assert [one.outcome for one in History(store, MODEL).read()] == ["passed", None, "passed"]
    assert all(one.is_whole for one in History(store, MODEL).read())


def test_a_manifest_larger_than_the_limit_is_not_read(local: Store) -> None:
    line(local, [1, 2])
    local.loading = LoadSettings(manifest_bytes_max=100)
    small = History(local, MODEL).read()
    assert [one.is_whole for one in small] == [False, False]


class Counted:
    """A store, and which manifests were read of it."""

    def __init__(self, store: Store) -> None:
        read = store.read
        self._read_of: list[str] = []

        def counted(path: str, **named: Any) -> memoryview:
            if path.endswith("manifest.json"):
                self._read_of.append(path)
            return read(path, **named)

        store.read = counted  # type: ignore[method-assign]

    def taken(self) -> int:
        found, self._read_of = len(self._read_of), []
        return found


def test_a_history_reads_each_judged_manifest_once_and_none_that_is_known(local: Store) -> None:
    made = line(local, [1, 2, 3])
    for one in made:
        passed(local, one)
    counted, history = Counted(local), History(local, MODEL)
    known = history.read()
    assert counted.taken() == 3
    assert history.read() == known
    assert counted.taken() == 0
    line(local, [4], after=made[2].ref)
    assert versions(history.read()) == [1, 2, 3, 4]
    assert counted.taken() == 1
    assert History(local, MODEL, known).read()[:3] == known
    assert counted.taken() == 1


def test_what_a_registry_says_is_not_believed_over_the_version_that_follows(local: Store) -> None:
    made = line(local, [1, 2, 3])
    for one in made:
        passed(local, one)
    known = History(local, MODEL).read()
    wrong = [replace(one, ref=replace(one.ref, sha256="0" * 64), rows=99) for one in known]
    assert History(local, MODEL, wrong).read() == known


_RUNS = st.lists(
    st.tuples(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(0, 5)), min_size=1, max_size=3
)


@hypothesis_settings(max_examples=30, derandomize=True, database=None)
@given(runs=_RUNS, bases=st.sets(st.integers(0, 12)), gone=st.sets(st.integers(0, 12), max_size=3))
def test_chains_and_logs_see_the_same_history(
    runs: list[tuple[list[int], int]], bases: set[int], gone: set[int]
) -> None:
    """Several runs take over from each other; some versions get bases, and some deltas go."""
    fsspec.filesystem("memory").store.clear()
    store = open_store(f"memory://{uuid.uuid4().hex}")
    of_history: list[Committed] = []
    made: list[Committed] = []
    lines: list[list[VersionRef]] = []
    for run, (steps, back) in enumerate(runs, 1):
        kept = of_history[: max(1, len(of_history) - back)]
        after = kept[-1] if kept else None
        # Numbers go on from the newest there is: none is used twice.
        version = made[-1].manifest.version if made else 0
        mine = line(store, [version := version + step for step in steps], run, after.ref if after else None)
        of_history, made = [*kept, *mine], [*made, *mine]
        lines.append([one.ref for one in mine])
    for at, written in enumerate(of_history):
        if at in bases and written.manifest.kind == "delta":
            whole(store, written, written.manifest.run)
    firsts = {line_of[0] for line_of in lines}
    for at, written in enumerate(of_history[:-1]):
        # From whom a run took over is not known any more once its first version is gone.
        if at in gone and (written.ref not in firsts or not at):
            for file in written.manifest.files:
                store.remove(f"{written.folder}/{file.path}")
            store.remove(f"{written.folder}/manifest.json")
    known = History(store, MODEL).read()
    late = {folder.path.split("/")[-1] for folder in Log(store, MODEL).superseded()}
    found = {f"{one.version:012d}-{one.ref.run:08d}" for one in known}
    assert not late & found
    refs = {one.ref for one in of_history}
    assert {one.ref for one in known} <= refs
    for one in known:
        try:
            chain: Chain | None = Chain.find(store, MODEL, one.version)
        except VersionDefect:
            chain = None
        assert (chain is not None) == one.is_whole, (one.version, one.lacks)
        if chain is not None:
            assert (chain.manifest.version, chain.manifest.run) == (one.version, one.ref.run)
    # What can be read is named, whatever else is gone.
    for written in of_history:
        version = written.manifest.version
        if written.ref not in {one.ref for one in known}:
            with pytest.raises(VersionDefect):
                Chain.find(store, MODEL, version)
