"""Files: what is written comes back bit for bit; what is hostile is refused by name, however right its digest is."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any

import fsspec
import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st

from streamlearn.errors import ConfigError, UsageError, VersionDefect
from streamlearn.native import native
from streamlearn.table import Adagrad, Changes
from streamlearn.versions import Store, open_store
from streamlearn.versions.format import pieces
from streamlearn.versions.format.arrow import fixed_lists, plain, read_batches
from streamlearn.versions.format.manifest import FileEntry, TableRecord
from streamlearn.versions.format.pieces import (
    check_pieces,
    read_bytes,
    read_tensors,
    write_bytes,
    write_tensors,
)
from streamlearn.versions.format.row_files import RowFiles, read_gone, read_rows
from streamlearn.versions.format.split import Place
from streamlearn.versions.store.settings import FileSettings
from tests.campaign import examples
from tests.table.oracle import keys_of_one_part

TABLE = TableRecord(name="main", dim=3, initial_range=0.1, optimizer=Adagrad())
SMALL = FileSettings(file_bytes_max=65_536)
_NUMBERS = st.sampled_from(["<f4", "<f8", "<f2", "<i8", ">i4", "|u1", "|b1", "<c8", "<u2"])


def place(store: Store) -> Place:
    return Place(store, "ctr/deltas/x", SMALL)


def read(store: Store, entry: FileEntry) -> memoryview:
    return store.read(f"ctr/deltas/x/{entry.path}", bytes_max=entry.bytes, sha256=entry.sha256)


def blank(kind: Any) -> FileEntry:
    return FileEntry(kind=kind, path=f"{kind}/x", rows=0, bytes=0, sha256="0" * 64)


@hypothesis_settings(max_examples=examples(25), derandomize=True, database=None)
@given(
    tensors=st.dictionaries(
        st.text(min_size=1, max_size=9),
        _NUMBERS.flatmap(lambda kind: numpy_st.arrays(kind, numpy_st.array_shapes(min_dims=0, min_side=0))),
        max_size=4,
    )
)
def test_tensors_of_any_kind_and_shape_come_back_bit_for_bit(tensors: dict[str, npt.NDArray[Any]]) -> None:
    fsspec.filesystem("memory").store.clear()
    store = open_store("memory://tensors")
    entries = write_tensors(place(store), blank("dense"), tensors)
    found = read_tensors([(entry, read(store, entry)) for entry in entries], "x")
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert found[name].tobytes() == tensor.tobytes()


@pytest.mark.parametrize("dtype", ["<f3", "<i9", "|b0", "<c1", ">f99"])
def test_a_tensor_of_a_type_that_there_is_not_is_a_defect(local: Store, dtype: str) -> None:
    note = pieces._Note(dtype, (1,))
    entries = pieces._write(place(local), blank("dense"), {"a": (note, memoryview(b"12345678"))})
    files = [(entry, read(local, entry)) for entry in entries]
    with pytest.raises(VersionDefect, match="corrupted"):
        read_tensors(files, "x")
    with pytest.raises(VersionDefect, match="corrupted"):
        check_pieces(files, "x", on_numbers=lambda name, numbers: None)


def test_a_tensor_larger_than_a_file_lies_in_several(local: Store) -> None:
    tensors = {"a": np.arange(100_000, dtype=np.float64).reshape(100, 1_000).T, "b": np.ones((), np.int64)}
    entries = write_tensors(place(local), blank("dense"), tensors)
    assert len(entries) > 10
    assert max(entry.bytes for entry in entries) <= SMALL.file_bytes_max
    files = [(entry, read(local, entry)) for entry in entries]
    found = read_tensors(files, "x")
    assert all(found[name].tobytes() == tensor.tobytes() for name, tensor in tensors.items())
    for wrong in (files[1:], files[:-1], [files[1], files[0], *files[2:]], [*files[:3], *files[4:]]):
        with pytest.raises(VersionDefect):
            read_tensors(wrong, "x")


def test_what_is_no_number_is_no_tensor(local: Store) -> None:
    for tensor in (np.array(["text"]), np.array([object()]), np.array([1], "datetime64[s]")):
        with pytest.raises(UsageError, match="tensor 'x' is"):
            write_tensors(place(local), blank("dense"), {"x": tensor})
    with pytest.raises(UsageError, match="name of 0 characters"):
        write_bytes(place(local), blank("marks"), {"": b""})
    assert local.leftovers("ctr/deltas/x/marks") == []


def test_bytes_of_any_length_come_back(local: Store) -> None:
    named = {"none": b"", "one": b"1", "many": bytes(range(256)) * 1_000}
    entries = write_bytes(place(local), blank("marks"), named)
    found = read_bytes([(entry, read(local, entry)) for entry in entries], "x")
    assert {name: bytes(data) for name, data in found.items()} == named
    with pytest.raises(VersionDefect, match="does not fit a tensor"):
        read_tensors([(msgspec.structs.replace(entry), read(local, entry)) for entry in entries], "x")


def changes(count: int, *, gone: int = 0, seed: int = 0) -> Changes:
    chance = np.random.default_rng(seed)
    return Changes(
        "main", np.arange(count, dtype=np.uint64), chance.standard_normal((count, 3), np.float32),
        state=chance.standard_normal((count, 3), np.float32), ticks=np.arange(count, dtype=np.uint32),
        counts=np.full(count, 7, np.uint8), gone=np.arange(count, count + gone, dtype=np.uint64),
    )  # fmt: skip


@pytest.mark.parametrize("sizes", [[0], [1], [3, 0, 5], [7_000], [1] * 50, [2_000, 2_001, 3]])
def test_rows_come_back_whatever_batches_they_came_in(local: Store, sizes: list[int]) -> None:
    whole = changes(sum(sizes), gone=sum(sizes))
    files, begin = RowFiles(place(local), TABLE, (0, 1), (0, 1024)), 0
    for size in sizes:
        at = slice(begin, begin + size)
        assert whole.state is not None
        assert whole.ticks is not None
        assert whole.counts is not None
        assert whole.gone is not None
        files.add(
            Changes(
                "main", whole.keys[at], whole.rows[at], state=whole.state[at], ticks=whole.ticks[at],
                counts=whole.counts[at], gone=whole.gone[at],
            )
        )  # fmt: skip
        begin += size
    entries = files.finish()
    rows, gone, optimizer = ([one for one in entries if one.kind == kind] for kind in ("rows", "gone", "optimizer"))
    found = [
        batch
        for entry, beside in zip(rows, optimizer, strict=True)
        for batch in read_rows(TABLE, entry, read(local, entry), (beside, read(local, beside)), "x")
    ]
    for name in ("keys", "rows", "state", "ticks", "counts"):
        mine = np.concatenate([getattr(whole, name)[:0], *(getattr(batch, name) for batch in found)])
        np.testing.assert_array_equal(mine, getattr(whole, name))
    keys = [one.gone for entry in gone for one in read_gone(TABLE, entry, read(local, entry), "x")]
    np.testing.assert_array_equal(
        np.concatenate([np.empty(0, np.uint64), *(k for k in keys if k is not None)]), whole.gone
    )


def test_columns_are_views_of_the_bytes(local: Store) -> None:
    files = RowFiles(place(local), TABLE, (0, 1), (0, 1024))
    files.add(changes(100))
    entry = files.finish()[0]
    data = read(local, entry)
    [batch] = read_rows(TABLE, entry, data, None, "x")
    raw = np.frombuffer(data, np.uint8)
    assert np.shares_memory(batch.rows, raw)
    assert np.shares_memory(batch.keys, raw)


def test_an_optimizer_beside_other_rows_is_refused(local: Store) -> None:
    one, other = (RowFiles(place(local), TABLE, (shard, 2), (0, 1024)) for shard in (0, 1))
    one.add(changes(100))
    moved = changes(100)
    other.add(
        Changes(
            "main", moved.keys + np.uint64(1), moved.rows, state=moved.state, ticks=moved.ticks, counts=moved.counts
        )
    )
    rows, beside = one.finish()[0], other.finish()[2]
    with pytest.raises(VersionDefect, match="it has keys of sha256") as refused:
        list(read_rows(TABLE, rows, read(local, rows), (beside, read(local, beside)), "x"))
    assert refused.value.defect == "corrupted"


def test_keys_of_parts_the_shard_does_not_own_are_refused(local: Store) -> None:
    files = RowFiles(place(local), TABLE, (0, 1), (0, 1024))
    files.add(changes(100))
    entry = files.finish()[0]
    with pytest.raises(VersionDefect, match="its keys belong to parts"):
        list(read_rows(TABLE, msgspec.structs.replace(entry, parts=(0, 5)), read(local, entry), None, "x"))


def test_a_record_larger_than_a_file_is_refused(local: Store) -> None:
    wide = TableRecord(name="main", dim=4096, initial_range=0.1, optimizer=Adagrad(), row_type="int8")
    big = msgspec.structs.replace(wide, dim=4096, row_type="float16")
    assert RowFiles(place(local), wide, (0, 1), (0, 1024))
    small = Place(local, "ctr/deltas/x", msgspec.structs.replace(SMALL, file_bytes_max=20_000))
    with pytest.raises(ConfigError, match="one record has 32773 bytes"):
        RowFiles(small, big, (0, 1), (0, 1024))


def arrow(fields: list[pa.Field], columns: list[pa.Array], **said: Any) -> bytes:
    schema = pa.schema(fields, metadata=said.pop("metadata", {"format": "1", "kind": "rows", "table": "main"}))
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, schema, **said) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    return sink.getvalue()


KEY, ROW = plain("key", pa.uint64()), fixed_lists("row", pa.float32(), 3)
KEYS = pa.array([1, 2], pa.uint64())
ROWS = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(6, np.float32)), type=ROW.type)
PAIR = fixed_lists("row", pa.float32(), 2)
PAIRS = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(4, np.float32)), type=PAIR.type)


def good(**said: Any) -> bytes:
    return arrow([KEY, ROW], [KEYS, ROWS], **said)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "it begins with"),
        (b"ARROW1\0\0", "not an Arrow file|records"),
        (good()[:200], "not an Arrow file"),
        (good(options=pa.ipc.IpcWriteOptions(compression="zstd")), "it is compressed"),
        (good(metadata={"format": "1", "kind": "rows", "table": "side"}), "its metadata are"),
        (good(metadata={}), "its metadata are"),
        (arrow([KEY], [KEYS]), "its columns are"),
        (arrow([plain("key", pa.int64()), ROW], [pa.array([1, 2], pa.int64()), ROWS]), "its columns are"),
        (arrow([KEY, PAIR], [KEYS, PAIRS]), "its columns are"),
        (arrow([KEY, ROW], [pa.array([1, None], pa.uint64()), ROWS]), "1 nulls|non-nullable"),
        (arrow([KEY, ROW], [KEYS[:1], ROWS[:1]]), "it has 1 records, but the manifest says 2"),
    ],
)  # fmt: skip
def test_a_hostile_file_with_the_right_digest_is_refused(raw: bytes, said: str) -> None:
    entry = FileEntry(kind="rows", path="rows/main-0", rows=2, bytes=len(raw), sha256="0" * 64, table="main")
    [fine] = read_rows(TABLE, entry, memoryview(good()), None, "x")
    assert fine.rows.shape == (2, 3)
    with pytest.raises(VersionDefect, match=said) as refused:
        list(read_rows(TABLE, entry, memoryview(raw), None, "x"))
    assert (refused.value.defect, refused.value.path) == ("corrupted", "x/rows/main-0")


def test_no_flipped_byte_of_an_arrow_file_ends_otherwise_than_by_name() -> None:
    raw = good()
    schema = pa.schema([KEY, ROW], metadata={"format": "1", "kind": "rows", "table": "main"})
    for at in range(len(raw)):
        for value in (0x00, 0x01, 0x7F, 0xFF):
            damaged = bytearray(raw)
            damaged[at] = value
            # It is refused by name; or what was changed is of no consequence, such as a number of a row.
            with suppress(VersionDefect):
                [found] = read_batches(memoryview(bytes(damaged)), schema, 2, "x")
                assert found.numbers("row").shape == (2, 3)


def test_the_part_of_a_key_is_the_one_its_table_keeps_it_in() -> None:
    for part in (0, 9, 1023):
        assert set(native.parts_of(keys_of_one_part(5, part)).tolist()) == {part}
    assert len(native.parts_of(np.empty(0, np.uint64))) == 0
    with pytest.raises(TypeError, match="keys: expected"):
        native.parts_of(np.zeros(3, np.int64))
