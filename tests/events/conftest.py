"""Fixtures of events."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.events.place import Place, places


@pytest.fixture
def place() -> Iterator[Place]:
    """Topics of four partitions each."""
    yield from places()
