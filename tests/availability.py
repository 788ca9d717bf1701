"""What a test needs and a machine may lack: a failure on CI, and elsewhere a skip that says why."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

__all__ = ["lacks"]


def lacks(reason: str) -> NoReturn:
    """Fail on CI or with STREAMLEARN_SERVICES=require; skip elsewhere."""
    is_ci = os.environ.get("CI", "").lower() not in ("", "0", "false", "no")
    if is_ci or os.environ.get("STREAMLEARN_SERVICES") == "require":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
