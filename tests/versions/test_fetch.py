"""Files fetched at once: in order, no more than were allowed, and none begun after one that failed."""

from __future__ import annotations

import threading

import pytest

from streamlearn.errors import VersionDefect
from streamlearn.versions import Store
from streamlearn.versions.format.fetch import fetch, in_order
from streamlearn.versions.format.manifest import FileEntry


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_order_and_no_more_are_held_than_allowed(threads: int) -> None:
    begun: list[int] = []

    def work(job: int) -> int:
        begun.append(job)
        return job

    for at, result in enumerate(in_order(range(50), work, threads=threads)):
        assert result == at
        assert len(begun) <= at + threads + 1
    assert sorted(begun) == list(range(50))


def test_what_follows_a_failure_is_not_begun() -> None:
    begun: list[int] = []

    def work(job: int) -> int:
        begun.append(job)
        if job == 3:
            message = "the third"
            raise ValueError(message)
        return job

    results = in_order(range(50), work, threads=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the third"):
        next(results)
    assert len(begun) <= 6
    assert not [one for one in threading.enumerate() if one.name.startswith("streamlearn-fetch")]


def test_letting_go_of_results_ends_the_threads() -> None:
    results = in_order(range(50), lambda job: job, threads=2)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    assert not [one for one in threading.enumerate() if one.name.startswith("streamlearn-fetch")]


def test_a_file_larger_than_files_may_be_is_not_asked_for(local: Store) -> None:
    entry = FileEntry(kind="rows", path="rows/main-0", rows=1, bytes=1 << 40, sha256="0" * 64, table="main")
    with pytest.raises(VersionDefect, match="files have at most 100"):
        fetch(local, "ctr/deltas/x", entry, bytes_max=100)
