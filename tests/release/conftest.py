"""The wheel that `make wheel` built from this source, and environments into which it is installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from streamlearn.errors import ServiceError
from tools.release.build import this_wheel
from tools.release.environment import Environment
from tools.release.licences import ROOT

Install = Callable[[str], Environment]


@pytest.fixture(scope="session")
def wheel() -> Path:
    try:
        return this_wheel()
    except ServiceError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """A function that installs the wheel with some extras into an empty environment, once for each.

    Packages have the versions of the lock file, so that a release of another project fails no test.
    """
    made = dict[str, Environment]()
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet"]
    versions = ["--constraint", str(ROOT / "requirements.lock")]

    def installed(extras: str) -> Environment:
        if extras not in made:
            empty = Environment(tmp_path_factory.mktemp("environment") / "empty")
            package = f"streamlearn[{extras}] @ file://{wheel}" if extras else str(wheel)
            subprocess.run([*uv, *versions, "--python", empty.bin / "python", package], check=True)
            made[extras] = empty
        return made[extras]

    return installed
