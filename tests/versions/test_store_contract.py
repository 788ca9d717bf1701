"""What every store promises: files appear whole, once, and are verified before anyone sees them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

import pytest

from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.errors import BadRecord, FileMissing, FileTaken, Oversize, UsageError
from streamlearn.versions import Store
from streamlearn.versions.store.interface import Entry, FileFound

Opened = Callable[..., Store]
BIG = bytes(range(256)) * 40_000


def _written(store: Store, data: bytes, prefix: str = "ctr/rows/main-0") -> str:
    with store.writer(prefix, ".arrow") as file:
        for begin in range(0, len(data), 1_000_003):
            file.write(data[begin : begin + 1_000_003])
        return file.finish().path


@pytest.mark.parametrize("data", [b"", b"x", BIG], ids=["empty", "small", "big"])
def test_what_is_written_is_read_by_others_under_its_digest(opened: Opened, data: bytes) -> None:
    sha256 = hashlib.sha256(data).hexdigest()
    path = _written(opened(), data)
    assert path == f"ctr/rows/main-0-{sha256[:16]}.arrow"
    other = opened()
    assert bytes(other.read(path, bytes_max=len(data), sha256=sha256)) == data
    assert (other.size(path), other.exists(path)) == (len(data), True)


def test_a_large_file_goes_up_in_pieces(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamlearn.versions.store.remote.SPOOL_MEMORY_BYTES_MAX", 1_000)
    store = opened()
    path = _written(store, BIG)
    assert bytes(store.read(path, bytes_max=len(BIG))) == BIG
    assert _written(store, BIG) == path


def test_nothing_is_there_before_a_file_is_finished(opened: Opened) -> None:
    store, other = opened(), opened()
    file = store.writer("ctr/rows/main-0", ".arrow")
    file.write(b"some")
    assert other.entries("ctr/rows") == []
    path = file.finish().path
    assert other.entries("ctr/rows") == [Entry(path.rpartition("/")[2], False)]
    assert other.leftovers("ctr/rows") == []


def test_a_file_given_up_leaves_nothing(opened: Opened) -> None:
    store = opened()
    with store.writer("ctr/rows/main-0", ".arrow") as file:
        file.write(b"some")
    assert store.entries("ctr/rows") == []
    assert store.leftovers("ctr/rows") == []


def test_a_file_written_again_is_the_same_file(store: Store) -> None:
    assert _written(store, b"same") == _written(store, b"same")
    assert len(store.entries("ctr/rows")) == 1


def test_a_file_created_twice_is_the_first_one(opened: Opened) -> None:
    path = "ctr/deltas/1/manifest.json"
    assert opened().create(path, b"first").sha256 == hashlib.sha256(b"first").hexdigest()
    with pytest.raises(FileTaken, match="exists already"):
        opened().create(path, b"second")
    assert bytes(opened().read(path, bytes_max=100)) == b"first"


def test_exactly_one_of_several_racing_writers_wins(opened: Opened) -> None:
    stores = [opened() for _ in range(4)]
    stores[0].create("ctr/other", b"so that no store is probed while they race")
    for turn in range(5):
        won: list[int] = []
        begin = threading.Barrier(len(stores))

        def race(number: int, path: str, begin: threading.Barrier, won: list[int]) -> None:
            begin.wait(timeout=240)
            try:
                stores[number].create(path, b"%d" % number)
            except FileTaken:
                return
            won.append(number)

        threads = [
            threading.Thread(target=race, args=(number, f"ctr/{turn}", begin, won)) for number in range(len(stores))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=240)
        assert len(won) == 1
        assert bytes(stores[0].read(f"ctr/{turn}", bytes_max=10)) == b"%d" % won[0]


def test_bytes_of_another_digest_are_not_given(store: Store) -> None:
    path = _written(store, BIG)
    with pytest.raises(BadRecord, match="sha256 is"):
        store.read(path, bytes_max=len(BIG), sha256="0" * 64)


def test_a_larger_file_than_expected_is_not_read(store: Store) -> None:
    path = _written(store, BIG)
    with pytest.raises(Oversize, match=f"has {len(BIG)} bytes, but the limit is {len(BIG) - 1}"):
        store.read(path, bytes_max=len(BIG) - 1)


def test_a_missing_file_is_named(store: Store) -> None:
    with pytest.raises(FileMissing, match="does not exist"):
        store.read("ctr/nothing", bytes_max=10)
    assert store.size("ctr/nothing") is None
    assert store.entries("ctr") == []
    store.remove("ctr/nothing")


def test_a_folder_is_no_file(store: Store) -> None:
    store.create("ctr/deltas/one", b"1")
    assert store.size("ctr/deltas") is None
    with pytest.raises(FileMissing):
        store.read("ctr/deltas", bytes_max=10)


def test_entries_are_those_of_the_folder_alone(store: Store) -> None:
    for path in ("ctr/b", "ctr/a/one", "ctr/a/two", "ctrl/c", "ctr/ab"):
        store.create(path, b"1")
    assert store.entries("ctr") == [Entry("a", True), Entry("ab", False), Entry("b", False)]
    assert store.entries("ctr/a") == [Entry("one", False), Entry("two", False)]


def test_a_folder_of_too_many_entries_is_not_listed(opened: Opened) -> None:
    store = opened(entries_max=2)
    for name in ("a", "b", "c"):
        store.create(f"ctr/{name}", b"1")
    with pytest.raises(Oversize, match="entries"):
        store.entries("ctr")


def test_a_removed_file_is_gone_and_can_be_created_again(store: Store) -> None:
    store.create("ctr/a/one", b"1")
    store.remove("ctr/a/one")
    assert (store.exists("ctr/a/one"), store.entries("ctr")) == (False, [])
    store.create("ctr/a/one", b"2")


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/.b", ".x", "a b", "a/", "a\0b", "x" * 2_000]
)
def test_a_path_that_leads_elsewhere_is_refused(store: Store, path: str) -> None:
    for call in (
        lambda: store.read(path, bytes_max=1),
        lambda: store.create(path, b""),
        lambda: store.entries(path),
        lambda: store.size(path),
        lambda: store.remove(path),
        lambda: store.writer(path + "/x", ".arrow"),
    ):
        with pytest.raises(UsageError, match="is not a path within a store"):
            call()


def test_a_walk_finds_all_files_of_all_folders_and_what_is_not_finished(opened: Opened) -> None:
    store, begin_ms = opened(), SYSTEM_CLOCK.wall_ms()
    path = _written(store, b"some")
    store.create("ctr/manifest.json", b"{}")
    store.create("ctrl/other", b"")
    file = store.writer("ctr/rows/main-1", ".arrow")
    file.write(b"half")
    found = opened().walk("ctr")
    assert [(one.path, one.bytes) for one in found if one.is_finished] == [("ctr/manifest.json", 2), (path, 4)]
    assert [one.path.rpartition("/")[2] for one in found if not one.is_finished] == store.leftovers("ctr/rows")
    # A store tells seconds, and its clock need not be ours.
    assert all(abs(one.written_wall_ms - begin_ms) < 600_000 for one in found)
    file.abandon()
    assert store.walk("nothing") == []
    assert all(isinstance(one, FileFound) for one in found)


def test_a_walk_of_too_much_is_refused(opened: Opened) -> None:
    for name in ("a", "b", "c"):
        opened().create(f"ctr/{name}/file", b"")
    with pytest.raises(Oversize, match="ctr has"):
        opened(entries_max=2).walk("ctr")


def test_folders_without_files_are_pruned_and_others_are_not(opened: Opened) -> None:
    store = opened()
    path = _written(store, b"some")
    for name in ("a", "b"):
        file = store.writer(f"ctr/deltas/{name}/rows/main-0", ".arrow")
        file.write(b"half")
        file.abandon()
    store.prune("ctr")
    assert [one.path for one in store.walk("ctr")] == [path]
    assert store.entries("ctr") == [Entry("rows", True)]
    store.remove(path)
    store.prune("ctr")
    assert store.entries("ctr") == []
    store.prune("ctr")
