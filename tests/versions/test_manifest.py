"""Manifests: what was written is read, and what does not fit together is refused before anyone sees it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streamlearn.errors import ConfigError, Oversize, UsageError, VersionDefect
from streamlearn.table import Adagrad
from streamlearn.table.options import Adam, Ftrl, RowwiseAdagrad, Sgd
from streamlearn.versions import Cut, Head, Store, TimeSkip, VersionRef, VersionWriter, open_store
from streamlearn.versions.format.manifest import (
    FileEntry,
    Manifest,
    OriginSkip,
    Position,
    TableRecord,
    decode_manifest,
)
from streamlearn.versions.format.record import encode_record
from streamlearn.versions.format.writer import assemble
from streamlearn.versions.store.settings import FileSettings
from tests.versions.history import Trainer
from tools.write_schemas import FOLDER, manifest_schema

_TEXT = st.text(min_size=1, max_size=20)
_COUNT = st.integers(0, 1 << 40)
_DIGEST = st.binary(min_size=32, max_size=32).map(bytes.hex)
_OPTIMIZERS = st.sampled_from(
    [None, Sgd(rate=0.5), Adagrad(clip_norm=1.5), RowwiseAdagrad(), Adam(beta1=0.25), Ftrl(l1=0.125)]
)
_TABLES = st.builds(
    TableRecord, name=st.just("main"), dim=st.integers(1, 4096), initial_range=st.floats(0, 1),
    seed=st.integers(0, (1 << 64) - 1), row_type=st.sampled_from(["float32", "float16", "int8"]),
    optimizer=_OPTIMIZERS, tick_ms=st.integers(1, 1 << 40),
)  # fmt: skip
_SKIPS = st.one_of(
    st.builds(OriginSkip, topic_id=_TEXT, partition=st.integers(0, 99), begin=_COUNT, end=_COUNT),
    st.builds(TimeSkip, begin_ms=st.integers(-(1 << 40), 1 << 40), end_ms=_COUNT),
)
_POSITIONS = st.builds(Position, topic=_TEXT, topic_id=_TEXT, partition=st.integers(0, 99), offset=_COUNT)
_FILES = st.builds(
    FileEntry, kind=st.sampled_from(["rows", "dense", "marks"]), path=st.just("rows/main-0"), rows=_COUNT, bytes=_COUNT,
    sha256=_DIGEST, table=st.sampled_from([None, "main"]), shard=st.integers(0, 9), shards=st.integers(10, 20),
)  # fmt: skip
_MANIFESTS = st.builds(
    Manifest, model=st.just("ctr"), run=st.integers(0, 99), version=st.integers(1, 10**11),
    kind=st.sampled_from(["base", "delta", "revert"]), fingerprint=_TEXT, windows=_TEXT,
    parent=st.none() | st.builds(VersionRef, version=st.integers(1, 99), run=st.integers(0, 9), sha256=_DIGEST),
    tables=st.tuples(_TABLES), written_wall_ms=_COUNT, files=st.lists(_FILES, max_size=3).map(tuple),
    positions=st.lists(_POSITIONS, max_size=3).map(tuple), watermark_ms=st.none() | _COUNT,
    skips=st.lists(_SKIPS, max_size=3).map(tuple), graph=st.none() | _DIGEST,
    metrics=st.dictionaries(_TEXT, st.floats(allow_nan=False, allow_infinity=False), max_size=3),
    labels=st.none() | st.lists(st.sampled_from(["click", "like", "share_2"]), max_size=3, unique=True).map(tuple),
)  # fmt: skip


@hypothesis_settings(max_examples=100, derandomize=True, database=None)
@given(manifest=_MANIFESTS)
def test_a_manifest_is_read_as_it_was_written(manifest: Manifest) -> None:
    raw = encode_record(manifest)
    found = decode_manifest(raw, "manifest.json")
    assert msgspec.structs.replace(found, check=msgspec.UNSET) == manifest
    assert encode_record(found) == raw
    assert json.loads(raw)["check"] == hashlib.sha256(raw[: raw.rindex(b',"check"')]).hexdigest()


def test_a_manifest_of_before_is_read_and_names_no_labels() -> None:
    """It was written by the release before labels had names."""
    found = decode_manifest((Path(__file__).parent / "manifest_of_before.json").read_bytes(), "manifest.json")
    assert (found.version, found.fingerprint, found.labels) == (1, "features", None)
    again = decode_manifest(encode_record(msgspec.structs.replace(found, labels=("click", "like"))), "manifest.json")
    assert again.labels == ("click", "like")


@hypothesis_settings(max_examples=200, derandomize=True, database=None)
@given(raw=st.one_of(st.binary(max_size=300), st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["format", "check", "model"]), inner),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())))  # fmt: skip
def test_bytes_that_are_no_manifest_are_refused(raw: bytes) -> None:
    with pytest.raises(VersionDefect) as refused:
        decode_manifest(raw, "manifest.json")
    assert refused.value.defect in ("corrupted", "unreadable_format")


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 0},
        {"model": "../x"},
        {"model": "ctr\n"},
        {"graph": "0" * 64 + "\n"},
        {"parent": {"version": 1, "run": 1, "sha256": "0" * 64 + "\n"}},
        {"files": [{"kind": "rows", "path": "rows/x\n", "rows": 0, "bytes": 1, "sha256": "0" * 64}]},
        {"surprise": 1},
        {"kind": "other"},
        {"fingerprint": None},
        {"labels": ["A b"]},
        {"labels": ["click\n"]},
    ],
)
def test_a_manifest_with_its_own_check_is_held_to_its_schema(local: Store, changed: dict[str, Any]) -> None:
    manifest = Trainer(local).story([1])[0].manifest
    said = json.loads(encode_record(manifest)) | changed
    said.pop("check")
    body = json.dumps(said).encode()[:-1]
    raw = body + b',"check":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'
    with pytest.raises(VersionDefect, match="not a manifest of format 1"):
        decode_manifest(raw, "manifest.json")


def entries_of(folder: Path, shards: int = 2) -> tuple[Head, list[FileEntry]]:
    trainer = Trainer(open_store(str(folder)))
    trainer.learn(2, 100)
    trainer.tables.seal(1)
    return trainer.head(1), trainer.write(trainer.head(1), None, shards)


def first(entries: list[FileEntry], kind: str) -> FileEntry:
    return next(one for one in entries if one.kind == kind and one.table == "main")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda e: [one for one in e if one != first(e, "rows")], "rows of table 'main' cover shards"),
        (lambda e: [one for one in e if one.shard == 0], "cover shards"),
        (lambda e: [*e, first(e, "rows")], "is listed twice"),
        (lambda e: [*e, changed(first(e, "rows"), path="rows/x")], "has files"),
        (lambda e: swapped(e, first(e, "rows"), parts=(0, 500)), "cover parts"),
        (lambda e: swapped(e, first(e, "rows"), parts=(0, 513)), "cover parts"),
        (lambda e: swapped(e, first(e, "rows"), table="other"), "of table other"),
        (lambda e: swapped(e, first(e, "rows"), table=None), "of table None"),
        (lambda e: swapped(e, first(e, "optimizer"), rows=7), "do not match its rows"),
        (lambda e: swapped(e, first(e, "rows"), count=2), "has files"),
        (lambda e: [one for one in e if one.kind != "optimizer"], "its optimizer is missing"),
        (lambda e: [one for one in e if one.kind != "gone"], "has no files of gone"),
        (lambda e: [one for one in e if one.kind != "rows"], "has no files of rows"),
        (lambda _: [], "has no files of rows"),
    ],
)
def test_files_that_do_not_make_a_whole_version_are_refused(tmp_path: Path, spoil: Any, said: str) -> None:
    head, entries = entries_of(tmp_path)
    assert assemble(head, Cut(), entries, written_wall_ms=0).files == tuple(entries)
    with pytest.raises(VersionDefect, match=said) as refused:
        assemble(head, Cut(), spoil(entries), written_wall_ms=0)
    assert refused.value.defect == "incomplete"


def changed(entry: FileEntry, **fields: Any) -> FileEntry:
    return msgspec.structs.replace(entry, **fields)


def swapped(entries: list[FileEntry], entry: FileEntry, **fields: Any) -> list[FileEntry]:
    return [changed(one, **fields) if one == entry else one for one in entries]


@pytest.mark.parametrize("metric", [float("nan"), float("inf")])
def test_a_metric_that_is_no_number_is_refused_before_anything_is_committed(local: Store, metric: float) -> None:
    trainer = Trainer(local)
    writer = VersionWriter(local, trainer.head(1))
    writer.add_rows([])
    with pytest.raises(UsageError, match="cannot be described in a manifest"):
        writer.finish(Cut(metrics={"auc": metric}))
    assert not local.exists(f"{trainer.head(1).folder}/manifest.json")


def test_a_manifest_too_large_to_be_read_is_not_written(local: Store) -> None:
    trainer = Trainer(local)
    writer = VersionWriter(local, trainer.head(1), FileSettings(manifest_bytes_max=100))
    writer.add_rows([])
    with pytest.raises(Oversize, match="the limit is 100"):
        writer.finish(Cut())
    with pytest.raises(ConfigError, match="file_bytes_max"):
        VersionWriter(local, trainer.head(1), FileSettings(file_bytes_max=1))


def test_a_delta_has_a_parent_and_only_a_base_stands_for_a_version(local: Store) -> None:
    trainer = Trainer(local)
    ref = VersionRef(version=1, run=1, sha256="0" * 64)
    for head in (
        {"kind": "delta", "parent": None},
        {"kind": "delta", "parent": ref, "version": 2, "stands_for": ref},
        {"kind": "base", "version": 2, "stands_for": ref},
    ):
        with pytest.raises(VersionDefect, match="incomplete"):
            assemble(msgspec.structs.replace(trainer.head(1), **head), Cut(), [], written_wall_ms=0)


def test_the_schema_in_the_repository_is_that_of_the_structs() -> None:
    assert (FOLDER / "manifest.schema.json").read_bytes() == manifest_schema(), "run python -m tools.write_schemas"


def test_the_page_on_the_format_names_every_field() -> None:
    page = (FOLDER.parent / "docs" / "internals" / "version-format.md").read_text()
    named = (Head, Cut, Manifest, FileEntry, TableRecord, VersionRef, Position, OriginSkip, TimeSkip)
    fields = {field for one in named for field in one.__struct_fields__}
    assert sorted(field for field in fields if f"`{field}`" not in page) == []


def test_a_manifest_says_all_of_its_cut() -> None:
    assert set(Cut.__struct_fields__) < set(Manifest.__struct_fields__)
