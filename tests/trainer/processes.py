"""`streamlearn train` as a process, on an application in a folder; how far it is, seen from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamlearn.apps import AppFolder, load_app
from streamlearn.errors import VersionDefect
from streamlearn.versions import Chain, open_store
from streamlearn.versions.format.manifest import Manifest

__all__ = ["APP", "job", "newest", "said", "store_files", "write_app"]

_ROOT = Path(__file__).parent.parent.parent
APP = """
import sys
from dataclasses import replace

sys.path.insert(0, {root!r})
from tests.trainer.stream import learnable_app

app = replace(learnable_app(), model={model!r})
"""


def write_app(
    folder: Path, settings: Mapping[str, Mapping[str, Any]], model: str = "model:Toy", text: str = APP
) -> AppFolder:
    """The learnable application with a model of its own, written as people write theirs."""
    folder.mkdir()
    (folder / "app.py").write_text(text.format(root=str(_ROOT), model=model))
    (folder / "model.py").write_text((Path(__file__).parent / "toy.py").read_text())
    sections: dict[str, Mapping[str, Any]] = {
        "versions": {"store": f"file://{folder}/store"},
        "tables": {"rows_max": 200_000},
        **settings,
    }
    lines = []
    for section, values in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{name} = {_toml(value)}" for name, value in values.items()]
    (folder / "app.toml").write_text("\n".join(lines) + "\n")
    return load_app(folder)


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


@contextmanager
def job(app: AppFolder, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A run in a process of its own; it is killed in the end."""
    call = [sys.executable, "-m", "streamlearn", "train", str(app.folder), *more]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    with (app.folder / "job.log").open("w") as log, (app.folder / "job.out").open("w") as out:
        process = subprocess.Popen(call, stdout=out, stderr=log, text=True, cwd=_ROOT, env=environment)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def said(app: AppFolder) -> str:
    """The end of what the run said."""
    return (app.folder / "job.log").read_text()[-4_000:]


def newest(app: AppFolder) -> Manifest | None:
    """Of the newest version; None before the first."""
    try:
        return Chain.find(open_store(f"file://{app.folder}/store"), app.app.name).manifest
    except VersionDefect as error:
        if error.defect == "missing":
            return None
        raise


def store_files(app: AppFolder) -> int:
    """How many files the store has, those of versions that are being written among them."""
    return sum(len(files) for _, _, files in os.walk(app.folder / "store"))
