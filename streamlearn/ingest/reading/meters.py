"""Metrics of reading: how far, how far ahead, what stands still and what was set aside."""

from __future__ import annotations

from streamlearn.telemetry import counter, gauge

__all__ = ["ReadBackMeter", "ReadMeter", "count_dead_letters", "count_left_out"]


class ReadMeter:
    """The metrics of one partition of both topics."""

    def __init__(self, partition: int) -> None:
        labels, of = ["partition"], str(partition)
        self.watermark = gauge(
            "ingest",
            "watermark",
            "seconds",
            "Watermark of a partition: event time up to which it was read, in seconds since 1970.",
            labels,
        ).labels(of)
        self.still = gauge(
            "ingest", "watermark_still", "seconds", "Time since the watermark of a partition last moved.", labels
        ).labels(of)
        self.unacknowledged = gauge(
            "ingest", "unacknowledged", "bytes", "Bytes read whose samples are not yet acknowledged.", labels
        ).labels(of)
        self.read_ahead = gauge(
            "ingest", "read_ahead", "ratio", "Unacknowledged bytes as a share of the limit; at 1 reading waits.", labels
        ).labels(of)
        self.lead = gauge(
            "ingest", "lead", "bytes", "Bytes by which reading one topic is ahead of the other.", ["partition", "topic"]
        )
        self.blobs = counter("ingest", "blobs", "Blobs of events given to the pipeline.", labels).labels(of)
        self.records = counter("ingest", "records", "Records given to the pipeline.", labels).labels(of)
        self.lead_waits = counter(
            "ingest",
            "lead_waits",
            "Polls of a partition in which one topic had records but waited for the other.",
            labels,
        ).labels(of)
        self.read_ahead_waits = counter(
            "ingest", "read_ahead_waits", "Polls of a partition in which reading waited for acknowledgements.", labels
        ).labels(of)
        self.impossible = counter(
            "ingest", "impossible_records", "Records with a timestamp too far ahead to advance the watermark.", labels
        ).labels(of)


class ReadBackMeter:
    """The metrics of impressions that are read again.

    Args:
        bytes_max: What may be kept of them.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.fetches = counter("ingest", "read_back_fetches", "Fetches of impressions that had been read before.")
        self.hits = counter("ingest", "read_back_hits", "Ranges of impressions found in the cache of such fetches.")
        self._held = gauge(
            "ingest",
            "read_back",
            "ratio",
            "Cache of impressions read again, as a share of its limit; at 1 entries are evicted.",
        )

    def hold(self, held_bytes: int) -> None:
        """Say how many bytes are kept."""
        self._held.set(held_bytes / self._bytes_max)


def count_dead_letters(topic: str, partition: int, reason: str, count: int) -> None:
    """Count what was set aside, by where it came from."""
    help = "Dead letters (records and events), by origin and reason."
    counter("ingest", "dead_letters", help, ["topic", "partition", "reason"]).labels(topic, partition, reason).inc(
        count
    )


def count_left_out(why: str, count: int) -> None:
    """Count events that are good and no sample's: older than the start, or of an action that no label has."""
    counter("ingest", "events_left_out", "Valid events that no sample needs, by reason.", ["why"]).labels(why).inc(
        count
    )
