"""Loading a history from an application's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlearn.apps import app_module
from streamlearn.errors import ConfigError, SpecError
from streamlearn.replay import load_history

HISTORY = """
from .beside import NAME
class Nothing:
    events_count = None
    begin_ms = 7
    def __init__(self, options): self.options = options
    def blocks(self, span_ms): return iter(())
def history(options): return Nothing({**options, "name": NAME})
"""


def _folder(path: Path, history: str, beside: str = "NAME = 'a'") -> Path:
    path.mkdir()
    (path / "history.py").write_text(history)
    (path / "beside.py").write_text(beside)
    return path


def test_a_history_gets_its_options_and_meets_the_modules_beside_it(tmp_path: Path) -> None:
    found = load_history(_folder(tmp_path / "one", HISTORY), {"seed": "7"})
    assert found.begin_ms == 7
    assert found.options == {"seed": "7", "name": "a"}  # type: ignore[attr-defined]


def test_modules_of_two_applications_never_meet(tmp_path: Path) -> None:
    one = load_history(_folder(tmp_path / "one", HISTORY))
    two = load_history(_folder(tmp_path / "two", HISTORY, "NAME = 'b'"))
    assert (one.options["name"], two.options["name"]) == ("a", "b")  # type: ignore[attr-defined]


def test_a_module_is_loaded_once(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "one", HISTORY)
    assert app_module(folder, "beside") is app_module(str(folder), "beside")


def test_an_application_without_a_history_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no history\.py"):
        load_history(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pass", "has no function history"),
        ("def history(options): return 3", r"history\(options\) returned int"),
        ("import nowhere_to_be_found", "ModuleNotFoundError"),
    ],
)
def test_a_history_at_fault_is_told_so(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        load_history(_folder(tmp_path / "wrong", text))
