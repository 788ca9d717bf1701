"""Metrics of topics: records appended and read, retries, and how long brokers are silent.

A metric is registered when it is first counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from streamlearn.telemetry import counter, gauge

if TYPE_CHECKING:
    from prometheus_client import Counter

__all__ = ["Meter", "note_answer"]

_COUNTS: dict[str, Callable[[], Counter]] = {
    "records_appended": lambda: counter("topics", "records_appended", "Records acknowledged.", ["topic"]),
    "appended_bytes": lambda: counter("topics", "appended_bytes", "Bytes of acknowledged keys and values.", ["topic"]),
    "records_read": lambda: counter("topics", "records_read", "Records returned to readers.", ["topic"]),
    "read_bytes": lambda: counter("topics", "read_bytes", "Bytes of keys and values returned to readers.", ["topic"]),
    "retries": lambda: counter("topics", "retries", "Requests to brokers that failed and were retried.", ["topic"]),
}
_LOCK = threading.Lock()
_ANSWERED_S: dict[str, float] = {}


class Meter:
    """The counters of one topic, labelled with its name."""

    def __init__(self, url: str) -> None:
        self._topic = url.rpartition("/")[2]
        self._counts: dict[str, Counter] = {}

    def appended(self, records: int, size_bytes: int) -> None:
        """Count acknowledged records."""
        self._count("records_appended", records)
        self._count("appended_bytes", size_bytes)

    def read(self, records: int, size_bytes: int) -> None:
        """Count records that a read returned."""
        self._count("records_read", records)
        self._count("read_bytes", size_bytes)

    def retried(self) -> None:
        """Count a retry."""
        self._count("retries", 1)

    def _count(self, noun: str, amount: int) -> None:
        if noun not in self._counts:
            with _LOCK:  # two threads would register it twice
                self._counts[noun] = _COUNTS[noun]().labels(self._topic)
        self._counts[noun].inc(amount)


def note_answer(address: str) -> None:
    """Note that a broker of an address has answered just now."""
    first = address not in _ANSWERED_S
    _ANSWERED_S[address] = time.monotonic()
    if first:
        with _LOCK:
            silence = gauge("topics", "broker_silence", "seconds", "Time since a broker last answered.", ["brokers"])
        silence.labels(address).set_function(lambda: time.monotonic() - _ANSWERED_S[address])
