"""The door to the compiled module: the wrong one, or none, is refused with what to do."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import streamlearn
from streamlearn.errors import NativeMismatch
from streamlearn.native import check, native


def test_the_module_handed_out_is_of_this_packages_version() -> None:
    assert native.__version__ == streamlearn.__version__


def test_a_module_of_another_version_is_refused_with_both_versions() -> None:
    other = ModuleType("_native")
    other.__version__ = "0.0.0"  # type: ignore[attr-defined]
    with pytest.raises(NativeMismatch) as caught:
        check(other)
    assert caught.value.message == (
        f"streamlearn {streamlearn.__version__} needs a compiled module of the same version; found 0.0.0"
    )
    assert "make setup" in caught.value.help


def test_a_module_that_does_not_know_its_version_is_refused() -> None:
    with pytest.raises(NativeMismatch, match="found none"):
        check(ModuleType("_native"))


def test_a_missing_module_is_refused_where_it_is_first_needed() -> None:
    code = "import sys; sys.modules['streamlearn._native'] = None; import streamlearn.native"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert ended.returncode == 1
    assert "NativeMismatch" in ended.stderr
    assert "has no compiled module" in ended.stderr
    assert "make setup" in ended.stderr
