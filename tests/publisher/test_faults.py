"""What the world does to a publisher: a disk that fills, a store that does not answer or loses answers."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamlearn.errors import CutFailed, EpochOver, ShardUnreachable, StoreUnreachable, StreamlearnError
from streamlearn.settings import PublisherSettings
from streamlearn.versions import Chain, History, PointerLog, Store, open_store
from tests.publisher.training import INTERVAL_S, MODEL, Training, check_learned

_REAL_WRITE = os.write


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


class FullDisk:
    """A disk with room for so many more bytes; what was written of a file before stays written.

    Args:
        room: How many bytes; None for any.
    """

    def __init__(self) -> None:
        self.room: int | None = None
        self.written = 0

    def write(self, descriptor: int, data: Any) -> int:
        """As `os.write` does, with a disk that may be full."""
        size = len(data)
        if self.room is not None:
            if self.room <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            size = min(size, self.room)
            self.room -= size
        self.written += size
        return _REAL_WRITE(descriptor, data[:size])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    made = FullDisk()
    monkeypatch.setattr("streamlearn.versions.store.local.os.write", made.write)
    return made


def versions(store: Store) -> list[int]:
    return [one.version for one in History(store, MODEL).read()]


def test_a_disk_that_is_full_at_any_byte_of_a_version_loses_nothing(store: Store, disk: FullDisk) -> None:
    with Training(store, PublisherSettings(publish_interval_s=INTERVAL_S, failures_max=1_000)).begin() as training:
        training.publish()
        before = disk.written
        training.publish()
        needed = disk.written - before
        points = 30
        for at in range(points):
            disk.room = needed * at // points
            training.publish()  # where the version was committed and only its verdict was not, that is made up for
            disk.room = None
        training.publish()
        assert training.publisher._failures == 0
    check_learned(store, points + 3)
    known = History(store, MODEL).read()
    assert all(one.outcome == "unscored" for one in known)
    assert len(known) < points
    assert PointerLog(store, MODEL).newest().active == known[-1].ref


def test_a_full_disk_does_not_stay_full_of_what_was_given_up(store: Store, disk: FullDisk, tmp_path: Path) -> None:
    with Training(store).begin() as training:
        training.publish()
        for _ in range(3):
            disk.room = 4_000
            training.publish()
            disk.room = None
        assert versions(store) == [1, 2]
        files = [file for file in tmp_path.rglob("*") if file.is_file() and "deltas" in file.parts]
        assert {file.relative_to(tmp_path).parts[3] for file in files} == {"000000000002-00000001"}
        training.publish()
    check_learned(store, 5)


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A disk of one mebibyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"this machine mounts nothing: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, capture_output=True)


def test_a_real_disk_that_is_full_is_survived_once_there_is_room(tmpfs: Path) -> None:
    store = open_store(str(tmpfs))
    with Training(store).begin() as training:
        training.publish()
        ballast = tmpfs / "ballast"
        with pytest.raises(OSError, match="No space left"):
            ballast.write_bytes(b"0" * (2 << 20))
        training.publish()
        assert training.publisher._failures == 1
        ballast.unlink()
        training.publish()
    assert versions(store)[:2] == [1, 2]
    assert len(versions(store)) == 3
    check_learned(store, 3)


def failing(store: Store, monkeypatch: pytest.MonkeyPatch, name: str, when: Callable[[str], bool]) -> list[str]:
    """Have a method of a store not answer for some paths, after it has done its work; gives those it happened to."""
    original, failed = getattr(store, name), list[str]()

    def call(path: str, *args: Any, **named: Any) -> Any:
        done = original(path, *args, **named)
        if when(path):
            failed.append(path)
            message = f"{path}: no answer"
            raise StoreUnreachable(message)
        return done

    monkeypatch.setattr(store, name, call)
    return failed


def test_a_manifest_whose_answer_was_lost_is_found_and_followed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with Training(store).begin() as training:
        training.publish()
        with monkeypatch.context() as patch:
            failed = failing(store, patch, "create", lambda path: path.endswith("3-00000001/manifest.json"))
            training.publish()
            assert len(failed) == 1
        assert versions(store) == [1, 2, 3]
        assert PointerLog(store, MODEL).newest().active == Chain.find(store, MODEL).ref
        training.publish()
    assert versions(store) == [1, 2, 3, 4]
    check_learned(store, 3)


def test_no_version_is_cut_before_it_is_known_whether_the_last_one_is_committed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Training(store).begin() as training:
        training.publish()
        with monkeypatch.context() as patch:
            failing(store, patch, "create", lambda path: path.endswith("manifest.json"))
            failing(store, patch, "read", lambda path: path.endswith("3-00000001/manifest.json"))
            training.publish()
            training.step()
            assert not training.tick()
            assert not training.tick()
        assert versions(store) == [1, 2, 3]
        assert not training.tick()  # it is found out, and followed
        assert PointerLog(store, MODEL).newest().active == Chain.find(store, MODEL).ref
        assert training.tick()
    assert versions(store) == [1, 2, 3, 4]
    check_learned(store, 3)


def test_a_version_that_was_never_committed_is_given_up_once_the_store_says_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Training(store).begin() as training:
        training.publish()
        with monkeypatch.context() as patch:
            patch.setattr(store, "create", _refuse)
            patch.setattr(store, "read", _refuse)
            training.publish()
            assert not training.tick()
        assert not training.tick()
        training.publish()
    assert versions(store) == [1, 2, 4]
    check_learned(store, 3)


def test_a_store_that_is_away_for_long_is_told_to_the_trainer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with Training(store, PublisherSettings(publish_interval_s=INTERVAL_S, failures_max=2)).begin() as training:
        training.publish()
        with monkeypatch.context() as patch:
            for name in ("create", "read", "writer", "entries", "size"):
                patch.setattr(store, name, _refuse)
            training.step()
            training.tick()
            training.tick()
            with pytest.raises(CutFailed, match=r"2 cuts failed in a row; the last: .*the store is away"):
                training.tick()
            training.step(2)
            training.tick()
        training.tick()
        training.publish()
    check_learned(store, 5)


def _refuse(*args: Any, **named: Any) -> Any:
    message = "the store is away"
    raise StoreUnreachable(message)


@pytest.mark.parametrize("kind", [EpochOver, ShardUnreachable])
def test_a_version_stays_whole_when_shards_do_not_hear_that_it_is_committed(
    store: Store, monkeypatch: pytest.MonkeyPatch, kind: type[StreamlearnError]
) -> None:
    with Training(store).begin() as training:
        training.publish()

        def deaf(*args: Any, **named: Any) -> None:
            message = "no shard hears it"
            raise kind(message)

        with monkeypatch.context() as patch:
            patch.setattr(training.client, "commit", deaf)
            training.step()
            training.clock.sleep(INTERVAL_S)
            training.publisher.boundary(training.note)
            with pytest.raises(EpochOver) if kind is EpochOver else contextlib.nullcontext():
                training.publisher.settle(60)
        check_learned(store, 2)
        training.recover()
        assert training.steps == 2
        training.publish()
    assert versions(store) == [1, 2, 3, 4]
    check_learned(store, 3)
