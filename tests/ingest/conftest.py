"""Fixtures of ingest: a place in memory, and one in files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ingest.place import Place, memory_root

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
def place() -> Iterator[Place]:
    """A place in memory, of one partition."""
    made = Place.make(memory_root())
    yield made
    made.close()
