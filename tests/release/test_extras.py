"""What each extra brings, in empty environments, and what a command says where its packages are missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.release.conftest import Install
from tools.release.environment import Environment


@pytest.fixture(scope="module")
def place(install: Install, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the application `shop` and its topics."""
    place = tmp_path_factory.mktemp("place")
    for words in (("new", "shop"), ("topics", "shop", "--create", "1")):
        done = install("").run(place, "streamlearn", *words)
        assert done.returncode == 0, done.stderr
    return place


def has(environment: Environment, place: Path, package: str) -> bool:
    code = f"import importlib.metadata; importlib.metadata.version({package!r})"
    return environment.run(place, "python", "-c", code).returncode == 0


def test_the_base_has_the_commands_that_read_and_move_versions(install: Install, place: Path) -> None:
    done = install("").run(place, "streamlearn", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "missing apache-beam: not installed" in done.stdout, done.stdout
    assert "missing tensorflow: not installed" in done.stdout, done.stdout
    done = install("serve").run(place, "streamlearn", "train", "shop", "--until-offset", "end")
    assert done.returncode == 0, done.stderr
    done = install("").run(place, "streamlearn", "versions", "--app", "shop")
    assert re.search(r"^ +1 .* active", done.stdout, re.M), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("verb", "needs", "extra"),
    [
        ("serve", "tensorflow", "[serve], or [serve-gpu] for a GPU"),
        ("train", "tensorflow", "[train]"),
        ("ingest", "apache-beam", "[ingest]"),
    ],
)
def test_the_base_names_the_extra_of_another_command(
    install: Install, place: Path, verb: str, needs: str, extra: str
) -> None:
    done = install("").run(place, "streamlearn", verb, "shop")
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [
            f"error: streamlearn {verb} needs {needs}, which is not installed",
            f'help: install streamlearn with its extra {extra}: see "Install for production" in the documentation',
        ],
    )


def test_a_node_comes_without_beam_and_a_worker_without_tensorflow(install: Install, place: Path) -> None:
    packages = ("tensorflow-cpu", "tensorflow", "apache-beam")
    assert [has(install("serve"), place, package) for package in packages] == [True, False, False]
    assert [has(install("ingest"), place, package) for package in packages] == [False, False, True]


def test_both_packages_of_tensorflow_in_one_environment_are_refused(install: Install, place: Path) -> None:
    done = install("serve,train").run(place, "streamlearn", "serve", "shop")
    assert done.returncode == 2
    assert "tensorflow and tensorflow-cpu are both installed" in done.stderr
    assert "Traceback" not in done.stderr
