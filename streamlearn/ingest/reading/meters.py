"""Metrics of reading: progress, lead, standstill, and events that were not used."""

from __future__ import annotations

from streamlearn.telemetry import counter, gauge

__all__ = ["ReadBackMeter", "ReadMeter", "count_dead_letters", "count_left_out"]


class ReadMeter:
    """The metrics of one partition of both topics."""

    def __init__(self, partition: int) -> None:
        labels, value = ["partition"], str(partition)
        text = "Watermark of a partition: event time up to which it was read, in seconds since 1970."
        self.watermark = gauge("ingest", "watermark", "seconds", text, labels).labels(value)
        self.still = gauge(
            "ingest", "watermark_still", "seconds", "Time since the watermark of a partition last moved.", labels
        ).labels(value)
        self.unacknowledged = gauge(
            "ingest", "unacknowledged", "bytes", "Bytes read whose samples are not yet acknowledged.", labels
        ).labels(value)
        self.read_ahead = gauge(
            "ingest", "read_ahead", "ratio", "Unacknowledged bytes as a share of the limit; at 1 reading waits.", labels
        ).labels(value)
        self.lead = gauge(
            "ingest", "lead", "bytes", "Bytes by which reading one topic is ahead of the other.", ["partition", "topic"]
        )
        unread = "Records of a topic that are not given to the pipeline yet, as of the last look at its end."
        self.behind = gauge("ingest", "behind", "records", unread, ["partition", "topic"])
        self.blobs = counter("ingest", "blobs", "Blobs of events given to the pipeline.", labels).labels(value)
        self.records = counter("ingest", "records", "Records given to the pipeline.", labels).labels(value)
        help = "Polls of a partition in which one topic had records but waited for the other."
        self.lead_waits = counter("ingest", "lead_waits", help, labels).labels(value)
        self.read_ahead_waits = counter(
            "ingest", "read_ahead_waits", "Polls of a partition in which reading waited for acknowledgements.", labels
        ).labels(value)
        self.impossible = counter(
            "ingest", "impossible_records", "Records with a timestamp too far ahead to advance the watermark.", labels
        ).labels(value)


class ReadBackMeter:
    """The metrics of impressions that are read again, into a cache of `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.fetches = counter("ingest", "read_back_fetches", "Fetches of impressions that had been read before.")
        self.hits = counter("ingest", "read_back_hits", "Ranges of impressions found in the cache of such fetches.")
        help = "Cache of impressions read again, as a share of its limit; at 1 entries are evicted."
        self._held = gauge("ingest", "read_back", "ratio", help)

    def hold(self, held_bytes: int) -> None:
        """Set the size of the cache."""
        self._held.set(held_bytes / self._bytes_max)


def count_dead_letters(topic: str, partition: int, reason: str, count: int) -> None:
    """Count dead letters by their origin."""
    help = "Dead letters (records and events), by origin and reason."
    letters = counter("ingest", "dead_letters", help, ["topic", "partition", "reason"])
    letters.labels(topic, partition, reason).inc(count)


def count_left_out(why: str, count: int) -> None:
    """Count valid events that no sample needs: before the start, or actions without a label."""
    events = counter("ingest", "events_left_out", "Valid events that no sample needs, by reason.", ["why"])
    events.labels(why).inc(count)
