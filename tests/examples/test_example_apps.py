"""What every application in examples/ owes its users."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streamlearn.apps import load_app

EXAMPLES = Path(__file__).parents[2] / "examples"
APPS = sorted(file.parent for file in EXAMPLES.glob("*/app.py"))


def test_there_are_examples() -> None:
    assert {"kuairand", "synthetic"} <= {folder.name for folder in APPS}


@pytest.mark.parametrize("folder", APPS, ids=lambda folder: folder.name)
def test_an_example_and_its_history_load_no_tensorflow(folder: Path) -> None:
    script = (
        "import sys; from streamlearn.apps import load_app; from streamlearn.replay import load_history\n"
        f"load_app({str(folder)!r})\n"
        f"next(iter(load_history({str(folder)!r}).blocks(1000)))\n"
        "print(*[name for name in ('tensorflow', 'keras', 'apache_beam', 'kafka') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


@pytest.mark.parametrize("folder", APPS, ids=lambda folder: folder.name)
def test_an_example_is_explained_and_named_as_its_folder(folder: Path) -> None:
    assert load_app(folder).app.name == folder.name
    assert (folder / "README.md").read_text().startswith("# ")
