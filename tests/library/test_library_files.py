"""The library in versions: deltas, bases and reverts bring back every bit; damage is named."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.errors import BadRecord, VersionDefect
from streamlearn.library.library import Library
from streamlearn.testing import ManualClock
from streamlearn.versions import (
    Chain,
    Cut,
    compact,
    export_version,
    import_version,
    load_tensors,
    open_store,
    verify,
    write_revert,
)  # fmt: skip
from streamlearn.versions.format.coverage import check_manifest
from streamlearn.versions.format.library_files import check_library, library_in
from streamlearn.versions.store.settings import FileSettings
from tests.library.history import MODEL, Writer, known
from tests.library.place import library_app
from tests.library.statements import Said, content, library_of, statements, updates_of

APPS = {value: library_app(value, expire_s=86_400) for value in ("int", "str")}
SAID = [Said(item, item, item, item, is_told=item % 2 == 0) for item in range(8)]
STEPS = st.lists(
    st.tuples(st.sampled_from(["say", "say", "cut", "fail", "compact", "revert", "expire"]), st.integers(0, 1 << 16)),
    max_size=14,
)


def step(writer: Writer, states: dict[int, Any], what: str, seed: int) -> None:
    """One step of a random history; `states` has what is known in each version."""
    chance = np.random.default_rng(seed)
    assert writer.last is not None
    newest = writer.last.manifest.version
    if what == "say":
        places = chance.integers(0, 1 << 20, 5).tolist()
        said = [
            Said(place % 9, place % 300, None if place % 5 == 0 else place % 4, place, place % 2 == 0 or place % 5 == 0)
            for place in places
        ]
        writer.library.apply(updates_of(writer.app, said))
    elif what == "expire":
        writer.library.expire(1_700_000_000_000 + 86_400_000 + 60_000 * (seed % 6))
    elif what == "fail":
        writer.library.cut()  # never committed: the next version has it
    elif what == "compact":
        compact(writer.store, MODEL, sorted(states)[seed % len(states)])
    elif what == "cut":
        writer.cut(newest + 1)
        states[newest + 1] = known(writer.library)
    else:
        to = sorted(states)[seed % len(states)]
        writer.last = write_revert(writer.store, MODEL, to=to, run=1, clock=ManualClock())
        writer.library.restore(Chain.find(writer.store, MODEL))
        states[newest + 1] = states[to]


@given(value=st.sampled_from(sorted(APPS)), steps=STEPS)
def test_every_version_brings_back_its_library_and_a_follower_has_it_too(
    value: str, steps: list[tuple[str, int]]
) -> None:
    writer = Writer(APPS[value])
    writer.cut(1)
    states = {1: known(writer.library)}
    follower = writer.restored()
    for what, seed in [*steps, ("cut", 0)]:
        step(writer, states, what, seed)
        assert writer.last is not None
        if what in ("cut", "revert"):
            if what == "revert":
                follower = Library(writer.app)
            follower.follow(load_tensors(writer.store, writer.last, "library"), "")
            assert known(follower) == states[writer.last.manifest.version]
    for version, state in states.items():
        assert known(writer.restored(version)) == state
    assert verify(writer.store, MODEL, everything=True).defects == ()
    # The next delta follows from what was restored as from what was never lost.
    again = writer.restored()
    more = updates_of(writer.app, SAID)
    for library in (again, writer.library):
        library.apply(more)
    assert {name: one.tobytes() for name, one in again.cut().tensors.items()} == {
        name: one.tobytes() for name, one in writer.library.cut().tensors.items()
    }


def test_a_delta_holds_what_changed_and_a_base_everything() -> None:
    writer = Writer(APPS["int"])
    writer.library.apply(updates_of(writer.app, SAID))
    writer.cut(1)
    writer.library.apply(updates_of(writer.app, [Said(3, 99, 1, 5, is_told=True)]))
    delta = writer.cut(2)
    assert len(load_tensors(writer.store, delta, "library")["key"]) == 1
    compact(writer.store, MODEL)
    (base,) = Chain.find(writer.store, MODEL).links
    assert len(load_tensors(writer.store, base, "library")["key"]) == 8
    assert base.manifest.kind == "base"


def test_a_library_of_many_files_comes_back_and_a_lost_one_makes_the_version_incomplete() -> None:
    writer = Writer(APPS["str"])
    writer.store.files = FileSettings(file_bytes_max=65_536)
    writer.library.apply(updates_of(writer.app, [Said(item, 1, item, item, is_told=False) for item in range(4_000)]))
    done = writer.cut(1)
    files = done.manifest.of_kind("library")
    assert len(files) > 3
    assert known(writer.restored()) == known(writer.library)
    fewer = tuple(file for file in done.manifest.files if file != files[1])
    with pytest.raises(VersionDefect) as refused:
        check_manifest(msgspec.structs.replace(done.manifest, files=fewer), "there")
    assert (refused.value.defect, "of library" in refused.value.message) == ("incomplete", True)


def test_a_damaged_file_is_a_defect_and_brings_nothing_back(tmp_path: Path) -> None:
    writer = Writer(APPS["int"], open_store(str(tmp_path)))
    writer.library.apply(updates_of(writer.app, SAID))
    done = writer.cut(1)
    (entry,) = done.manifest.of_kind("library")
    path = tmp_path / done.folder / entry.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(data))
    with pytest.raises(VersionDefect, match="sha256"):
        writer.restored()
    assert [one.defect for one in verify(writer.store, MODEL).defects] == ["corrupted"]
    path.unlink()
    assert [one.defect for one in verify(writer.store, MODEL).defects] == ["missing_file"]


def test_all_versions_of_a_chain_have_a_library_or_none_has() -> None:
    writer = Writer(APPS["int"])
    writer.cut(1)
    writer.writer(2).finish(Cut(), clock=ManualClock())
    with pytest.raises(
        VersionDefect, match="its items of a library are False, but those of version 1 are True"
    ) as refused:
        Chain.find(writer.store, MODEL)
    assert refused.value.defect == "incompatible"
    plain = Writer(APPS["int"])
    plain.writer(1).finish(Cut(), clock=ManualClock())
    chain = Chain.find(plain.store, MODEL)
    assert library_in(plain.store, chain.links) is None
    assert len(plain.restored()) == 0


def test_a_library_of_other_features_is_refused_by_their_names() -> None:
    writer = Writer(APPS["int"])
    writer.library.apply(updates_of(writer.app, SAID))
    writer.cut(1)
    other = Library(APPS["str"])
    with pytest.raises(VersionDefect, match=r"other columns than the application: id, id\$"):
        other.restore(Chain.find(writer.store, MODEL))


def test_an_exported_folder_has_the_library_and_is_imported_with_it(tmp_path: Path) -> None:
    writer = Writer(APPS["str"])
    writer.library.apply(updates_of(writer.app, SAID))
    writer.cut(1)
    export_version(writer.store, MODEL, None, tmp_path / "out")
    with np.load(tmp_path / "out" / "library.npz") as plain:
        assert sorted(plain["key"].tolist()) == plain["key"].tolist()
        assert plain["item.vector"].shape == (8, 3)
    other = Writer(APPS["str"])
    import_version(other.store, MODEL, tmp_path / "out")
    assert known(other.restored()) == known(writer.library)
    assert "library.npz" in (tmp_path / "out" / "README.txt").read_text()


@pytest.mark.parametrize("what", ["lengths", "keys"])
def test_an_imported_folder_whose_library_does_not_fit_is_refused(tmp_path: Path, what: str) -> None:
    writer = Writer(APPS["int"])
    writer.library.apply(updates_of(writer.app, SAID))
    tensors = writer.library.cut().tensors
    wrong = tensors | ({"told_ms": tensors["told_ms"][:-1]} if what == "lengths" else {"gone": tensors["key"][:1]})
    made = writer.writer(1)
    made.add_library(wrong)
    made.finish(Cut(), clock=ManualClock())
    assert [one.defect for one in verify(writer.store, MODEL).defects] == ["corrupted"]
    with pytest.raises(VersionDefect, match="the library of items"):
        export_version(writer.store, MODEL, None, tmp_path / "out")
    # As one that was exported whole, and changed with its digests.
    right = Writer(APPS["int"])
    right.library.apply(updates_of(right.app, SAID))
    right.cut(1)
    export_version(right.store, MODEL, None, tmp_path / "right")
    np.savez(tmp_path / "right" / "library.npz", **wrong)  # type: ignore[arg-type]
    described = tmp_path / "right" / "version.json"
    said = json.loads(described.read_text())
    data = (tmp_path / "right" / "library.npz").read_bytes()
    for file in said["files"]:
        if file["path"] == "library.npz":
            file |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    described.write_text(json.dumps(said))
    with pytest.raises(BadRecord, match="the library of items"):
        import_version(Writer(APPS["int"]).store, MODEL, tmp_path / "right")


def _cut(column: Any, number: int) -> Any:
    return column[: number % (len(column) + 1)]


CHANGES: dict[str, Callable[[Any, int], Any]] = {
    "cut": _cut,
    "type": lambda column, number: column.astype(("<u8", "<i8", "<f4", "u1")[number % 4]),
    "numbers": lambda column, number: np.roll(column, number) + column.dtype.type(number % 3),
    "shape": lambda column, _: column.reshape(1, *column.shape),
}


@given(
    value=st.sampled_from(sorted(APPS)),
    said=statements(),
    changes=st.lists(st.tuples(st.integers(0, 99), st.sampled_from(sorted(CHANGES)), st.integers(0, 99)), max_size=3),
    gone=st.sampled_from(["", "", "key", "id", "gone", "item.tags"]),
)
def test_columns_that_do_not_fit_are_a_defect_and_nothing_else(
    value: str, said: list[Said], changes: list[tuple[int, str, int]], gone: str
) -> None:
    tensors = library_of(APPS[value], said).cut().tensors
    names = sorted(tensors)
    for name, change, number in changes:
        column = tensors[names[name % len(names)]]
        tensors[names[name % len(names)]] = CHANGES[change](column, number)
    tensors.pop(gone, None)
    with suppress(VersionDefect):
        check_library(tensors, "there")
        library = Library(APPS[value])
        library.follow(tensors, "there")
        content(library.view())
