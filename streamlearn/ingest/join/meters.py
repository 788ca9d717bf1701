"""Metrics of joining: outcomes of events, held impressions, and how soon samples are acknowledged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamlearn.telemetry import counter, gauge, histogram

__all__ = ["count_joined", "count_rebuilt", "count_unavailable", "count_waiting", "note_held", "observe_emitted"]

_BUCKETS_S = (0.05, 0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5, 10, 30, 60, 300)


def count_joined(counts: Mapping[str, int]) -> None:
    """Add the joins' counts since the last call."""
    joined = counter(
        "ingest", "joined", "Events and rows of the joins, by outcome; the join's page lists the outcomes.", ["what"]
    )
    for what, count in counts.items():
        if count:
            joined.labels(what).inc(count)


def count_rebuilt() -> None:
    """Count a join that was rebuilt from its log."""
    counter("ingest", "joins_rebuilt", "Joins rebuilt from their logs; new joins are not counted.").inc()


def count_unavailable(rows: int) -> None:
    """Count rows that became no samples, since the store of computed features was away when they were served."""
    help = "Rows left out of samples: the store of computed features was away when they were served."
    counter("ingest", "unavailable_rows", help).inc(rows)


def count_waiting(entries: int) -> None:
    """Count entries that waited for room in a join."""
    counter("ingest", "join_waits", "Event entries that waited for room in a join.").inc(entries)


def note_held(pending: int, held_bytes: int, fullness: float) -> None:
    """Set how much this process's joins hold."""
    gauge("ingest", "pending", "requests", "Impressions whose windows are open, in this process.").set(pending)
    gauge("ingest", "pending", "bytes", "Bytes held by the joins of this process.").set(held_bytes)
    help = "Fullest join of this process, as a share of its byte limit; at 1 further events wait for room."
    gauge("ingest", "pending", "ratio", help).set(fullness)


def observe_emitted(late_by_ms: Iterable[int]) -> None:
    """Observe the time from when the first rows of messages were due to their acknowledgement."""
    help = (
        "Time from when the first row of a message was due (settle time plus out_of_orderness_s) to its "
        "acknowledgement."
    )
    emitted = histogram("ingest", "emit_latency", "seconds", help, _BUCKETS_S)
    for late_ms in late_by_ms:
        emitted.observe(max(0, late_ms) / 1000)
