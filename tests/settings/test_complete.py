"""Every setting has a probe in this folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from streamlearn.config import fields_of
from streamlearn.settings import Settings

FILES = sorted(Path(__file__).parent.glob("test_*.py"))


def _heeded() -> Iterator[str]:
    """The settings that tests name, read from the source: a run of this file alone imports no other."""
    for file in FILES:
        tests = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
        for test in tests:
            for call in test.decorator_list:
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "heeds":
                    assert test.name.startswith("test_"), f"{file.name}: pytest does not run {test.name}"
                    yield from (ast.literal_eval(name) for name in call.args)


def test_every_setting_is_heeded_as_a_test_shows() -> None:
    settings, heeded = {field.path for field in fields_of(Settings)}, set(_heeded())
    assert not settings - heeded, "show with @heeds that it acts: set it to an odd value, and see that where it is used"
    assert not heeded - settings, "no such setting"
