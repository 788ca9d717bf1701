"""Commands without the packages of an extra: those that need none work, and the others say which one it is."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from streamlearn.cli.doctor import machine_findings
from streamlearn.errors import UsageError
from streamlearn.extras import EXTRAS, check_tensorflow, missing_extra

APP = """
from streamlearn.apps import App
from streamlearn.features import FeatureSpec, Label, LabelGroup, Slot
app = App(
    "shop", FeatureSpec((Slot("user_id", "user"), Slot("item_id", "item")), item_id="item_id"),
    (LabelGroup("fast", 60, 600),), (Label("click", "click", "fast"),),
)
"""
_WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {modules}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from streamlearn.cli import command
command()
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "app.py").write_text(APP)
    topics = ("topics", folder, "--create", "1")
    assert without(EXTRAS, *topics).returncode == 0
    return folder


def without(modules: Sequence[str] | dict[str, str], *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command where some modules are not installed."""
    call = [sys.executable, "-c", _WITHOUT.format(modules=list(modules)), *map(str, words)]
    return subprocess.run(call, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.parametrize(
    ("words", "needs", "extra"),
    [
        (("train",), "tensorflow", "[train]"),
        (("evaluate",), "tensorflow", "[train]"),
        (("serve",), "tensorflow", "[serve], or [serve-gpu] for a GPU"),
        (("ingest",), "apache-beam", "[ingest]"),
        (
            ("backfill", "--from", "2026-01-01", "--to", "2026-01-02"),
            "apache-beam",
            "[ingest]",
        ),
    ],
    ids=lambda given: given[0] if isinstance(given, tuple) else "",
)
def test_a_command_without_its_packages_names_the_extra(
    shop: Path, words: tuple[str, ...], needs: str, extra: str
) -> None:
    done = without(EXTRAS, words[0], shop, *words[1:])
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [
            f"error: streamlearn {words[0]} needs {needs}, which is not installed",
            f'help: install streamlearn with its extra {extra}: see "Install for production" in the documentation',
        ],
    )


@pytest.mark.parametrize(
    "words", [("settings",), ("schema",), ("topics",), ("replay", "--help"), ("console", "--help"), ("serve", "--help")]
)
def test_commands_that_need_none_work_without(shop: Path, words: tuple[str, ...]) -> None:
    done = without(EXTRAS, *words, shop)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_node_needs_no_beam_and_ingest_no_tensorflow(shop: Path) -> None:
    for modules, verb in ((["apache_beam"], "serve"), (["tensorflow"], "ingest")):
        done = without(modules, verb, shop, "--set", "registry.url=nonsense://", "--set", "topics.root=nonsense://")
        assert done.returncode == 2
        assert "nonsense" in done.stderr
        assert "is not installed" not in done.stderr


def test_another_module_is_an_error_of_its_own() -> None:
    assert missing_extra(ModuleNotFoundError(name="torch"), ["train"]) is None
    assert missing_extra(ModuleNotFoundError(name="tensorflow.python"), []) is not None


def test_both_packages_of_tensorflow_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_tensorflow()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.21.0")
    with pytest.raises(UsageError, match="tensorflow and tensorflow-cpu are both installed"):
        check_tensorflow()
    (finding,) = (one for one in machine_findings.machine_findings() if one.what == "tensorflow")
    assert finding.state == "wrong"


def test_the_doctor_misses_what_some_commands_need(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name.startswith(("tensorflow", "apache")):
            raise importlib.metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = {one.what: one for one in machine_findings.machine_findings()}
    assert found["numpy"].state == "ok"
    assert [found[name].state for name in ("apache-beam", "tensorflow")] == ["missing", "missing"]
    assert "[ingest]" in found["apache-beam"].help
