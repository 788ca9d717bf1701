"""Examples in docstrings are run: one that is wrong is worse than none."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import streamlearn

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(streamlearn.__path__, "streamlearn.")
    if not module.name.endswith(("__main__", "_native"))
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0


def test_there_are_examples_to_run() -> None:
    tried = sum(doctest.testmod(importlib.import_module(name)).attempted for name in MODULES)
    assert tried > 5
