"""What tests of the trainer share: graphs that are exported once, and the verb that trains, run in this process."""

from __future__ import annotations

import gc
import inspect
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamlearn.cli.main import cli
from streamlearn.features import FeatureSpec
from streamlearn.models import Model, export_graphs
from streamlearn.models.description import Description, read_description
from tests.trainer.toy import Toy

__all__: list[str] = []


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Description]:
    """`export_graphs`, which for the same toy gives a copy of what it wrote at first."""
    folders: dict[tuple[object, ...], Path] = {}
    source = inspect.getsource(Toy)

    def export(model: Model, features: FeatureSpec, labels: Sequence[str], folder: Path, seed: int = 0) -> Description:
        # The bytes do not depend on the seed, nor on the process.
        key = (tuple(vars(model).items()), features.fingerprint, tuple(labels))
        if type(model).__name__ != Toy.__name__ or inspect.getsource(type(model)) != source:
            return export_graphs(model, features, labels, folder, seed)
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("exported") / "graphs"
            export_graphs(model, features, labels, folders[key], seed)
        shutil.copytree(folders[key], folder)
        return read_description(folder)

    return export


@pytest.fixture(autouse=True)
def _exported_once(exported: Callable[..., Description], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporting takes as long as a run on all that the test has written; tests/models looks at what is exported."""
    monkeypatch.setattr("streamlearn.trainer.trainer_setup.export_graphs", exported)


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Runs `streamlearn train` on an application; gives typer's result."""
    monkeypatch.setenv("COLUMNS", "120")
    yield lambda app, *words: CliRunner().invoke(cli, ["train", str(app.folder), *words])
    gc.unfreeze()
