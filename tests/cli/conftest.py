"""What tests of verbs share: a small application in a folder, and a verb run in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamlearn.cli.main import cli

__all__: list[str] = []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The folder of the small application; its topics are in the folder too."""
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "app.py").write_text("from streamlearn.testing import small_app\n\napp = small_app()\n")
    return folder


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a verb in this process, on a terminal of 80 columns; gives typer's result."""
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *words: CliRunner().invoke(cli, [str(word) for word in words])
