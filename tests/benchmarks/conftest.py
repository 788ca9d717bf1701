"""What tests of benchmarks share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

__all__: list[str] = []


@pytest.fixture(autouse=True)
def _own_garbage() -> Iterator[None]:
    """Collect garbage of the test alone: a benchmark collects it whenever it asks for memory.

    All that the process has imported and kept before takes half a second each time.
    """
    gc.freeze()
    yield
    gc.unfreeze()
