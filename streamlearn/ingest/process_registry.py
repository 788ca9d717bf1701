"""ProcessRegistry: objects that the threads of this process share. It does not know what they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["ProcessRegistry"]

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ProcessRegistry(Generic[Key, Value]):
    """Objects by key, such as (progress URL, run). The last user's `release` closes the object with `close`.

    A runner has many instances of a step, each in a thread of its own, and ends idle ones. Any thread may call.
    """

    def __init__(self, close: Callable[[Value], object] | None = None) -> None:
        self._close, self._lock = close, threading.Lock()
        self._entries: dict[Key, tuple[Value, int]] = {}

    def acquire(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the object of a key, made when there is none."""
        with self._lock:
            value, users = self._entries.get(key) or (make(), 0)
            self._entries[key] = (value, users + 1)
            return value

    def release(self, key: Key) -> None:
        """End one use of an object."""
        with self._lock:
            value, users = self._entries.pop(key)
            if users > 1:
                self._entries[key] = (value, users - 1)
                return
        if self._close is not None:
            self._close(value)

    def discard(self, is_stale: Callable[[Key], bool]) -> None:
        """Drop the objects of some keys, whether they have users or not."""
        with self._lock:
            self._entries = {key: entry for key, entry in self._entries.items() if not is_stale(key)}
