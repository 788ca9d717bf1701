"""Courier: sends messages to a topic in a thread of its own, so that their maker does not wait for a broker.

It holds a bounded number of bytes. It does not know the messages' content.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from streamlearn.topics import Writer

__all__ = ["Courier"]

_CLOSE_S_MAX = 5.0


@dataclass(slots=True, eq=False)
class _Errand:
    """A message; or without a value, a flush that a caller waits for."""

    partition: int
    value: bytes | None
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


class Courier:
    """Sends through a writer, which it owns. For one caller at a time.

    Guaranteed: messages of a partition keep their order; everything given is acknowledged when `flush` returns. With
    `held_bytes_max` bytes of waiting messages `send` waits. Both raise a `StreamlearnError` if the topic cannot take an
    earlier message, and `flush` raises `NotDelivered` if messages are not acknowledged.
    """

    def __init__(self, writer: Writer, held_bytes_max: int) -> None:
        self._writer, self._held_bytes_max = writer, held_bytes_max
        self._changed = threading.Condition()
        self._errands: deque[_Errand] = deque()
        self._held_bytes = 0
        self._error: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="streamlearn-ingest-courier", daemon=True)
        self._thread.start()

    def send(self, partition: int, value: bytes) -> None:
        """Send a message; `flush` reports the outcome."""
        with self._changed:
            self._changed.wait_for(lambda: not self._errands or self._held_bytes + len(value) <= self._held_bytes_max)
            self._raise()
            self._held_bytes += len(value)
            self._errands.append(_Errand(partition, value))
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything given is acknowledged."""
        errand = _Errand(-1, None)
        with self._changed:
            self._errands.append(errand)
            self._changed.notify_all()
        errand.done.wait()
        if errand.error is not None:
            raise errand.error
        with self._changed:
            self._raise()

    def close(self) -> None:
        """End the thread; messages that were not flushed are dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_S_MAX)

    def _raise(self) -> None:
        """Raise the error since the last call."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        while (errand := self._next()) is not None:
            try:
                if errand.value is None:
                    self._writer.flush()
                else:
                    self._writer.send(errand.partition, errand.value)
            except BaseException as error:  # the caller raises it
                with self._changed:
                    if errand.value is None:
                        errand.error = error
                    elif self._error is None:
                        self._error = error
            errand.done.set()
            with self._changed:
                self._errands.popleft()
                self._held_bytes -= len(errand.value or b"")
                self._changed.notify_all()

    def _next(self) -> _Errand | None:
        """Return the next errand, which stays in the queue until it is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or bool(self._errands))
            if not self._closing:
                return self._errands[0]
            for errand in self._errands:  # or their callers would wait forever
                errand.error = RuntimeError("the sender was closed before all samples were acknowledged")
                errand.done.set()
            return None
