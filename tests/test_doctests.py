"""Examples in docstrings are run: one that is wrong is worse than none."""

from __future__ import annotations

import doctest
import importlib
import inspect
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
    module, runner = importlib.import_module(name), doctest.DocTestRunner()
    for found in doctest.DocTestFinder().find(module):
        if found.examples:  # to run one without any looks at every file that was ever loaded
            runner.run(found)
    assert runner.failures == 0
    assert runner.tries == inspect.getsource(module).count(">>> ")
