"""Tests in two processes: every test is in one of them."""

from __future__ import annotations

from pathlib import Path

from tools.run_tests import FIRST, shares

TESTS = Path(__file__).parent.parent


def test_every_test_is_in_one_of_both() -> None:
    first, second = shares(TESTS)
    assert not set(first) & set(second)
    found = {str(file.relative_to(TESTS.parent)) for file in TESTS.rglob("test_*.py")}
    named = [*first, *second]
    assert all(any(file == name or file.startswith(f"{name}/") for name in named) for file in found)
    assert {f"tests/{name}" for name in FIRST} <= set(first)
