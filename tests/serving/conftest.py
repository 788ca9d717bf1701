"""Graphs that tests of serving share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.serving.made import MODELS, Made, export, make


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All models, exported."""
    folder = tmp_path_factory.mktemp("exported")
    for name in MODELS:
        export(name, folder)
    return folder


@pytest.fixture(scope="session")
def compiled(exported: Path) -> Callable[[str], Made]:
    """Models by name, the ladder of each compiled once; nothing more may be compiled."""

    @cache
    def find(name: str) -> Made:
        found = make(name, exported)
        found.executables.compile_ladder(found.ladder)
        return found

    return find


@pytest.fixture(scope="session", params=list(MODELS))
def made(request: pytest.FixtureRequest, compiled: Callable[[str], Made]) -> Made:
    """Each model, compiled."""
    return compiled(request.param)


@pytest.fixture(scope="session")
def din(compiled: Callable[[str], Made]) -> Made:
    """One model, compiled."""
    return compiled("din")
