"""Stopping on request: SIGINT and SIGTERM set an event, and long work ends at the next good moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["stop_on_signals"]


@contextmanager
def stop_on_signals(at_second: Callable[[int], None] | None = None) -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one acts as it would have before.

    Only the main thread can wait for signals, so use it there.

    Args:
        at_second: Called with the number of a second signal, instead of what it would have done before.
    """
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def put_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and at_second is not None:
            at_second(number)
        stop.set()
        if at_second is None:
            put_back()

    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        put_back()
