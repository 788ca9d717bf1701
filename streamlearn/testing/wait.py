"""Waiting for a condition, with a deadline; no test ever sleeps and hopes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["wait_until"]

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str, deadline_s: float = 60.0) -> T:
    """The condition's first truthy value.

    Args:
        condition: Asked again and again.
        what: What is being waited for, for the message.
        deadline_s: How long at most.

    Raises:
        AssertionError: It did not come true in time.
    """
    until = time.monotonic() + deadline_s
    pause_s = 0.001
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            message = f"waited {deadline_s} s for {what}"
            raise AssertionError(message)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.05)
