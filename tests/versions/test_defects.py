"""Every defect, made on disk: it is named, and tables are as they were."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from streamlearn.errors import VersionDefect
from streamlearn.table import TableSet
from streamlearn.versions import Chain, Store, load, load_tensors, open_store
from streamlearn.versions.format.loading import load_bytes
from streamlearn.versions.format.manifest import FileKind
from tests.versions.history import MODEL, OPTIONS, Trainer, everything

KINDS: tuple[FileKind, ...] = ("rows", "optimizer", "gone", "upkeep")
WHOLE: tuple[FileKind, ...] = ("dense", "dense_optimizer", "marks", "golden")


class Disk:
    """Three versions on disk, and tables that stand at the second."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "store"
        self.store: Store = open_store(str(self.root))
        trainer = Trainer(self.store)
        self.committed = trainer.story([1, 2])
        self.tables = TableSet(OPTIONS)
        self.loaded = load(Chain.find(self.store, MODEL), self.tables, training=True)
        self.committed += trainer.story([3])
        self.before = everything(self.tables, 2)

    def folder(self, version: int) -> Path:
        return self.root / self.committed[version - 1].folder

    def file(self, kind: FileKind, version: int = 3) -> Path:
        found = [one for one in self.committed[version - 1].manifest.of_kind(kind) if one.rows]
        return self.folder(version) / found[0].path

    def refuses(self, defect: str, path: Path | None = None) -> VersionDefect:
        """Loading what came after ends with this defect, and has changed nothing."""
        with pytest.raises(VersionDefect) as refused:
            load(Chain.find(self.store, MODEL, since=self.loaded.ref), self.tables, training=True)
        assert refused.value.defect == defect
        assert refused.value.help
        if path is not None:
            assert refused.value.path == path.relative_to(self.root).as_posix()
        assert self.tables.retained == [2]
        assert everything(self.tables, 2) == self.before
        self.tables.seal(9)  # nothing is open that was not there before
        assert everything(self.tables, 9) == self.before
        return refused.value


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def flip(file: Path, at: int = -1) -> None:
    raw = bytearray(file.read_bytes())
    raw[at if at >= 0 else len(raw) // 2] ^= 0x10
    file.write_bytes(raw)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def grow(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("damage", "defect"),
    [(flip, "corrupted"), (cut_short, "truncated"), (grow, "corrupted"), (Path.unlink, "missing_file")],
    ids=["flip", "cut", "grow", "delete"],
)
def test_a_damaged_file_of_a_table_is_named(
    disk: Disk, kind: FileKind, damage: Callable[[Path], None], defect: str
) -> None:
    file = disk.file(kind)
    damage(file)
    disk.refuses(defect, file)


@pytest.mark.parametrize("damage", [flip, cut_short, Path.unlink])
def test_the_help_of_a_damaged_delta_says_to_restore_the_file(disk: Disk, damage: Callable[[Path], None]) -> None:
    file = disk.file("rows")
    damage(file)
    with pytest.raises(VersionDefect) as refused:
        load(Chain.find(disk.store, MODEL, since=disk.loaded.ref), disk.tables, training=True)
    assert "restore the file from a copy" in refused.value.help


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize(
    ("damage", "defect"),
    [(flip, "corrupted"), (cut_short, "truncated"), (Path.unlink, "missing_file")],
    ids=["flip", "cut", "delete"],
)
def test_a_damaged_file_of_the_model_is_named(
    disk: Disk, kind: FileKind, damage: Callable[[Path], None], defect: str
) -> None:
    damage(disk.file(kind))
    read = load_tensors if kind.startswith("dense") else load_bytes
    with pytest.raises(VersionDefect) as refused:
        read(disk.store, disk.committed[2], kind)
    assert refused.value.defect == defect


def test_any_flipped_bit_of_a_manifest_is_seen(disk: Disk) -> None:
    file = disk.folder(3) / "manifest.json"
    raw = file.read_bytes()
    for at in range(0, len(raw), max(1, len(raw) // 150)):
        damaged = bytearray(raw)
        damaged[at] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(VersionDefect) as refused:
            Chain.find(disk.store, MODEL)
        assert refused.value.defect in ("corrupted", "unreadable_format")
    file.write_bytes(raw)
    assert Chain.find(disk.store, MODEL).version == 3


@pytest.mark.parametrize("damage", [cut_short, grow, lambda file: file.write_bytes(b"")])
def test_a_manifest_that_is_not_whole_is_named(disk: Disk, damage: Callable[[Path], None]) -> None:
    damage(disk.folder(3) / "manifest.json")
    disk.refuses("corrupted", disk.folder(3) / "manifest.json")


def test_a_deleted_delta_is_a_gap(disk: Disk) -> None:
    trainer = Trainer(disk.store, last=disk.committed[2], tables=TableSet(OPTIONS))
    load(Chain.find(disk.store, MODEL), trainer.tables, training=True)
    trainer.story([4])
    shutil.rmtree(disk.folder(3))
    disk.refuses("gap")


def test_exchanged_deltas_are_named(disk: Disk) -> None:
    two, three = disk.folder(2), disk.folder(3)
    two.rename(two.with_name("x"))
    three.rename(two)
    two.with_name("x").rename(three)
    disk.refuses("reordered", three)


def test_a_delta_copied_to_another_number_is_named(disk: Disk) -> None:
    copy = disk.folder(3).with_name("000000000004-00000001")
    shutil.copytree(disk.folder(3), copy)
    disk.refuses("duplicate", copy)


def test_a_delta_of_another_model_is_named(disk: Disk) -> None:
    other = disk.root / "rank" / "deltas" / disk.folder(3).name
    shutil.copytree(disk.folder(3), other)
    with pytest.raises(VersionDefect, match="a version of model 'ctr', not 'rank'") as refused:
        Chain.find(disk.store, "rank")
    assert refused.value.defect == "foreign"


def test_files_of_an_older_delta_in_the_place_of_newer_ones_are_named(disk: Disk) -> None:
    older, newer = disk.file("rows", 2), disk.file("rows", 3)
    defect = "truncated" if older.stat().st_size < newer.stat().st_size else "corrupted"
    shutil.copy(older, newer)
    assert "rows/main-0-0" in disk.refuses(defect).path


def test_a_manifest_of_a_later_format_is_named(disk: Disk) -> None:
    file = disk.folder(3) / "manifest.json"
    said = json.loads(file.read_bytes())
    file.write_text(json.dumps(said | {"format": 2, "surprise": 1}))
    assert "its format is 2, but this release reads 1" in disk.refuses("unreadable_format", file).message


def test_damage_in_the_middle_of_a_chain_leaves_the_version_before_it(disk: Disk) -> None:
    flip(disk.file("rows", 3))
    again = TableSet(OPTIONS)
    with pytest.raises(VersionDefect):
        load(Chain.find(disk.store, MODEL), again, training=True)
    assert again.retained == [2]
    assert everything(again, 2) == disk.before
    again.seal(3)
    assert everything(again, 3) == disk.before


def test_an_older_version_is_found_although_the_newest_is_damaged(disk: Disk) -> None:
    flip(disk.folder(3) / "manifest.json")
    assert [link.manifest.version for link in Chain.find(disk.store, MODEL, 2).links] == [1, 2]
    disk.refuses("corrupted")


def test_a_node_reads_on_when_a_file_is_restored(disk: Disk) -> None:
    file = disk.file("rows")
    raw = file.read_bytes()
    flip(file)
    with pytest.raises(VersionDefect):
        load(Chain.find(disk.store, MODEL, since=disk.loaded.ref), disk.tables, training=True)
    file.write_bytes(raw)
    load(Chain.find(disk.store, MODEL, since=disk.loaded.ref), disk.tables, training=True)
    assert disk.tables.retained == [2, 3]
