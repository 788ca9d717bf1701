"""Waiting for a condition with a deadline, in place of a sleep of a fixed length."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["wait_until"]

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str, deadline_s: float = 180.0) -> T:
    """Poll a condition and return its first truthy value; raise AssertionError with `what` after the deadline."""
    end_s = time.monotonic() + deadline_s
    pause_s = 0.001
    while True:
        if value := condition():
            return value
        if time.monotonic() > end_s:
            message = f"waited {deadline_s} s for {what}"
            raise AssertionError(message)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.05)
