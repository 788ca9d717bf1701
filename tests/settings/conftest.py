"""What the probes of settings share: applications in folders, and the check that what a probe names is odd in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from typer.testing import CliRunner

from streamlearn import config
from streamlearn.apps import AppFolder, load_app
from streamlearn.apps import folder as app_folder
from streamlearn.cli.main import cli
from streamlearn.settings import Settings
from tests.settings.probes import heeded_by

__all__: list[str] = []

SMALL = "from streamlearn.testing import small_app\n\napp = small_app()\n"
LEARNABLE = "from tests.trainer.stream import learnable_app\n\napp = learnable_app()\n"
RETRIEVING = "from tests.serving.item_history import finding_app\n\napp = finding_app()\n"
Load: TypeAlias = Callable[..., AppFolder]


@pytest.fixture(autouse=True)
def _odd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each setting that a probe names must differ from its default in some settings that the probe has read."""
    monkeypatch.delenv("STREAMLEARN_STORE", raising=False)
    monkeypatch.delenv("STREAMLEARN_REGISTRY", raising=False)
    read: list[Any] = []

    def noted(*given: Any) -> Any:
        read.append(config_read(*given))
        return read[-1]

    config_read = config.read_settings
    monkeypatch.setattr(config, "read_settings", noted)
    monkeypatch.setattr(app_folder, "read_settings", noted)
    yield
    for path in heeded_by(request.function):
        value_of = attrgetter(path)
        assert any(value_of(settings) != value_of(Settings()) for settings in read), f"{path} has its default here"


@pytest.fixture
def small(tmp_path: Path) -> Load:
    """Loads the small application with some settings; its topics are in memory where no others are set."""
    return lambda *changes: _loaded(tmp_path / "small", SMALL, [f"topics.root=memory://{tmp_path.name}-", *changes])


@pytest.fixture
def learnable(tmp_path: Path) -> Load:
    """Loads an application that can be learned, with some settings; its topics are in memory."""
    root = f"topics.root=memory://{tmp_path.name}-"
    return lambda *changes: _loaded(tmp_path / "learnable", LEARNABLE, [root, *changes])


@pytest.fixture
def retrieving(tmp_path: Path) -> Load:
    """Loads an application that retrieves, with some settings."""
    return lambda *changes: _loaded(tmp_path / "retrieving", RETRIEVING, [*changes])


def _loaded(folder: Path, app: str, changes: list[str]) -> AppFolder:
    folder.mkdir(exist_ok=True)
    (folder / "app.py").write_text(app)
    return load_app(folder, changes)


@pytest.fixture
def verb() -> Callable[..., Any]:
    """Runs a verb in this process; gives typer's result."""
    return lambda *words: CliRunner().invoke(cli, [str(word) for word in words])
