"""Tests in processes side by side: every test is in one of them."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from tools.run_tests import SHARES, shares

TESTS = Path(__file__).parent.parent


def test_every_test_is_in_one_of_them() -> None:
    found = shares(TESTS)
    named = list(chain.from_iterable(found))
    assert len(named) == len(set(named))
    files = {str(file.relative_to(TESTS.parent)) for file in TESTS.rglob("test_*.py")}
    assert all(any(file == name or file.startswith(f"{name}/") for name in named) for file in files)
    for share, own in zip(SHARES, found, strict=False):
        assert {f"tests/{name}" for name in share} == set(own)
