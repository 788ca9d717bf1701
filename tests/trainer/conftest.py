"""What tests of the trainer share: the verb that trains, run in this process, with graphs that are exported once."""

from __future__ import annotations

import gc
import inspect
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamlearn.cli.main import cli
from streamlearn.features import FeatureSpec
from streamlearn.features.labels import Output
from streamlearn.models import Model
from streamlearn.models.description import Description, read_description

__all__: list[str] = []


@pytest.fixture(scope="session")
def exported_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Description]:
    """`export_graphs`, which for the same toy gives a copy of what it wrote at first.

    Exporting takes as long as a run on all that such a test writes, and tests of models look at what is exported.
    """
    from streamlearn.models import export_graphs
    from tests.trainer.toy import Toy

    folders: dict[tuple[object, ...], Path] = {}
    source = inspect.getsource(Toy)

    def export(
        model: Model,
        features: FeatureSpec,
        labels: Sequence[str],
        folder: Path,
        seed: int = 0,
        *,
        outputs: Sequence[Output] | None = None,
    ) -> Description:
        if type(model).__name__ != Toy.__name__ or inspect.getsource(type(model)) != source:
            return export_graphs(model, features, labels, folder, seed, outputs=outputs)
        # The bytes depend neither on the seed nor on the process.
        key = (tuple(vars(model).items()), features.fingerprint, tuple(labels), outputs)
        if key not in folders:
            exported = tmp_path_factory.mktemp("exported") / "graphs"
            export_graphs(model, features, labels, exported, seed, outputs=outputs)
            folders[key] = exported
        shutil.copytree(folders[key], folder)
        return read_description(folder)

    return export


@pytest.fixture
def verb(exported_once: Callable[..., Description], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs `streamlearn train` on an application; gives typer's result."""
    monkeypatch.setattr("streamlearn.trainer.trainer_setup.export_graphs", exported_once)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(gc, "freeze", lambda: None)  # this process goes on after `train`, and collects what it made
    return lambda app, *words: CliRunner().invoke(cli, ["train", str(app.folder), *words])
