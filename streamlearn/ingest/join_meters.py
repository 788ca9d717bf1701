"""Metrics of joining: what became of events, what is held, and how soon samples are acknowledged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamlearn.telemetry import counter, gauge, histogram

__all__ = ["count_joined", "count_rebuilt", "count_waiting", "note_held", "observe_emitted"]

_BUCKETS_S = (0.05, 0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5, 10, 30, 60, 300)


def count_joined(found: Mapping[str, int]) -> None:
    """Count what joins have counted since the last time."""
    joined = counter("ingest", "joined", "What became of events and rows, by what: see the join's page.", ["what"])
    for what, count in found.items():
        if count:
            joined.labels(what).inc(count)


def count_rebuilt() -> None:
    """Count a join that was made again from its log."""
    counter("ingest", "joins_rebuilt", "Joins made again from their logs, beyond those that were new.").inc()


def count_waiting(entries: int) -> None:
    """Count entries that waited for room in a join."""
    counter("ingest", "join_waits", "Entries of events that waited for room in a join.").inc(entries)


def note_held(pending: int, held_bytes: int, fullness: float) -> None:
    """Say what this process's joins hold."""
    gauge("ingest", "pending", "requests", "Impressions whose windows are open, in this process.").set(pending)
    gauge("ingest", "pending", "bytes", "Bytes of this process's joins.").set(held_bytes)
    help = "Bytes of this process's fullest join, of those it may hold; at 1 and more events wait for room."
    gauge("ingest", "pending", "ratio", help).set(fullness)


def observe_emitted(late_by_ms: Iterable[int]) -> None:
    """Observe how long after they were due the first rows of messages were acknowledged."""
    emitted = histogram(
        "ingest",
        "emit_latency",
        "seconds",
        "From when the first row of a message could be due, its settle time and out_of_orderness_s, to acknowledged.",
        _BUCKETS_S,
    )
    for one in late_by_ms:
        emitted.observe(max(0, one) / 1000)
