"""What tests of verbs share: a small application in a folder, and a verb run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamlearn.cli.main import cli, main
from streamlearn.settings.versions import ReplicaSettings
from streamlearn.testing import wait_until
from streamlearn.versions import (
    Replica,
    Verdict,
    open_registry,
    open_store,
    write_verdict,
)
from tests.cli.place import DEADLINE_S, VERSIONS, Ended, Place, Verb
from tests.versions.history import MODEL, Trainer, serving

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


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("STREAMLEARN_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("STREAMLEARN_REGISTRY", f"sqlite://{tmp_path}/registry.db")
    store = open_store(str(tmp_path / "store"))
    with open_registry(f"sqlite://{tmp_path}/registry.db", MODEL) as registry:
        found = Place(tmp_path, store, registry, Trainer(store))
        for one in found.trainer.story(VERSIONS):
            write_verdict(store, one.folder, Verdict(version=one.ref, outcome="passed"))
        found.follow(*VERSIONS)
        yield found


@pytest.fixture
def nodes(place: Place) -> Iterator[list[Replica]]:
    """Two nodes that answer with what the pointer says."""
    settings = ReplicaSettings(beat_s=0.05, store_poll_s=0.05, retry_first_ms=1, retry_ms_max=10, drain_s=0.0)
    found = [
        Replica(place.store, MODEL, lambda: serving("float32"), name=name, registry=place.registry, settings=settings)
        for name in ("node-1", "node-2")
    ]
    for one in found:
        one.start()
    try:
        for one in found:
            one.wait_ready(DEADLINE_S)
        wait_until(
            lambda: [(one.active, one.state) for one in place.registry.nodes()] == [(5, "ready")] * 2,
            "both nodes say that they answer with version 5",
            DEADLINE_S,
        )
        yield found
    finally:
        for one in found:
            one.close()


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Verb:
    def run(*words: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["streamlearn", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, said.out, said.err)

    return run
