"""`streamlearn new`: the folder that it makes works, by the commands that it prints."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.testing

from streamlearn.cli.main import cli
from streamlearn.cli.new import FILES
from streamlearn.trainer.validation import read_scores

__all__: list[str] = []


def new(folder: Path) -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(cli, ["new", str(folder)])


def test_what_it_prints_trains_a_model_that_knows_something(tmp_path: Path, prism: Path) -> None:
    folder = tmp_path / "shop"
    lines = new(folder).stdout.splitlines()
    commands = [shlex.split(line.partition("#")[0]) for line in lines if line.startswith("  streamlearn ")]
    assert [words[1] for words in commands] == ["replay", "topics", "ingest", "train", "serve"]
    for _, *words in commands[:-1]:
        of_ingest = ["--set", f"ingest.prism_location={prism}"] if words[0] == "ingest" else []
        call = [sys.executable, "-m", "streamlearn", *words, *of_ingest]
        done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stderr[-2_000:]
    scores = read_scores(folder / ".streamlearn" / "validation")
    hours = scores.where((scores["segment"] == "") & (scores["end_ms"] - scores["begin_ms"] == 3_600_000))
    assert hours["auc_ratio"][-1] > 0.6
    assert hours["rows"].sum() > 15_000


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    done = new(tmp_path / "shop")
    assert done.exit_code != 0
    assert "exists already" in str(done.exception)
    assert not list((tmp_path / "shop").iterdir())


@pytest.mark.parametrize("name", ["My-Shop", "1shop", "shop."])
def test_a_name_that_no_application_may_have_is_refused(tmp_path: Path, name: str) -> None:
    assert new(tmp_path / name).exit_code != 0
    assert not (tmp_path / name).exists()


def test_its_files_are_formatted_as_ours(tmp_path: Path) -> None:
    assert new(tmp_path / "shop").exit_code == 0
    assert {path.name for path in (tmp_path / "shop").iterdir()} == set(FILES)
    for words in (["format", "--check"], ["check", "--select", "E,F,I,D"]):
        call = [sys.executable, "-m", "ruff", *words, "--line-length", "120", "--isolated", str(tmp_path / "shop")]
        done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stdout
