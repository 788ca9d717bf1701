"""Stop on request: SIGINT and SIGTERM set an event, which long work checks at convenient points."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["stop_on_signals"]


@contextmanager
def stop_on_signals(at_second: Callable[[int], None] | None = None) -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; use it in the main thread, which receives signals.

    A second signal calls `at_second` with its number; by default it has its previous effect.
    """
    stop = threading.Event()
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def handle(number: int, _: object) -> None:
        if stop.is_set() and at_second is not None:
            at_second(number)
        stop.set()
        if at_second is None:
            restore()

    for number in previous:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        restore()
