"""Fixtures of ingest: a place in memory, one in files, and a Flink that several tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ingest.on_flink import cancel_jobs
from tests.ingest.place import Place, memory_root
from tools.services import FlinkJobServer

Make = Callable[..., Place]


@pytest.fixture(params=["memory", "file"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes places, in memory and in files, and takes them down."""
    made: list[Place] = []

    def new(**options: Any) -> Place:
        root = memory_root() if request.param == "memory" else f"{tmp_path.as_uri()}/t{len(made)}-"
        made.append(Place.make(root, **options))
        return made[-1]

    yield new
    for place in made:
        place.close()


@pytest.fixture
def idle_flink(flink: FlinkJobServer) -> Iterator[FlinkJobServer]:
    """The run's Flink job server, which runs no job before and after."""
    yield flink
    cancel_jobs(flink)


@pytest.fixture
def place() -> Iterator[Place]:
    """A place in memory, of one partition."""
    made = Place.make(memory_root())
    yield made
    made.close()
