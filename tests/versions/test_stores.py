"""Stores one by one: URLs, folders without hard links, file systems that overwrite, and secrets."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem

from streamlearn.errors import BadRecord, ConfigError, FileTaken, StoreError, StoreUnfit, StoreUnreachable, UsageError
from streamlearn.settings.versions import VersionSettings
from streamlearn.versions import Store, open_store
from tests.versions.server import SECRET, options


class Forgetful(MemoryFileSystem):  # type: ignore[misc]
    """Takes a mode, and overwrites all the same."""

    protocol = "forgetful"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **named: Any) -> None:
        super().pipe_file(path, value, mode="overwrite", **named)


class Looking(MemoryFileSystem):  # type: ignore[misc]
    """Has no way of its own to create exclusively."""

    protocol = "looking"

    def pipe_file(self, path: str, value: bytes, **named: Any) -> None:
        super().pipe_file(path, value, **named)


register_implementation("forgetful", Forgetful, clobber=True)
register_implementation("looking", Looking, clobber=True)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "s3://",
        "file://host/x",
        "file://relative",
        "s3://key:word@bucket/x",
        "s3://bucket/x?key=word",
        "s3://b/../c",
    ],
)
def test_what_is_no_url_of_a_store_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        open_store(url)
    assert "word" not in str(refused.value)


@pytest.mark.parametrize("url", ["http:/u:hunter2@h/models", "file://u:hunter2@h/models", "S3:/u:hunter2@h"])
def test_a_mistyped_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert "hunter2" not in str(caught.value)


def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(local: Store, tmp_path: Path) -> None:
    local.create("shop/first.txt", b"one")
    os.mkfifo(tmp_path / "store" / "shop" / "pipe.txt")
    with pytest.raises(StoreUnreachable, match="not a regular file"):
        local.read("shop/pipe.txt", bytes_max=100)


def test_folders_of_other_programs_are_left_out_of_a_walk(local: Store, tmp_path: Path) -> None:
    local.create("shop/first.txt", b"one")
    for name in ("@eaDir", "lost+found", ".snapshot"):
        (tmp_path / "store" / "shop" / name).mkdir()
        (tmp_path / "store" / "shop" / name / "file").touch()
    assert [found.path for found in local.walk("shop")] == ["shop/first.txt"]


def test_a_path_and_its_url_are_one_store(tmp_path: Path) -> None:
    open_store(str(tmp_path / "a b")).create("ctr/x", b"1")
    assert open_store((tmp_path / "a b").as_uri()).exists("ctr/x")


def test_a_file_system_nobody_knows_is_refused() -> None:
    with pytest.raises(UsageError, match="nosuch://models cannot be opened"):
        open_store("nosuch://models")


@pytest.mark.parametrize("protocol", ["forgetful", "looking"])
def test_a_store_that_overwrites_is_refused_at_the_first_write(protocol: str) -> None:
    store = open_store(f"{protocol}://models")
    with pytest.raises(StoreUnfit, match=f"{protocol}://models: two writers could both create the same file"):
        store.create("ctr/x", b"1")
    with pytest.raises(StoreUnfit):
        store.writer("ctr/x", ".arrow")
    assert store.entries("ctr") == []
    assert store.entries("probes") == []


def test_a_folder_without_hard_links_is_refused(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    with pytest.raises(StoreUnfit, match="no hard links"):
        local.create("ctr/x", b"1")
    monkeypatch.undo()
    assert (local.entries("ctr"), local.leftovers("ctr")) == ([], [])


def test_a_full_disk_is_named_and_leaves_nothing(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreUnreachable, match="ctr/x: No space left on device"):
        local.create("ctr/x", b"1")
    monkeypatch.undo()
    assert (local.entries("ctr"), local.leftovers("ctr")) == ([], [])


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = open_store(str(tmp_path / "file"))
    assert store.entries("ctr") == []
    with pytest.raises(StoreError):
        store.create("ctr/x", b"1")


def test_a_damaged_file_is_not_taken_for_the_one_that_is_written_again(local: Store, tmp_path: Path) -> None:
    with local.writer("ctr/main", ".arrow") as file:
        file.write(b"good")
        path = file.finish().path
    (tmp_path / "store" / path).write_bytes(b"evil")
    with local.writer("ctr/main", ".arrow") as file:
        file.write(b"good")
        with pytest.raises(FileTaken, match="with other contents"):
            file.finish()


def test_large_local_files_are_mapped_and_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamlearn.versions.store.local.MAPPED_BYTES_MIN", 1)
    store = open_store(str(tmp_path))
    sha256 = store.create("ctr/x", b"abcd").sha256
    data = store.read("ctr/x", bytes_max=4, sha256=sha256)
    assert type(data.obj).__name__ == "mmap"
    store.remove("ctr/x")
    assert bytes(data) == b"abcd"
    (tmp_path / "x").write_bytes(b"abce")
    with pytest.raises(BadRecord):
        store.read("x", bytes_max=4, sha256=sha256)


def test_no_write_keeps_the_core_for_long(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write = os.write

    def written(descriptor: int, view: memoryview) -> int:
        sizes.append(len(view))
        return write(descriptor, view)

    monkeypatch.setattr(os, "write", written)
    data = os.urandom(1_000_000)
    with local.writer("m/large", ".bin") as file:
        file.write(data)
        stored = file.finish()
    monkeypatch.undo()
    assert sum(sizes) == len(data)
    assert max(sizes) <= 65_536
    assert local.read(stored.path, bytes_max=len(data), sha256=stored.sha256) == data


def test_only_unfinished_files_are_swept(local: Store) -> None:
    local.create("ctr/x", b"1")
    with pytest.raises(StoreError, match="'x' is not an unfinished file"):
        local.sweep("ctr", "x")
    file = local.writer("ctr/y", ".arrow")
    [name] = local.leftovers("ctr")
    local.sweep("ctr", name)
    assert local.leftovers("ctr") == []
    file.abandon()


def test_a_link_in_a_local_store_is_never_followed(local: Store, tmp_path: Path) -> None:
    outside, part = tmp_path / "outside", f".1-{'0' * 32}.part"
    (outside / "empty").mkdir(parents=True)
    for name in ("x", part):
        (outside / name).write_bytes(b"1")
    local.create("ctr/y", b"1")
    (tmp_path / "store" / "ctr" / "linked").symlink_to(outside)
    (tmp_path / "store" / "ctr" / "file").symlink_to(outside / "x")
    assert [entry.name for entry in local.entries("ctr")] == [file.path[4:] for file in local.walk("ctr")] == ["y"]
    local.prune("ctr")
    uses: list[Callable[[], object]] = [
        lambda: local.size("ctr/linked/x"),
        lambda: local.size("ctr/file"),
        lambda: local.read("ctr/linked/x", bytes_max=1),
        lambda: local.read("ctr/file", bytes_max=1),
        lambda: local.create("ctr/linked/new", b"1"),
        lambda: local.writer("ctr/linked/new", ".arrow"),
        lambda: local.walk("ctr/linked"),
        lambda: local.remove("ctr/linked/x"),
        lambda: local.sweep("ctr/linked", part),
        lambda: local.prune("ctr/linked"),
    ]
    for use in uses:
        with pytest.raises(StoreError, match=r"/ctr/(linked|file) is a symbolic link") as refused:
            use()
        assert "put the files there" in refused.value.help
    assert sorted(file.name for file in outside.iterdir()) == sorted([part, "empty", "x"])


def test_the_folder_of_a_local_store_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "real")
    store = open_store(str(tmp_path / "store"))
    store.create("ctr/x", b"1")
    assert [file.path for file in store.walk("ctr")] == ["ctr/x"]
    store.remove("ctr/x")
    assert not store.exists("ctr/x")


def test_a_silent_server_is_given_up_within_the_bound_and_no_secret_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        limits = VersionSettings(request_timeout_ms=50, attempts_max=1)
        store = open_store("s3://models/x", options=options(address), settings=limits)
        with pytest.raises(StoreUnreachable, match="s3://models/x/ctr/x: ") as refused:
            store.read("ctr/x", bytes_max=1)
    assert SECRET not in repr(refused.value) + str(refused.value) + repr(store)
    assert refused.value.__suppress_context__


def test_a_secret_a_library_repeats_is_taken_out(s3_address: str) -> None:
    said = options(s3_address) | {
        "client_kwargs": {"endpoint_url": f"{s3_address}/{SECRET}", "region_name": SECRET + "!"}
    }
    with pytest.raises((StoreUnreachable, UsageError)) as refused:
        open_store("s3://no-such-bucket/x", options=said).create("ctr/x", b"1")
    assert SECRET not in str(refused.value)


def test_an_option_a_library_does_not_know_is_refused_without_its_value() -> None:
    with pytest.raises(StoreUnreachable, match="nonsense") as refused:
        open_store("s3://models", options={"config_kwargs": {"nonsense": SECRET}}).entries("ctr")
    assert SECRET not in str(refused.value)


def test_a_limit_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="attempts_max"):
        open_store("memory://x", settings=VersionSettings(attempts_max="many"))  # type: ignore[arg-type]


def test_nothing_of_a_file_system_is_imported_before_a_store_is_opened() -> None:
    script = (
        "import sys, streamlearn.versions as v; before = 'fsspec' in sys.modules;"
        "v.open_store('/nowhere'); between = 'fsspec' in sys.modules;"
        "v.open_store('memory://x'); print(before, between, 'fsspec' in sys.modules, 's3fs' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True", "False"]
