"""ROUNDS: whether a runner in this process still calls the steps of its job. It counts nothing."""

from __future__ import annotations

import threading

__all__ = ["ROUNDS"]

ROUNDS = threading.Event()
"""Set by each call of a step, in any job of this process; a look clears it."""
