"""The cache folder: entries are whole, made once, and where the environment says."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from streamlearn.errors import ServiceError
from tools.services.cache import Cache, size_bytes

__all__: list[str] = []


def _make(folder: Path) -> None:
    (folder / "content").write_text("whole")


def _make_and_count(cache_folder: Path, ready: multiprocessing.synchronize.Barrier) -> None:
    def make(folder: Path) -> None:
        with (cache_folder / "count").open("a") as file:
            file.write("made\n")
        _make(folder)

    ready.wait(300)
    Cache(cache_folder).get("thing-1", make)


def test_an_entry_is_made_once_and_found_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.find("thing-1") is None
    entry = cache.get("thing-1", _make)
    assert (entry / "content").read_text() == "whole"
    assert cache.get("thing-1", lambda folder: pytest.fail("made twice")) == entry
    assert cache.find("thing-1") == entry
    assert size_bytes(entry) == len("whole")


def test_two_processes_at_once_make_an_entry_once(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Barrier(2)
    makers = [spawn.Process(target=_make_and_count, args=(tmp_path, ready)) for _ in range(2)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join(300)
    assert [maker.exitcode for maker in makers] == [0, 0]
    assert (tmp_path / "count").read_text() == "made\n"


def test_a_failed_making_leaves_no_entry_and_can_be_tried_again(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        _make(folder)
        message = "no network"
        raise ServiceError(message)

    cache = Cache(tmp_path)
    with pytest.raises(ServiceError, match="no network"):
        cache.get("thing-1", fail)
    assert cache.find("thing-1") is None
    assert not list(tmp_path.glob(".making-*"))
    assert (cache.get("thing-1", _make) / "content").exists()


def test_what_a_dead_process_left_half_made_is_swept(tmp_path: Path) -> None:
    leftover = tmp_path / ".making-thing-1-dead"
    leftover.mkdir()
    Cache(tmp_path).get("thing-1", _make)
    assert not leftover.exists()


def test_an_entry_locked_for_too_long_is_refused_with_the_lock_named(tmp_path: Path) -> None:
    def make_again(folder: Path) -> None:
        del folder
        Cache(tmp_path, lock_wait_s_max=0.0).get("thing-1", _make)

    with pytest.raises(ServiceError, match="another process has been making"):
        Cache(tmp_path).get("thing-1", make_again)


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"STREAMLEARN_CACHE": "/a/b"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/streamlearn"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/one"}, "/home/one/.cache/streamlearn"),
        ({"HOME": "/home/one"}, "/home/one/.cache/streamlearn"),
    ],
)
def test_the_folder_is_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], folder: str
) -> None:
    for name in ("STREAMLEARN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(Cache().folder) == folder


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ServiceError, match="cannot be written") as caught:
        Cache(file / "cache").get("thing-1", _make)
    assert "STREAMLEARN_CACHE" in caught.value.help
