"""Graphs that tests of serving share."""

from __future__ import annotations

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


@pytest.fixture(scope="session", params=list(MODELS))
def made(request: pytest.FixtureRequest, exported: Path) -> Made:
    """Each model, its ladder compiled; nothing more may be compiled."""
    found = make(request.param, exported)
    found.executables.compile_ladder(found.ladder)
    return found


@pytest.fixture(scope="session")
def din(exported: Path) -> Made:
    """One model, its ladder compiled; nothing more may be compiled."""
    found = make("din", exported)
    found.executables.compile_ladder(found.ladder)
    return found
