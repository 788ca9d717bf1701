"""Sums over processes: each side's are right, its rounds are timed, and a process that ends is named."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.workers.cluster import free_addresses, mirrored_variables
from benchmarks.workers.crew import Crew
from benchmarks.workers.reduce import ring_side, shard_side
from streamlearn.errors import ServiceError

__all__: list[str] = []


def test_two_processes_of_ours_have_the_sum_of_their_vectors(tmp_path: Path) -> None:
    with closing(shard_side(tmp_path, warm_rounds=2)) as side:
        window = side.window(1)
    assert 0 < window.p50_ms < 10_000
    assert window.cpu_ms >= 0


def test_two_processes_of_tensorflows_ring_have_the_sum_of_their_vectors(tmp_path: Path) -> None:
    with closing(ring_side(tmp_path, warm_rounds=2)) as side:
        assert 0 < side.window(1).p50_ms < 10_000


def test_a_process_that_ends_is_named_with_the_end_of_its_stderr(tmp_path: Path) -> None:
    with closing(Crew([["benchmarks.workers.shard_sums"]], tmp_path)) as crew:
        assert crew.ended()
        crew.tell("1")
        with pytest.raises(ServiceError, match=r"a process ended(.|\n)*IndexError"):
            crew.heard(0)


def test_processes_of_a_cluster_have_addresses_of_their_own() -> None:
    assert len(set(free_addresses(5))) == 5
    first, second = (variables["TF_CONFIG"] for variables in mirrored_variables(2))
    assert first.partition('"task"')[0] == second.partition('"task"')[0]
    assert first != second
