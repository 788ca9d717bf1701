"""Stopping on request: SIGINT and SIGTERM set an event, and long work ends at the next good moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["stop_on_signals"]


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one acts as it would have before.

    Only the main thread can wait for signals, so use it there.
    """
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def put_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()
        put_back()

    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        put_back()
